"""How fast is a large trace read, and in how much memory?

    python -m benchmarks.ingest [--sizes 300 1000] [--repeat 3] [--hta-limit SECONDS] [--skip-hta]
    python -m benchmarks.ingest --sizes --repeat 3      # only what hurts, 1 GB each

Makes traces of 300 MB and 1 GB by tiling a real one (`tile_trace.py`), then reads each, every time
in a fresh process, by

    hostbound          `analyzer ingest`: read, link, match, decompose, store; with the C scanner
    hostbound-pure     the same with HOSTBOUND_PURE_SCANNER=1, as where no compiler was found
    hostbound, .sqlite the same of an export of Nsight Systems of that size (`tile_nsys.py`)
    json.load          Python's own parser on the whole document, nothing else
    HTA                HolisticTraceAnalysis in an environment of its own: load, kernel breakdown,
                       launch statistics. On the 1 GB file only with --hta-large: it takes minutes

and reports wall seconds, MB/s (10^6 bytes of JSON), peak resident memory and, for hostbound, what
`analyzer ingest --json` says of its parts: seconds of reading, analysis and writing, and analysed
events a second. Then hostbound reads traces of 1 GB that hurt a reader whose cost is a product
(`HARD`): 1, 1,375 and 20,000 steps, 64 threads at once, 300,000 events of metadata, all of these
together, graph replays on six streams; and `analyzer report` is timed on 20,000 steps. Files are
read once beforehand, so all find them in the page cache. Figures of HTA and of Perfetto's
trace_processor that were taken once, on another 2-core machine, stand beside them as such.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import venv
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.result_file import ROOT, Result, environment, print_table, result, write

DATA = ROOT / "benchmarks" / "data"
REAL_TRACES = (
    Path(os.environ.get("HOSTBOUND_SHARED") or ROOT.parent / "shared")
    / "traces"
    / "h100-eager-qwen-orphans.json.gz",
    ROOT / "analyzer" / "samples" / "gpt2-prefill-bs1-s512" / "trace.json.gz",
)

GRAPH_REPLAYS = REAL_TRACES[0].with_name("a100-cuda-graphs-six-streams.json.gz")
STEPS_SAMPLE = ROOT / "analyzer" / "samples" / "gpt2-bs1-s512" / "trace.json.gz"

SUFFIXES = ("json", "sqlite")
JSON_LOAD = "import json, sys\nwith open(sys.argv[1], 'rb') as f:\n    json.load(f)\n"

HTA = """
import json, sys
from importlib.metadata import version
from hta.trace_analysis import TraceAnalysis
analysis = TraceAnalysis(trace_files={0: sys.argv[1]})
kernels = analysis.get_gpu_kernel_breakdown(visualize=False)
launches = analysis.get_cuda_kernel_launch_stats(visualize=False)
print(json.dumps({"hta": version("HolisticTraceAnalysis"), "launch_rows": len(launches[0])}))
"""


# Whole-process wall seconds and peak MB on 1,002 MB of JSON tiled from an H100 trace, taken once
# on 2 cores and 24 GiB (Debian 12, Python 3.11).
TAKEN_ELSEWHERE = {
    "HTA 0.6.1: load, kernel breakdown, launch statistics": (553.0, 4450.0),
    "Perfetto trace_processor v58: import": (22.8, 1560.0),
}


@dataclass(frozen=True)
class Case:
    """A trace of 1 GB that hurts.

    Attributes:
        variant: Attributes of `tile_trace.Variant`.
        report: Whether `analyzer report` is timed on it too.
    """

    source: Path
    variant: dict[str, int] = field(default_factory=dict[str, int])
    report: bool = False


HARD = {
    "steps-1": Case(STEPS_SAMPLE, {"steps": 1}),
    "steps-1375": Case(STEPS_SAMPLE, {"steps": 1375}),
    "steps-20000": Case(STEPS_SAMPLE, {"steps": 20_000}, report=True),
    "threads-64": Case(STEPS_SAMPLE, {"steps": 1375, "threads": 64}),
    "metadata-300000": Case(STEPS_SAMPLE, {"steps": 1375, "metadata": 300_000}),
    "all-of-these": Case(
        STEPS_SAMPLE, {"steps": 20_000, "threads": 64, "metadata": 300_000}, report=True
    ),
    "graph-replays": Case(GRAPH_REPLAYS),
}


@dataclass(frozen=True)
class Measured:
    """One process: wall time, peak resident memory, what it printed, and whether it was stopped."""

    seconds: float
    peak_mb: float
    stdout: str
    timed_out: bool


def main() -> int:
    parser = argparse.ArgumentParser(description="Read large traces: hostbound, json.load, HTA.")
    parser.add_argument("--sizes", type=int, nargs="*", default=[300, 1000], help="MB of JSON")
    parser.add_argument("--hard", nargs="*", choices=HARD, default=list(HARD), help="cases of 1 GB")
    parser.add_argument("--repeat", type=int, default=3, help="runs of hostbound (default 3)")
    parser.add_argument("--hta-limit", type=float, default=900, help="seconds until HTA is stopped")
    parser.add_argument("--hta-large", action="store_true", help="HTA on files above 300 MB too")
    parser.add_argument("--skip-hta", action="store_true", help="leave HTA out")
    parser.add_argument("--generate", type=int, metavar="MB", help="only make that trace, and stop")
    parser.add_argument("--kind", choices=SUFFIXES, default="json", help="what --generate makes")
    parser.add_argument("--case", choices=HARD, help="the case that --generate makes")
    arguments = parser.parse_args()
    if arguments.generate:
        generate(arguments.generate, arguments.kind, arguments.case)
        return 0

    about = environment("hostbound", "duckdb", "polars", "pyarrow", "numpy", "msgspec", "isal")
    about["traces"] = {}
    results: list[Result] = []
    for size in arguments.sizes:
        trace, facts = prepared(size)
        about["traces"][trace.name] = {"json_bytes": trace.stat().st_size, **facts}
        results += hostbound(trace, arguments.repeat, pure=False)
        results += hostbound(trace, 1, pure=True)
        export, facts = prepared(size, "sqlite")
        about["traces"][export.name] = {"bytes": export.stat().st_size, **facts}
        results += hostbound(export, arguments.repeat, pure=False)
        done = measure("json.load", trace, [sys.executable, "-c", JSON_LOAD, str(trace)])
        results += rows("json.load", trace, [done])
        if not arguments.skip_hta and (size <= 300 or arguments.hta_large):
            done = measure(
                "HTA",
                trace,
                [str(hta_python()), "-c", HTA, str(trace)],
                limit=arguments.hta_limit,
            )
            if not done.timed_out:
                about["versions"]["HolisticTraceAnalysis"] = last_json(done.stdout)["hta"]
            results += rows("HTA", trace, [done], limit=arguments.hta_limit)
    for name in arguments.hard:
        if not HARD[name].source.is_file():
            say(f"{name} is left out: {HARD[name].source.name} is not here")
            continue
        trace, facts = prepared(1000, case=name)
        about["traces"][trace.name] = {"json_bytes": trace.stat().st_size, **facts}
        results += hostbound(trace, arguments.repeat, pure=False)
        if HARD[name].report:
            results += report(trace, arguments.repeat)
    for system, (seconds, peak_mb) in TAKEN_ELSEWHERE.items():
        parameters = {"system": system, "file": "1,002 MB", "taken": "once, on another machine"}
        results.append(result("wall_time", "s", parameters, [seconds]))
        results.append(result("peak_memory", "MB", parameters, [peak_mb]))
    print()
    print_table(results)
    path = write("ingest", f"{about['cpu_count']}-core-cpu", about, results)
    print(f"\n{path.relative_to(ROOT)}")
    return 0


# ---- traces -------------------------------------------------------------------------------------


def generate(size: int, kind: str, case: str | None) -> None:
    """Make the trace of `size` MB and note how many events it has; runs in a process of its own."""
    # Deferred: the measuring process stays small, see `measure`.
    from benchmarks import tile_nsys, tile_trace

    source = HARD[case].source if case else next(path for path in REAL_TRACES if path.is_file())
    target = trace_path(size, kind, case)
    target.parent.mkdir(parents=True, exist_ok=True)
    if kind == "sqlite":
        events = tile_nsys.tile(source, target, size * 1_000_000)
    else:
        variant = tile_trace.Variant(**HARD[case].variant if case else {})
        events = tile_trace.tile(source, target, size * 1_000_000, variant)
    name = source.parent.name if source.name == "trace.json.gz" else source.name
    facts = {"events": events, "tiled_from": name.removesuffix(".json.gz")}
    facts |= HARD[case].variant if case else {}
    facts_path(target).write_text(json.dumps(facts), encoding="utf-8")


def prepared(size: int, kind: str = "json", case: str | None = None) -> tuple[Path, dict[str, Any]]:
    """Return the trace of `size` MB, made if need be, in the page cache, and its facts."""
    trace = trace_path(size, kind, case)
    if not facts_path(trace).is_file():
        say(f"making {trace.name} ...")
        command = [sys.executable, "-m", "benchmarks.ingest", "--generate", str(size)]
        command += ["--case", case] if case else ["--kind", kind]
        subprocess.run(command, check=True)
    with trace.open("rb") as stream:
        while stream.read(1 << 24):
            pass
    return trace, json.loads(facts_path(trace).read_text(encoding="utf-8"))


def trace_path(size: int, kind: str, case: str | None) -> Path:
    return DATA / f"tiled-{size}MB{f'-{case}' if case else ''}.{kind}"


def facts_path(trace: Path) -> Path:
    return trace.with_name(f"{trace.name}.facts.json")


# ---- systems ------------------------------------------------------------------------------------


def hostbound(trace: Path, repeat: int, pure: bool) -> list[Result]:
    """Ingest `trace` into a new store, `repeat` times."""
    system = "hostbound-pure" if pure else "hostbound"
    command = [str(Path(sys.executable).parent / "analyzer"), "ingest", str(trace)]
    variables = {"HOSTBOUND_PURE_SCANNER": "1"} if pure else {}
    done: list[Measured] = []
    parts: list[dict[str, Any]] = []
    for _ in range(repeat):
        with tempfile.TemporaryDirectory(dir=DATA) as folder:
            store = str(Path(folder) / "store.duckdb")
            done.append(measure(system, trace, [*command, "--db", store, "--json"], variables))
        parts.append(run_record(json.loads(done[-1].stdout)))
    found = rows(system, trace, done)
    parameters = {"system": system, "file": trace.name}
    for key in ("read_seconds", "analyse_seconds", "write_seconds"):
        samples = [part[key] for part in parts]
        found.append(result(key.removesuffix("_seconds") + "_time", "s", parameters, samples))
    samples = [part["events"] / part["analyse_seconds"] for part in parts]
    found.append(result("analysis_rate", "events/s", parameters, samples))
    return found


def report(trace: Path, repeat: int) -> list[Result]:
    """Time `analyzer report` on a store that holds `trace`."""
    analyzer = str(Path(sys.executable).parent / "analyzer")
    with tempfile.TemporaryDirectory(dir=DATA) as folder:
        store = str(Path(folder) / "store.duckdb")
        measure("hostbound", trace, [analyzer, "ingest", str(trace), "--db", store, "--json"])
        command = [analyzer, "report", "--db", store]
        done = [measure("hostbound report", trace, command) for _ in range(repeat)]
    parameters = {"system": "hostbound report", "file": trace.name}
    return [
        result("wall_time", "s", parameters, [one.seconds for one in done]),
        result("peak_memory", "MB", parameters, [one.peak_mb for one in done]),
    ]


def run_record(value: Any) -> dict[str, Any]:
    """Return the (only) run in the answer of `analyzer ingest --json`."""
    if isinstance(value, dict) and "analyse_seconds" in value:
        return value
    for item in value.values() if isinstance(value, dict) else value:
        if isinstance(item, dict | list) and (found := run_record(item)):
            return found
    return {}


def hta_python() -> Path:
    """Return the interpreter of HTA's own environment, installed on first use."""
    folder = DATA / "hta-venv"
    python = folder / "bin" / "python"
    stamp = folder / ".installed"
    if not stamp.is_file():
        say("installing HolisticTraceAnalysis ...")
        shutil.rmtree(folder, ignore_errors=True)
        venv.create(folder, with_pip=True)
        pip = [str(python), "-m", "pip", "install", "-qq", "HolisticTraceAnalysis"]
        subprocess.run(pip, check=True)
        stamp.touch()
    return python


# ---- measuring ----------------------------------------------------------------------------------


def measure(
    system: str,
    trace: Path,
    command: list[str],
    variables: dict[str, str] | None = None,
    limit: float | None = None,
) -> Measured:
    """Run a command; return its wall time and the peak resident memory that the kernel counted.

    The peak of a child starts at what its parent held when it forked, so this process stays small.
    """
    say(f"{system} on {trace.name}")
    with tempfile.TemporaryFile() as out:
        started = time.perf_counter()
        process = subprocess.Popen(
            command, stdout=out, stderr=subprocess.PIPE, env={**os.environ, **(variables or {})}
        )
        errors: list[bytes] = []
        assert process.stderr is not None
        reader = threading.Thread(target=lambda: errors.append(process.stderr.read()), daemon=True)
        reader.start()
        timer = threading.Timer(limit, process.kill) if limit else None
        if timer:
            timer.start()
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - started
        process.returncode = os.waitstatus_to_exitcode(status)
        timed_out = timer is not None and not timer.is_alive()
        if timer:
            timer.cancel()
        reader.join(timeout=5)
        out.seek(0)
        stdout = out.read().decode(errors="replace")
    if not timed_out and process.returncode not in (0, 1):
        message = b"".join(errors).decode(errors="replace")
        raise SystemExit(f"{command[0]} ended with {process.returncode}:\n{message}")
    peak_mb = usage.ru_maxrss * 1024 / 1e6
    say(f"  {seconds:.1f} s, {peak_mb:,.0f} MB{', stopped' if timed_out else ''}")
    return Measured(seconds, peak_mb, stdout, timed_out)


def rows(
    system: str, trace: Path, done: list[Measured], limit: float | None = None
) -> list[Result]:
    """Return wall time, MB/s and peak memory; a run that was stopped has a limit and no samples."""
    parameters: dict[str, Any] = {"system": system, "file": trace.name}
    stopped = any(one.timed_out for one in done)
    if stopped:
        parameters["stopped_after_s"] = limit
    seconds = [] if stopped else [one.seconds for one in done]
    megabytes = trace.stat().st_size / 1e6
    return [
        result("wall_time", "s", parameters, seconds),
        result("throughput", "MB/s", parameters, [megabytes / s for s in seconds]),
        result("peak_memory", "MB", parameters, [] if stopped else [one.peak_mb for one in done]),
    ]


def last_json(stdout: str) -> dict[str, Any]:
    return json.loads(stdout.strip().splitlines()[-1])


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
