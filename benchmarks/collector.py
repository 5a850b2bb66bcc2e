"""Records the reference workloads on a GPU host; what that costs, beside a bare profiler.

Part `workloads`: each is one `collector record` in a process of its own; its run directory stays
under --out. The peer is `torch.profiler` around the same steps, nothing else.

Part `repeat`: one workload again and again, each time in a fresh process. Do two recordings of the
same thing agree? With `--interleaved` there are two, variants that are the same, in one process,
trace by trace.

Part `batches`: the prefill of GPT-2 by batch, logits of every position, all batches interleaved:
does T_Orchestration follow the batch, and where does HDBI pass one half?

T_Orchestration, match tiers and kernel sequences need the analyzer. Where it is not installed,
bring --out to a machine that has it and run the same command with --analyse there.

Results go to `benchmarks/results/collector-<device>-<date>.json`, or `collector-repeat-...`,
`collector-interleaved-...` and `collector-batches-...`, and as a table to stdout.

Usage: python -m benchmarks.collector --out runs [--only NAME ...] [--seconds 540]
       python -m benchmarks.collector --part repeat --out runs [--seconds 150] [--times 4]
       python -m benchmarks.collector --part repeat --interleaved --out runs [--traces 40]
       python -m benchmarks.collector --part batches --out runs [--seconds 200] [--traces 40]
       python -m benchmarks.collector [--part PART] [--interleaved] --out runs --analyse
"""

from __future__ import annotations

import argparse
import gzip
import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.collector_analyse import batch_rows, repeat_rows, replay_rows
from benchmarks.result_file import Result, environment, print_table, result, write

COMMON = ["--new-tokens", "5", "--warmup", "5"]
GPT2 = [*COMMON, "--latency-runs", "30", "--trace-runs", "3", "--replay", "100"]
LARGE = [*COMMON, "--latency-runs", "10", "--trace-runs", "1", "--replay", "60"]
WORKLOADS: dict[str, list[str]] = {
    **{
        f"gpt2-bs{n}-s512": ["--model", "gpt2", "--batch-size", str(n), *GPT2]
        for n in (1, 8, 2, 4, 16)
    },
    "gpt2-bs1-s512-again": ["--model", "gpt2", *GPT2],
    "llama-3.2-1b-bs1-s512": ["--model", "llama-3.2-1b", *LARGE],
    "llama-2-7b-bs1-s512": ["--model", "llama-2-7b", *LARGE],
    "olmoe-bs1-s512-grouped_mm": ["--model", "olmoe-1b-7b", "--experts", "grouped_mm", *LARGE],
    "olmoe-bs1-s512-eager": ["--model", "olmoe-1b-7b", "--experts", "eager", *LARGE],
}
# Few requests without profiler and no kernel replay: a process start and a model load take most of
# the time as it is.
REPEAT = [*COMMON[:2], "--model", "gpt2", "--warmup", "10", "--latency-runs", "10"]
REPEAT += ["--trace-runs", "5", "--replay", "off"]
TWICE = ["--mode", "eager", "--mode", "eager"]
# One decode step, so that many traces stay small; a round of all takes some three seconds.
BATCH = ["--model", "gpt2", "--all-logits", "--new-tokens", "2", "--warmup", "10"]
BATCH += ["--latency-runs", "10", "--replay", "off"]
BATCHES = (1, 2, 4, 8, 16)
REPEAT_COST_S = 24.0  # a recording of REPEAT
PEER = """
import sys, time, resource, os, tempfile, torch
from collector.record import trace_pass
from collector.workloads import make, models
with torch.inference_mode():
    model = models.load("gpt2", "bf16", sys.argv[1], 0, "sdpa")
    ids = make.prompt_ids(model, 1, 512, 0, None)
    workload, _ = make.make(model, "eager", ids, 5, sys.argv[1])
    for _ in range(5):
        trace_pass.run_request(workload, 5, annotate=False)
    unprofiled = [w for _ in range(10) for w in trace_pass.run_request(workload, 5, annotate=False)]
    kinds = trace_pass.activities(sys.argv[1])
    with torch.profiler.profile(activities=kinds, record_shapes=True) as p:
        walls = trace_pass.run_request(workload, 5, annotate=False)
    path = os.path.join(tempfile.mkdtemp(), "trace.json.gz")
    p.export_chrome_trace(path)
import json
print(json.dumps({"unprofiled": unprofiled, "profiled": walls, "trace": path,
                  "peak_rss": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}))
"""
_MEASURED = (
    "import resource, subprocess, sys; code = subprocess.call(sys.argv[1:]); "
    "print('peak', resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024); sys.exit(code)"
)


def record(
    name: str, options: list[str], out: Path, device: str, limit_s: float | None = None
) -> list[Result]:
    """Record one workload; returns its result rows, none if it failed or took too long."""
    rows, targets = recorded_by(name, options, out / name, device, limit_s)
    return rows + [row for path in targets for row in run_rows(path, row_name(name))]


def row_name(workload: str) -> dict[str, Any]:
    return {"system": "hostbound", "workload": workload}


def recorded_by(
    name: str, options: list[str], target: Path, device: str, limit_s: float | None
) -> tuple[list[Result], list[Path]]:
    """Run one `collector record`; returns what it cost, and the run directories that it made."""
    command = [sys.executable, "-m", "collector.cli", "record", *options]
    command += ["--device", device, "--out", str(target), "--name", name]
    began = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-c", _MEASURED, *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # so that the recording ends with the process that measures it
    )
    try:
        stdout, stderr = process.communicate(timeout=limit_s)
    except BaseException as error:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if not isinstance(error, subprocess.TimeoutExpired):
            raise
        sys.stderr.write(f"{name}: not done after {limit_s:.0f} s\n")
        return [], []
    seconds = time.perf_counter() - began
    if process.returncode:
        sys.stderr.write(f"{name}: {stderr[-800:]}\n")
        return [], []
    *made, peak = stdout.split("\n")[:-1]
    rows = [
        result("record_seconds", "s", row_name(name), [seconds]),
        result("peak_rss", "bytes", row_name(name), [int(peak.split()[1])]),
    ]
    return rows, [Path(path) for path in made]


def run_rows(target: Path, parameters: dict[str, Any]) -> list[Result]:
    """What a run directory says of its own recording."""
    manifest = json.loads((target / "manifest.json").read_text())
    latency = json.loads((target / "latency.json").read_text())
    rows: list[Result] = []
    traces = [t for t in manifest["traces"] if t["role"] == "trace"]
    for key, metric in (
        ("step_wall_ns", "step_profiled"),
        ("unprofiled_step_wall_ns", "step_unprofiled_beside"),
    ):
        walls = [t[key] for t in traces if t.get(key)]
        rows += by_phase(metric, parameters, walls) if walls else []
    for phase in ("prefill", "decode"):
        step = {**parameters, "phase": phase}
        rows.append(result("step_unprofiled", "ns", step, latency["steps"][phase]))
    if speed := manifest.get("host_speed"):
        of_traces = [ns for t in traces for ns in t.get("host_speed_ns") or ()]
        for during, samples in (
            ("traces", of_traces),
            ("latency", speed["latency_ns"]),
            ("floor", speed["floor_ns"] or []),
        ):
            rows.append(result("host_speed", "ns", {**parameters, "during": during}, samples))
    replay_path = target / "kernel_replay.json"
    if replay_path.is_file():
        ops = json.loads(replay_path.read_text())["ops"]
        rows.append(result("distinct_op_calls", "count", parameters, [len(ops)]))
        rows.append(
            result("not_replayed", "count", parameters, [sum(bool(o["reason"]) for o in ops)])
        )
    if (target / "null_kernel.json").is_file():
        floors = json.loads((target / "null_kernel.json").read_text())["floors"]
        for floor in floors:
            api = {"launch_api": floor["launch_api"], "definition": floor["definition"]}
            rows.append(result("launch_floor", "ns", {**parameters, **api}, floor["samples_ns"]))
    return rows + size_rows(sorted(target.glob("trace*.json.gz")), parameters)


def by_phase(metric: str, parameters: dict[str, Any], walls: list[list[int]]) -> list[Result]:
    """Times of the first step of each trace, and of all later ones."""
    return [
        result(metric, "ns", {**parameters, "phase": "prefill"}, [w[0] for w in walls]),
        result(
            metric, "ns", {**parameters, "phase": "decode"}, [w for one in walls for w in one[1:]]
        ),
    ]


def size_rows(traces: list[Path], parameters: dict[str, Any]) -> list[Result]:
    """Bytes of each trace, compressed and not, and compressed for each kernel in it."""
    packed = [path.stat().st_size for path in traces]
    plain = [gzip.decompress(path.read_bytes()) for path in traces]
    kernels = [text.count(b'"cat": "kernel"') for text in plain]
    rows = [
        result("trace_bytes", "bytes", {**parameters, "compressed": True}, packed),
        result("trace_bytes", "bytes", {**parameters, "compressed": False}, [*map(len, plain)]),
    ]
    if all(kernels):
        each = [size / n for size, n in zip(packed, kernels, strict=True)]
        rows.append(result("trace_bytes_per_kernel", "bytes", parameters, each))
    return rows


def peer(device: str) -> list[Result]:
    """The bare profiler around the same steps of GPT-2."""
    done = subprocess.run(
        [sys.executable, "-c", PEER, device], capture_output=True, text=True, check=False
    )
    if done.returncode:
        sys.stderr.write(f"peer: {done.stderr[-800:]}\n")
        return []
    found = json.loads(done.stdout.splitlines()[-1])
    parameters = {"system": "torch.profiler", "workload": "gpt2-bs1-s512"}
    return [
        result("step_profiled", "ns", {**parameters, "phase": "decode"}, found["profiled"][1:]),
        result("step_profiled", "ns", {**parameters, "phase": "prefill"}, found["profiled"][:1]),
        *size_rows([Path(found["trace"])], parameters),
        result("peak_rss", "bytes", parameters, [found["peak_rss"]]),
    ]


def repeat(
    out: Path, device: str, times: int, deadline: float, options: list[str] = REPEAT
) -> list[Result]:
    """Record the same workload `times` times in fresh processes; as many as there is time for."""
    rows: list[Result] = []
    for number in range(1, times + 1):
        left = deadline - time.monotonic()
        if number > 2 and left < REPEAT_COST_S:
            sys.stderr.write(f"no time left for recordings {number} to {times}\n")
            break
        limit_s = max(left, 2 * REPEAT_COST_S)
        found = record(f"repeat-{number}", options, out, device, limit_s)
        if not found:
            break
        rows += found
        sys.stderr.write(f"repeat-{number} done\n")
    return rows


def interleaved(
    out: Path, device: str, traces: int, deadline: float, options: list[str] = REPEAT
) -> list[Result]:
    """Record the same workload twice in one process, trace by trace."""
    more = [*options, "--trace-runs", str(traces), *TWICE]
    limit_s = max(deadline - time.monotonic(), 1.0)
    rows, targets = recorded_by("interleaved", more, out, device, limit_s)
    for path in targets:
        rows += run_rows(path, row_name(path.name))
    return rows + pair_rows(*targets) if targets else rows


def batches(
    out: Path,
    device: str,
    traces: int,
    deadline: float,
    options: list[str] = BATCH,
    sizes: Sequence[int] = BATCHES,
) -> list[Result]:
    """Record a workload with several batch sizes, interleaved; pairs are those of the first two."""
    more = [*options, "--trace-runs", str(traces)]
    more += [text for size in sizes for text in ("--batch-size", str(size))]
    limit_s = max(deadline - time.monotonic(), 1.0)
    rows, made = recorded_by("batches", more, out, device, limit_s)
    targets = [path.rename(out / f"batches-{n}") for path, n in zip(made, sizes, strict=False)]
    for path in targets:
        rows += run_rows(path, row_name(path.name))
    return rows + pair_rows(*targets[:2]) if targets else rows


def pair_rows(one: Path, other: Path) -> list[Result]:
    """What pairs of traces say without the analyzer: their ratios of steps and of host speeds."""
    sides: list[list[dict[str, Any]]] = []
    for run in (one, other):
        manifest = json.loads((run / "manifest.json").read_text())
        sides.append([t for t in manifest["traces"] if t["role"] == "trace"])
    pairs = list(zip(*sides, strict=False))
    of = {"system": "hostbound", "recordings": f"{one.name}, {other.name}"}
    speeds = [median(b["host_speed_ns"]) / median(a["host_speed_ns"]) for a, b in pairs]
    rows = [result("host_speed_paired_ratio", "ratio", of, speeds)]
    for key, metric in (
        ("step_wall_ns", "step_profiled_paired_ratio"),
        ("unprofiled_step_wall_ns", "step_unprofiled_paired_ratio"),
    ):
        for phase, steps in (("prefill", slice(1)), ("decode", slice(1, None))):
            samples = [median(b[key][steps]) / median(a[key][steps]) for a, b in pairs]
            rows.append(result(metric, "ratio", {**of, "phase": phase}, samples))
    return rows


def recorded(args: argparse.Namespace, kind: str) -> Iterator[list[Result]]:
    """All rows so far, each time that something is recorded."""
    deadline = time.monotonic() + args.seconds
    if kind == "workloads":
        yield from workloads(args, deadline)
    elif kind == "repeat":
        rows = repeat(args.out, args.device, args.times, deadline)
        if deadline - time.monotonic() > REPEAT_COST_S:
            rows += peer(args.device)
        yield rows
    else:
        record_all = interleaved if kind == "interleaved" else batches
        yield record_all(args.out, args.device, args.traces, deadline)


def workloads(args: argparse.Namespace, deadline: float) -> Iterator[list[Result]]:
    """Record what fits into the time, in order of value."""
    results: list[Result] = []
    chosen = {k: v for k, v in WORKLOADS.items() if args.only is None or k in args.only}
    steps = [*chosen.items()]
    for number, (name, options) in enumerate(steps):
        if time.monotonic() > deadline:
            sys.stderr.write(f"no time left for {', '.join(n for n, _ in steps[number:])}\n")
            break
        results += record(name, options, args.out, args.device)
        if number == 0:
            results += peer(args.device)
        sys.stderr.write(f"{name} done\n")
        yield results


def part(args: argparse.Namespace) -> list[Result]:
    """Record, unless that is done; analyse where the analyzer is."""
    kind = "interleaved" if args.part == "repeat" and args.interleaved else args.part
    label = "collector" if kind == "workloads" else f"collector-{kind}"
    path = args.out / f"{kind}.json"
    if not args.analyse:
        args.out.mkdir(parents=True, exist_ok=True)
        host = environment("torch", "transformers", "triton", "orjson")
        for rows in recorded(args, kind):
            path.write_text(json.dumps({"environment": host, "results": [asdict(r) for r in rows]}))
    if not path.is_file():
        sys.exit(f"{path} is not there: record the part {args.part} first, without --analyse")
    found = json.loads(path.read_text())
    rows = [Result(**row) for row in found["results"]]
    names = WORKLOADS if kind == "workloads" else [p.name for p in args.out.glob(f"{kind}-*")]
    runs = sorted(
        args.out / name for name in names if (args.out / name / "manifest.json").is_file()
    )
    if len(runs) < (1 if kind == "workloads" else 2):
        sys.stderr.write(f"{len(runs)} recordings: nothing to compare\n")
    elif importlib.util.find_spec("duckdb") is None:
        sys.stderr.write(f"no analyzer here: take {args.out} to one and add --analyse\n")
    else:
        analyse = {"workloads": replay_rows, "batches": batch_rows}.get(kind, repeat_rows)
        rows += analyse(runs)
    write(label, args.label, found["environment"], rows)
    return rows


def main() -> int:
    """Run one part."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--part", choices=("workloads", "repeat", "batches"), default="workloads")
    parser.add_argument("--out", type=Path, default=Path("runs"))
    parser.add_argument("--only", nargs="*", default=None, help="of the part workloads")
    parser.add_argument("--times", type=int, default=4, help="recordings of the part repeat")
    parser.add_argument(
        "--interleaved", action="store_true", help="repeat: two in one process, interleaved"
    )
    parser.add_argument("--traces", type=int, default=40, help="of each interleaved variant")
    parser.add_argument("--analyse", action="store_true", help="what is recorded already")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--seconds", type=float, default=None, help="time for the part")
    parser.add_argument("--label", default="h200", help="device, in the result file's name")
    args = parser.parse_args()
    default_s = {
        "workloads": 540.0,
        "repeat": 100.0 if args.interleaved else 150.0,
        "batches": 200.0,
    }
    args.seconds = args.seconds or default_s[args.part]
    print_table(part(args))
    return 0


if __name__ == "__main__":
    sys.exit(main())
