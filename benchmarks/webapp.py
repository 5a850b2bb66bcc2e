"""How long until a page of the web app is painted, on a store with many runs and events? And how
fluid is the timeline of a trace with a million kernels?

Builds a store of runs that each hold a sample's events several times, one after the other; serves
it, and opens every page in a fresh context of one Chromium. First paint: the page's heading stands;
complete: the server has answered all. The server is warm (a page was open before). "new": the
store's time of change was moved on, so that the app remembers no answer; "again": the same page.
A second store has one run that long; its timeline is opened, and zoomed by its button.

    python -m benchmarks.webapp                      # 200 runs, 20 million events
    python -m benchmarks.webapp --events 200000 --runs 20
"""

from __future__ import annotations

import argparse
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import duckdb

from analyzer.ingest import ingest
from benchmarks import result_file

ROOT = Path(__file__).resolve().parent.parent
SAMPLE = ROOT / "analyzer" / "samples" / "gpt2-prefill-bs1-s512"
FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
]  # fmt: skip
IDLE = "[data-testid='stApp'][data-test-script-state='notRunning']"
SAID = """() => [...document.querySelectorAll('[data-testid=stCaptionContainer]')]
  .map(e => e.textContent).find(t => t.includes('Drag to mark')) || ''"""
ZOOMS = 12
# Ids and times that a copy within a run moves on, so that each stays its own.
MOVED = {
    "ops": ("op_id", "parent_op_id", "outermost_op_id", "step_id"),
    "calls": ("call_id", "op_id", "outermost_op_id", "step_id"),
    "device_events": ("device_event_id", "call_id", "op_id", "step_id"),
    "launches": ("call_id", "step_id"),
    "steps": ("step_id",),
    "totals": ("step_id",),
    "ledger": ("step_id",),
}
OWNERS = {"call_id": "calls", "device_event_id": "device_events", "step_id": "steps"}
WHOLE = ("totals", "ledger")
TIMED = {
    "ops": ("start_ns",),
    "calls": ("start_ns",),
    "device_events": ("start_ns",),
    "steps": ("start_ns", "end_ns"),
}


def build(store: Path, runs: int, events: int) -> None:
    """Make a store of `runs` copies of the sample, each with its events many times over."""
    ingest(SAMPLE, store)
    with duckdb.connect(str(store)) as connection:
        counts = {
            table: connection.execute(f"SELECT count(*) FROM {table}").fetchall()[0][0]
            for table in ("ops", "calls", "device_events", "steps")
        }
        own = counts["ops"] + counts["calls"] + counts["device_events"]
        copies = max(1, round(events / runs / own))
        ((start, end),) = connection.execute(
            "SELECT min(start_ns), max(end_ns) FROM traces"
        ).fetchall()
        span = end - start + 1_000_000
        tables = [
            row[0]
            for row in connection.execute(
                "SELECT DISTINCT table_name FROM information_schema.columns JOIN "
                "information_schema.tables USING (table_name) WHERE column_name = 'run_id' "
                "AND table_type = 'BASE TABLE'"
            ).fetchall()
        ]
        for table in tables:
            connection.execute(f"CREATE TEMP TABLE first_{table} AS SELECT * FROM {table}")
            connection.execute(f"DELETE FROM {table}")
        for run in range(runs):
            run_id = f"{run:032x}"
            connection.execute("BEGIN")
            for table in tables:
                changed = [f"'{run_id}' AS run_id"]
                source = f"first_{table}"
                if table in MOVED:
                    source += f", range({copies}) AS copy(n)"
                    # What is of the whole trace stays once.
                    source += " WHERE n = 0 OR step_id IS NOT NULL" if table in WHOLE else ""
                    changed += [
                        f"({column} + n * {counts[OWNERS.get(column, 'ops')]})::INTEGER AS {column}"
                        for column in MOVED[table]
                    ]
                    changed += [
                        f"{column} + n * {span} AS {column}" for column in TIMED.get(table, ())
                    ]
                elif table == "runs":
                    changed += [
                        f"'copy {run}' AS name",
                        f"{2 ** (run % 6)} AS batch_size",
                        f"{128 * 2 ** (run // 6 % 5)} AS prompt_len",
                        f"'{('eager', 'compile', 'hybrid')[run % 3]}' AS mode",
                    ]
                elif table == "traces":
                    changed += [
                        f"end_ns + {(copies - 1) * span} AS end_ns",
                        f"events * {copies} AS events",
                    ]
                order = " ORDER BY n" if table in MOVED else ""
                connection.execute(
                    f"INSERT INTO {table} SELECT first_{table}.* REPLACE ({', '.join(changed)}) "
                    f"FROM {source}{order}"
                )
            connection.execute("COMMIT")


def pages(runs: int) -> dict[str, str]:
    """Addresses that show every page with something on it."""
    one, two = f"{runs // 2:032x}", f"{runs // 2 + 1:032x}"
    return {
        "runs": "",
        "run": f"run?run={one}",
        "timeline": f"timeline?run={one}",
        "kernels": f"kernels?run={one}&kernel=5",
        "compare": f"compare?runs={one},{two}",
        "sweep": "sweep",
        "sql": "sql?run=1",
    }


def serve(store: Path) -> tuple[subprocess.Popen[bytes], str]:
    """Start the app and wait until it answers."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = subprocess.Popen(
        [sys.executable, "-m", "webapp.cli", "--db", str(store), "--port", str(port)],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    base = f"http://127.0.0.1:{port}"
    for _ in range(600):
        try:
            with urllib.request.urlopen(f"{base}/_stcore/health", timeout=2):
                return process, base
        except (urllib.error.URLError, OSError):
            time.sleep(0.1)
    raise SystemExit("the app did not start")


def find_chromium() -> str:
    """Debian's Chromium."""
    for name in ("chromium", "chromium-browser", "google-chrome"):
        if path := shutil.which(name):
            return path
    raise SystemExit("no chromium here; on Debian: apt-get install chromium")


@contextmanager
def served(store: Path) -> Iterator[tuple[Any, str]]:
    """A browser and the address of the app on a store."""
    from playwright.sync_api import sync_playwright  # deferred: heavy, and only measuring needs it

    process, base = serve(store)
    try:
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(
                executable_path=find_chromium(), headless=True, args=FLAGS
            )
            yield browser, base
            browser.close()
    finally:
        process.terminate()
        process.wait(30)


def open_page(browser: Any, address: str) -> tuple[Any, float, float]:
    """A page in a fresh context; seconds until its heading stood, and until all was answered."""
    page = browser.new_context(viewport={"width": 1440, "height": 900}).new_page()
    began = time.perf_counter()
    page.goto(address)
    page.wait_for_selector("h1", timeout=120_000)
    painted = time.perf_counter() - began
    page.wait_for_selector(IDLE, timeout=120_000)
    return page, painted, time.perf_counter() - began


def measure_pages(
    store: Path, addresses: dict[str, str], repeats: int
) -> dict[str, dict[str, list[tuple[float, float]]]]:
    """Seconds to the first paint of each page and to all of it: of a new store, and again."""
    found: dict[str, dict[str, list[tuple[float, float]]]] = {
        name: {"new": [], "again": []} for name in addresses
    }
    with served(store) as (browser, base):

        def visit(path: str) -> tuple[float, float]:
            page, painted, complete = open_page(browser, f"{base}/{path}")
            page.context.close()
            return painted, complete

        visit("sql")
        for _ in range(repeats):
            for name, path in addresses.items():
                os.utime(store)
                found[name]["new"].append(visit(path))
                found[name]["again"].append(visit(path))
    return found


def measure_timeline(store: Path, repeats: int) -> dict[str, list[float]]:
    """Seconds from opening the timeline of a long trace to its picture, and from click to picture.

    "first picture": the whole trace without the host's accounts, nothing in memory; "overview":
    with them; "zoom 1" to "zoom 12": each "Zoom in" from
    there, halving the window, nothing of it in memory; "move": "Later" at the last window.
    """
    found: dict[str, list[float]] = defaultdict(list)
    with served(store) as (browser, base):
        page, _, _ = open_page(browser, f"{base}/sql")
        page.context.close()
        for _ in range(repeats):
            os.utime(store)
            page = browser.new_context(viewport={"width": 1440, "height": 900}).new_page()
            began = time.perf_counter()
            page.goto(f"{base}/timeline?run={0:032x}")
            page.wait_for_selector(
                "[data-testid=stVegaLiteChart] :is(canvas, svg)", timeout=120_000
            )
            found["first picture"].append(time.perf_counter() - began)
            drawn(page, "")
            found["overview"].append(time.perf_counter() - began)
            for step in range(1, ZOOMS + 1):
                found[f"zoom {step}"].append(pressed(page, "Zoom in"))
            found["move"].append(pressed(page, "Later"))
            page.context.close()
    return found


def drawn(page: Any, before: str) -> str:
    """Wait until the timeline's window is another one and its canvas is painted; what it says."""
    page.wait_for_function(
        """before => {
          const said = [...document.querySelectorAll('[data-testid=stCaptionContainer]')]
            .map(e => e.textContent).find(t => t.includes('Drag to mark'));
          const drawn = document.querySelector('[data-testid=stVegaLiteChart] :is(canvas, svg)');
          return said && said !== before && drawn && drawn.clientWidth > 300; }""",
        arg=before,
        timeout=120_000,
    )
    page.wait_for_selector(IDLE, timeout=120_000)
    page.evaluate("() => new Promise(done => requestAnimationFrame(() => setTimeout(done)))")
    return page.evaluate(SAID)


def pressed(page: Any, button: str) -> float:
    """Seconds from a click to the new picture."""
    before = page.evaluate(SAID)
    place = page.evaluate("() => location.search")
    began = time.perf_counter()
    page.get_by_role("button", name=button, exact=False).first.click()
    if button == "Zoom in":
        drawn(page, before)
    else:
        page.wait_for_function("place => location.search !== place", arg=place, timeout=120_000)
        drawn(page, "")
    return time.perf_counter() - began


def main() -> None:
    """Build, serve, measure, write."""
    parser = argparse.ArgumentParser(description="First paint of the web app's pages.")
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument(
        "--events", type=int, default=20_000_000, help="ops, calls and device events"
    )
    parser.add_argument("--kernels", type=int, default=1_000_000, help="of the long timeline")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--stores", type=Path, help="keep the stores in this folder and use them")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="hostbound-bench-") as folder:
        place = arguments.stores or Path(folder)
        many, long = place / "many.duckdb", place / "long.duckdb"
        made(many, arguments.runs, arguments.events)
        made(long, 1, round(arguments.kernels * events_of_a_kernel()))
        with duckdb.connect(str(many), read_only=True) as connection:
            (sizes,) = connection.execute(
                "SELECT (SELECT count(*) FROM runs), (SELECT count(*) FROM ops) + "
                "(SELECT count(*) FROM calls) + (SELECT count(*) FROM device_events)"
            ).fetchall()
        with duckdb.connect(str(long), read_only=True) as connection:
            ((kernels,),) = connection.execute(
                "SELECT count(*) FROM device_events WHERE kind = 'kernel'"
            ).fetchall()
        before = os.getloadavg()[0]
        found = measure_pages(many, pages(sizes[0]), arguments.repeats)
        zoomed = measure_timeline(long, arguments.repeats)
    results = [
        result_file.result(
            metric,
            "s",
            {"page": name, "answers": state, "runs": sizes[0], "events": sizes[1]},
            [pair[place] for pair in samples],
        )
        for name, states in found.items()
        for state, samples in states.items()
        for place, metric in enumerate(("first_paint", "complete"))
    ]
    results += [
        result_file.result("timeline", "s", {"action": action, "kernels": kernels}, samples)
        for action, samples in zoomed.items()
    ]
    result_file.print_table(results)
    environment = result_file.environment("streamlit", "altair", "duckdb", "polars", "playwright")
    # A busy machine shows first of all itself.
    environment["load_average"] = {"before": before, "after": os.getloadavg()[0]}
    print(result_file.write("webapp", "cpu", environment, results))


def made(store: Path, runs: int, events: int) -> None:
    """Build a store unless it is there."""
    if store.exists():
        return
    began = time.perf_counter()
    build(store, runs, events)
    print(
        f"{store.name} built in {time.perf_counter() - began:.0f} s, {store.stat().st_size:,} bytes"
    )


def events_of_a_kernel() -> float:
    """How many ops, calls and device events the sample has for each of its kernels."""
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder) / "sample.duckdb"
        ingest(SAMPLE, store)
        with duckdb.connect(str(store), read_only=True) as connection:
            ((events, kernels),) = connection.execute(
                "SELECT (SELECT count(*) FROM ops) + (SELECT count(*) FROM calls) + "
                "(SELECT count(*) FROM device_events), "
                "(SELECT count(*) FROM device_events WHERE kind = 'kernel')"
            ).fetchall()
    return events / kernels


if __name__ == "__main__":
    main()
