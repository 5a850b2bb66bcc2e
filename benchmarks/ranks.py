"""Does a run of eight ranks load as fast as its files one by one, and how soon does it report?

    python -m benchmarks.ranks [--ranks 8] [--events 1000000] [--repeat 3]

Makes a trace of so many events for each rank by tiling the two of `traces/ranks` (even ranks the
first's, odd ones the second's, with tiles of one length, so that their collectives still end
together), then, every time in fresh processes,

    single files    `analyzer ingest` of each file alone, one after the other
    one run         `analyzer ingest` of all files: joined, clocks aligned, waits charged
    report          `analyzer report` of that run

and reports wall seconds, CPU seconds and peak resident memory. CPU seconds are what a busy machine
can still tell. The peer of the one run is the sum of the single files.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.ingest import DATA
from benchmarks.result_file import ROOT, Result, environment, print_table, result, write

SHARED = Path(os.environ.get("HOSTBOUND_SHARED") or ROOT.parent / "shared")
SOURCES = [SHARED / "traces" / "ranks" / f"python-rank{rank}.json.gz" for rank in (0, 1)]


@dataclass(frozen=True)
class Measured:
    """What processes took together; the peak is the largest of one."""

    seconds: float
    cpu_seconds: float
    peak_mb: float


def main() -> int:
    parser = argparse.ArgumentParser(description="A run of ranks against its files one by one.")
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--events", type=int, default=1_000_000, help="of each rank")
    parser.add_argument("--repeat", type=int, default=3)
    arguments = parser.parse_args()
    traces = [made(rank, arguments.ranks, arguments.events) for rank in range(arguments.ranks)]
    about = environment("hostbound", "duckdb", "polars", "pyarrow", "numpy", "isal")
    about["load_before"] = os.getloadavg()[0]
    found: dict[str, list[Measured]] = {"single files": [], "one run": [], "report": []}
    for _ in range(arguments.repeat):
        with tempfile.TemporaryDirectory(dir=DATA) as folder:
            for system, groups in (("single files", [[t] for t in traces]), ("one run", [traces])):
                parts: list[Measured] = []
                for number, group in enumerate(groups):
                    store = Path(folder) / f"{len(groups)}-{number}.duckdb"
                    parts.append(measure("ingest", *map(str, group), "--db", str(store)))
                    if len(groups) > 1:
                        store.unlink()
                found[system].append(together(parts))
            found["report"].append(measure("report", "latest", "--db", str(store)))
        for system, samples in found.items():
            say(f"{system}: {samples[-1].seconds:.1f} s, {samples[-1].cpu_seconds:.1f} s of CPU")
    parameters = {"ranks": arguments.ranks, "events": arguments.events}
    results = [
        one for system, samples in found.items() for one in rows(system, parameters, samples)
    ]
    ratios = [
        one.cpu_seconds / single.cpu_seconds
        for one, single in zip(found["one run"], found["single files"], strict=True)
    ]
    results.append(result("cpu_time_over_single_files", "", parameters, ratios))
    print_table(results)
    path = write("ranks", f"{about['cpu_count']}-core-cpu", about, results)
    print(f"\n{path.relative_to(ROOT)}")
    return 0


def made(rank: int, ranks: int, events: int) -> Path:
    """Return the trace of a rank, made if need be, in the page cache."""
    from benchmarks import tile_trace  # deferred: what measures stays small

    target = DATA / f"ranks-{ranks}x{events}-rank{rank}.json"
    if not target.is_file():
        say(f"making {target.name} ...")
        target.parent.mkdir(parents=True, exist_ok=True)
        info = {"backend": "nccl", "rank": rank, "world_size": ranks}
        span = max(tile_trace.span_us(source) for source in SOURCES)
        head = {"distributedInfo": info}
        variant = tile_trace.Variant(head=head, span_us=span, events=events)
        tile_trace.tile(SOURCES[rank % 2], target, 0, variant)
    with target.open("rb") as stream:
        while stream.read(1 << 24):
            pass
    return target


def measure(command: str, *arguments: str) -> Measured:
    """Run an `analyzer` command with one job."""
    words = [sys.executable, "-m", "analyzer.cli", command, *arguments]
    if command == "ingest":
        words += ["--jobs", "1", "--step-annotation", "decode#*"]
    began = time.perf_counter()
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - began
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode not in (0, 1):
        assert process.stderr is not None
        raise SystemExit(f"{' '.join(words)}: {process.stderr.read().decode()}")
    return Measured(seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024 / 1e6)


def together(parts: list[Measured]) -> Measured:
    """The sum of processes that ran one after the other."""
    return Measured(
        sum(part.seconds for part in parts),
        sum(part.cpu_seconds for part in parts),
        max(part.peak_mb for part in parts),
    )


def rows(system: str, parameters: dict[str, Any], samples: list[Measured]) -> list[Result]:
    own = {"system": system, **parameters}
    return [
        result("wall_time", "s", own, [one.seconds for one in samples]),
        result("cpu_time", "s", own, [one.cpu_seconds for one in samples]),
        result("peak_memory", "MB", own, [one.peak_mb for one in samples]),
    ]


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
