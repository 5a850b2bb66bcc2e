"""How long until a page of the web app is painted, on a store with many runs and events?

Builds a store of runs that each hold a sample's events several times, one after the other; serves
it, and opens every page in a fresh context of one Chromium. First paint: the page's heading stands;
complete: the server has answered all. The server is warm (a page was open before). "new": the
store's time of change was moved on, so that the app remembers no answer; "again": the same page.

    python benchmarks/webapp.py                      # 200 runs, 20 million events
    python benchmarks/webapp.py --events 200000 --runs 20
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
from pathlib import Path

import duckdb

import result_file
from analyzer.ingest import ingest

ROOT = Path(__file__).resolve().parent.parent
SAMPLE = ROOT / "analyzer" / "samples" / "gpt2-prefill-bs1-s512"
FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
]  # fmt: skip
# Ids and times that a copy within a run moves on, so that each stays its own.
MOVED = {
    "ops": ("op_id", "parent_op_id", "outermost_op_id"),
    "calls": ("call_id", "op_id", "outermost_op_id"),
    "device_events": ("device_event_id", "call_id", "op_id"),
    "launches": ("call_id",),
}


def build(store: Path, runs: int, events: int) -> tuple[int, int]:
    """Make the store; returns the events of a run and of all."""
    ingest(SAMPLE, store)
    with duckdb.connect(str(store)) as connection:
        counts = {
            t: connection.execute(f"SELECT count(*) FROM {t}").fetchall()[0][0] for t in MOVED
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
                    changed += [
                        f"({column} + n * {counts[_owner(column)]})::INTEGER AS {column}"
                        for column in MOVED[table]
                    ]
                    if table != "launches":
                        changed.append(f"start_ns + n * {span} AS start_ns")
                elif table == "runs":
                    changed += [
                        f"'copy {run}' AS name",
                        f"{2 ** (run % 6)} AS batch_size",
                        f"{128 * 2 ** (run // 6 % 5)} AS prompt_len",
                        f"'{('eager', 'compile', 'hybrid')[run % 3]}' AS mode",
                    ]
                elif table == "traces":
                    changed.append(f"end_ns + {(copies - 1) * span} AS end_ns")
                order = " ORDER BY n" if table in MOVED else ""
                connection.execute(
                    f"INSERT INTO {table} SELECT first_{table}.* REPLACE ({', '.join(changed)}) "
                    f"FROM {source}{order}"
                )
            connection.execute("COMMIT")
    return own * copies, own * copies * runs


def _owner(column: str) -> str:
    """The table that numbers these ids."""
    if column == "call_id":
        return "calls"
    return "device_events" if column == "device_event_id" else "ops"


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


def measure(
    base: str, store: Path, addresses: dict[str, str], repeats: int
) -> dict[str, dict[str, list[tuple[float, float]]]]:
    """Seconds to the first paint of each page: of a new store state, and again."""
    from playwright.sync_api import sync_playwright  # deferred: --build-only needs no browser

    chromium = (
        shutil.which("chromium")
        or shutil.which("chromium-browser")
        or shutil.which("google-chrome")
    )
    if not chromium:
        raise SystemExit("no chromium here; on Debian: apt-get install chromium")
    found: dict[str, dict[str, list[tuple[float, float]]]] = {
        name: {"new": [], "again": []} for name in addresses
    }
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, headless=True, args=FLAGS)

        def visit(path: str) -> tuple[float, float]:
            context = browser.new_context(viewport={"width": 1440, "height": 900})
            page = context.new_page()
            began = time.perf_counter()
            page.goto(f"{base}/{path}")
            page.wait_for_selector("h1", timeout=120_000)
            painted = time.perf_counter() - began
            page.wait_for_selector(
                "[data-testid='stApp'][data-test-script-state='notRunning']", timeout=120_000
            )
            seconds = time.perf_counter() - began
            context.close()
            return painted, seconds

        visit("sql")
        for _ in range(repeats):
            for name, path in addresses.items():
                os.utime(store)
                found[name]["new"].append(visit(path))
                found[name]["again"].append(visit(path))
        browser.close()
    return found


def main() -> None:
    """Build, serve, measure, write."""
    parser = argparse.ArgumentParser(description="First paint of the web app's pages.")
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument(
        "--events", type=int, default=20_000_000, help="ops, calls and device events"
    )
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--store", type=Path, help="keep the store here, and use it if it is there")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="hostbound-bench-") as folder:
        store = arguments.store or Path(folder) / "many.duckdb"
        if not store.exists():
            began = time.perf_counter()
            build(store, arguments.runs, arguments.events)
            seconds = time.perf_counter() - began
            print(f"store built in {seconds:.0f} s, {store.stat().st_size:,} bytes")
        with duckdb.connect(str(store), read_only=True) as connection:
            (sizes,) = connection.execute(
                "SELECT (SELECT count(*) FROM runs), (SELECT count(*) FROM ops) + "
                "(SELECT count(*) FROM calls) + (SELECT count(*) FROM device_events)"
            ).fetchall()
        process, base = serve(store)
        try:
            found = measure(base, store, pages(sizes[0]), arguments.repeats)
        finally:
            process.terminate()
            process.wait(30)
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
    result_file.print_table(results)
    environment = result_file.environment("streamlit", "altair", "duckdb", "polars", "playwright")
    print(result_file.write("webapp", "cpu", environment, results))


if __name__ == "__main__":
    main()
