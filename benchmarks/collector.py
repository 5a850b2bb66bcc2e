"""Records the reference workloads on a GPU host; what that costs, beside a bare profiler.

Each workload is one `collector record` in a process of its own; its run directory stays under
--out. The peer is `torch.profiler` around the same steps, nothing else. Results go to
`benchmarks/results/collector-<device>-<date>.json` and, as a table, to stdout.

Usage: python benchmarks/collector.py --out runs [--only NAME ...] [--seconds 540]
"""

from __future__ import annotations

import argparse
import gzip
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from result_file import Result, environment, print_table, result, write

COMMON = ["--new-tokens", "5", "--warmup", "5"]
GPT2 = [*COMMON, "--latency-runs", "30", "--trace-runs", "3", "--replay-runs", "100"]
LARGE = [*COMMON, "--latency-runs", "10", "--trace-runs", "1", "--replay-runs", "60"]
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
PEER = """
import sys, time, resource, os, tempfile, torch
from collector import models, trace_pass, workloads
with torch.inference_mode():
    model = models.load("gpt2", "bf16", sys.argv[1], 0, "sdpa")
    ids = workloads.prompt_ids(model, 1, 512, 0, None)
    workload, _ = workloads.make(model, "eager", ids, 5, sys.argv[1])
    for _ in range(5):
        trace_pass.run_request(workload, 5, annotate=False)
    bare = [w for _ in range(10) for w in trace_pass.run_request(workload, 5, annotate=False)]
    kinds = trace_pass.activities(sys.argv[1])
    with torch.profiler.profile(activities=kinds, record_shapes=True) as p:
        walls = trace_pass.run_request(workload, 5, annotate=False)
    path = os.path.join(tempfile.mkdtemp(), "trace.json.gz")
    p.export_chrome_trace(path)
import json
print(json.dumps({"bare": bare, "profiled": walls, "trace": path,
                  "peak_rss": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}))
"""
_MEASURED = (
    "import resource, subprocess, sys; code = subprocess.call(sys.argv[1:]); "
    "print('peak', resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024); sys.exit(code)"
)


def record(name: str, options: list[str], out: Path, device: str) -> list[Result]:
    """Record one workload; returns its result rows."""
    target = out / name
    command = [sys.executable, "-m", "collector.cli", "record", *options]
    command += ["--device", device, "--out", str(target), "--name", name]
    began = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", _MEASURED, *command], capture_output=True, text=True, check=False
    )
    seconds = time.perf_counter() - began
    if done.returncode:
        sys.stderr.write(f"{name}: {done.stderr[-800:]}\n")
        return []
    peak = next(
        int(line.split()[1]) for line in done.stdout.splitlines() if line.startswith("peak")
    )
    parameters = {"system": "hostbound", "workload": name}
    rows = [
        result("record_seconds", "s", parameters, [seconds]),
        result("peak_rss", "bytes", parameters, [peak]),
    ]
    return rows + run_rows(target, parameters)


def run_rows(target: Path, parameters: dict[str, Any]) -> list[Result]:
    """What a run directory says of its own recording."""
    manifest = json.loads((target / "manifest.json").read_text())
    latency = json.loads((target / "latency.json").read_text())
    rows: list[Result] = []
    walls = [t["step_wall_ns"] for t in manifest["traces"] if t["role"] == "trace"]
    for phase, samples in (
        ("prefill", [w[0] for w in walls]),
        ("decode", [w for one in walls for w in one[1:]]),
    ):
        step = {**parameters, "phase": phase}
        rows.append(result("step_profiled", "ns", step, samples))
        rows.append(result("step_unprofiled", "ns", step, latency["steps"][phase]))
    replay_path = target / "kernel_replay.json"
    if replay_path.is_file():
        ops = json.loads(replay_path.read_text())["ops"]
        rows.append(result("distinct_op_calls", "count", parameters, [len(ops)]))
        rows.append(
            result("not_replayed", "count", parameters, [sum(bool(o["reason"]) for o in ops)])
        )
        floors = json.loads((target / "null_kernel.json").read_text())["floors"]
        for floor in floors:
            api = {"launch_api": floor["launch_api"], "definition": floor["definition"]}
            rows.append(result("launch_floor", "ns", {**parameters, **api}, floor["samples_ns"]))
    return rows + size_rows(sorted(target.glob("trace*.json.gz")), parameters)


def size_rows(traces: list[Path], parameters: dict[str, Any]) -> list[Result]:
    """Bytes of compressed traces, in all and for each kernel in them."""
    size = sum(path.stat().st_size for path in traces)
    kernels = sum(gzip.decompress(path.read_bytes()).count(b'"cat": "kernel"') for path in traces)
    rows = [result("trace_bytes", "bytes", {**parameters, "compressed": True}, [size])]
    if kernels:
        rows.append(result("trace_bytes_per_kernel", "bytes", parameters, [size / kernels]))
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


def main() -> int:
    """Record what fits into the time, in order of value."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("runs"))
    parser.add_argument("--only", nargs="*", default=None)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--seconds", type=float, default=540.0)
    parser.add_argument("--label", default="h200", help="device, in the result file's name")
    args = parser.parse_args()
    host = environment("torch", "transformers", "triton", "orjson")
    deadline = time.monotonic() + args.seconds
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
        write("collector", args.label, host, results)
    print_table(results)
    return 0


if __name__ == "__main__":
    sys.exit(main())
