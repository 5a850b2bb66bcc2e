"""How fast do many traces get into a lake, by a process pool and by Ray, and how does it grow with
workers? And is each run there exactly once although a worker was killed on the way?

Starts a PostgreSQL of its own, and Ray in a network namespace; Parquet goes to the local disk. Runs
in the fleet's environment: .venv-fleet/bin/python -m benchmarks.fleet. Workers are held to as many
cores as there are of them; PostgreSQL is not. The traces are tiled from a real one and differ in a
number. Fails if a run is lost, doubled or has other rows than the first.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

# The parts of a fleet are started as the tests start them.
from analyzer import queries
from analyzer.ingest import ingest
from analyzer.store import open_store
from analyzer.store.verify import verify
from analyzer.store.write import RUN_TABLES
from benchmarks.result_file import ROOT, Result, environment, print_table, result, write
from benchmarks.tile_trace import tile
from tests.fleet.copies import copies
from tests.fleet.services import Postgres, ray_cluster

SOURCE = ROOT / "analyzer" / "samples" / "gpt2-prefill-bs1-s512" / "trace.json.gz"
POOL = """
import json, sys, time
from analyzer.ingest import ingest
if __name__ == "__main__":
    began = time.monotonic()
    results = ingest(sys.argv[1], sys.argv[2], jobs=int(sys.argv[3]))
    print(json.dumps({
        "seconds": time.monotonic() - began,
        "errors": [r.error for r in results if r.error],
        "write_seconds": [r.write_seconds for r in results],
        "work_seconds": [r.read_seconds + r.analyse_seconds for r in results],
        "killed": 0,
    }))
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--traces", type=int, default=200, help="through Ray with all workers")
    parser.add_argument("--others", type=int, default=40, help="through each other arrangement")
    parser.add_argument("--megabytes", type=int, default=80, help="JSON of a trace")
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    arguments = parser.parse_args()
    results: list[Result] = []
    load_before = os.getloadavg()
    with tempfile.TemporaryDirectory(prefix="hb-fleet-", dir="/tmp") as name:
        folder = Path(name)
        say("making traces")
        large = folder / "large.json"
        events = tile(SOURCE, large, arguments.megabytes * 1_000_000)
        traces = copies(large, folder / "traces", arguments.traces)
        few = copies(large, folder / "few", arguments.others)
        json_bytes = large.stat().st_size
        large.unlink()
        expected = expected_rows(traces[0], folder)
        postgres = Postgres()
        try:
            most = max(arguments.workers)
            for system in ("pool", "ray"):
                for workers in arguments.workers:
                    whole = system == "ray" and workers == most
                    source = traces[0].parent if whole else few[0].parent
                    count = len(traces) if whole else len(few)
                    lake = make_lake(folder, postgres, f"{system}{workers}")
                    with open_store(lake).writing():
                        pass
                    say(f"{system}, {workers} workers, {count} traces")
                    answer = load(system, source, lake, workers, kills=1 if whole else 0)
                    check(lake, count, expected, answer, kills=1 if whole else 0)
                    parameters = {"system": system, "workers": workers, "traces": count}
                    parameters |= {"killed_workers": answer["killed"]}
                    results += rows(parameters, count, json_bytes, answer)
                    # Others may use this machine too: what was runnable in the last minute.
                    busy = os.getloadavg()[0]
                    results.append(result("load_average", "processes", parameters, [busy]))
                    if whole:
                        results += size_rows(parameters, lake, postgres, count)
        finally:
            postgres.close()
    about = environment("duckdb", "ray", "polars", "pyarrow", "msgspec", "isal")
    about["trace"] = {"json_bytes": json_bytes, "events": events, "tiled_from": SOURCE.parent.name}
    about["load_average"] = {"before": load_before, "after": os.getloadavg()}
    print()
    print_table(results)
    path = write("fleet", f"{about['cpu_count']}-core-cpu", about, results)
    print(f"\n{path.relative_to(ROOT)}")
    return 0


def say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text} ...", file=sys.stderr, flush=True)


def make_lake(folder: Path, postgres: Postgres, name: str) -> Path:
    lake = folder / f"{name}.toml"
    lake.write_text(f'catalog = "{postgres.catalog}"\ndata = "data-{name}"\nschema = "{name}"\n')
    return lake


def load(system: str, source: Path, lake: Path, workers: int, kills: int) -> dict[str, Any]:
    """Load a folder of traces on as many cores as workers; what the loading process said."""
    cores = os.sched_getaffinity(0)
    # Inherited: a worker takes more than a core if it may, and one would look as good as two.
    os.sched_setaffinity(0, sorted(cores)[:workers])
    try:
        if system == "ray":
            script = ROOT / "tests" / "fleet" / "ray_load.py"
            said = ray_cluster(script, source, lake, kills, nodes=workers, timeout_s=7200)
        else:
            command = [sys.executable, "-c", POOL, str(source), str(lake), str(workers)]
            variables = {**os.environ, "PYTHONPATH": str(ROOT)}
            said = subprocess.run(
                command, capture_output=True, text=True, env=variables, check=True
            ).stdout
    finally:
        os.sched_setaffinity(0, cores)
    return json.loads(said.strip().splitlines()[-1])


def expected_rows(trace: Path, folder: Path) -> dict[str, int]:
    """Rows of one trace by table, as a file store has them."""
    file = folder / "expected.duckdb"
    ingest(trace, file)
    return {table: count for table, counts in rows_by_run(file).items() for count in counts}


def rows_by_run(db: Path) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    with open_store(db).reading() as connection:
        for table in RUN_TABLES:
            counted = connection.execute(f"SELECT count(*) FROM {table} GROUP BY run_id").fetchall()
            if counted:
                found[table] = [count for (count,) in counted]
    return found


def check(
    lake: Path, count: int, expected: dict[str, int], answer: dict[str, Any], kills: int
) -> None:
    """Every run once, with the rows of the first; nothing that `verify` finds."""
    found = rows_by_run(lake)
    wrong = {t: c for t, c in found.items() if c != [expected.get(t)] * count}
    if answer["errors"] or answer["killed"] != kills or wrong or set(found) != set(expected):
        raise SystemExit(f"not exactly once: {answer['errors'][:3]} {answer['killed']} {wrong}")
    if problems := verify(lake):
        raise SystemExit(f"verify found {problems[:3]}")


def rows(
    parameters: dict[str, Any], count: int, json_bytes: int, answer: dict[str, Any]
) -> list[Result]:
    minutes = answer["seconds"] / 60
    writes = answer["write_seconds"]
    tenth = max(1, len(writes) // 10)
    return [
        result("traces_per_minute", "1/min", parameters, [count / minutes]),
        result("json_rate", "MB/s", parameters, [count * json_bytes / 1e6 / answer["seconds"]]),
        result("work_time", "s", parameters, answer["work_seconds"]),
        result("write_time", "s", parameters, writes),
        result("write_time_of_first_tenth", "s", parameters, writes[:tenth]),
        result("write_time_of_last_tenth", "s", parameters, writes[-tenth:]),
    ]


def size_rows(
    parameters: dict[str, Any], lake: Path, postgres: Postgres, count: int
) -> list[Result]:
    """What the lake takes, and how long its questions last, before and after upkeep."""
    found: list[Result] = []
    for upkeep in (False, True):
        if upkeep:
            began = time.monotonic()
            open_store(lake).maintain(keep_days=0)
            seconds = time.monotonic() - began
            found.append(result("upkeep_time", "s", parameters, [seconds]))
        here = {**parameters, "after_upkeep": upkeep}
        files = [f for f in (lake.parent / f"data-{lake.stem}").rglob("*") if f.is_file()]
        size = sum(file.stat().st_size for file in files)
        found.append(result("parquet_per_run", "MB", here, [size / 1e6 / count]))
        found.append(result("files_per_run", "1", here, [len(files) / count]))
        sql = f"SELECT sum(pg_total_relation_size(c.oid)) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE nspname = '{lake.stem}' AND relkind = 'r'"  # noqa: E501
        found.append(result("catalog_per_run", "kB", here, [int(postgres.psql(sql)) / 1e3 / count]))
        for name in ("runs", "kernels"):
            samples: list[float] = []
            for _ in range(5):
                began = time.monotonic()
                with queries.connect(lake) as connection:
                    if name == "runs":
                        queries.runs(connection)
                    else:
                        queries.kernels(connection, queries.find_run(connection, "latest"))
                samples.append(time.monotonic() - began)
            found.append(result(f"{name}_question", "s", here, samples))
    return found


if __name__ == "__main__":
    sys.exit(main())
