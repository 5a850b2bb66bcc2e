"""Make the sample runs of `analyzer/samples` from traces recorded on one NVIDIA H200.

    python -m benchmarks.make_samples ../shared/traces/h200

Each run directory holds a trace, byte for byte as it was recorded, and a manifest with what is
known of the recording and nothing else. What was not measured (kernel replay, null kernel,
latency) is absent. The same traces give the same files: ids are taken from a trace's hash, times
from the trace itself.
"""

from __future__ import annotations

import argparse
import gzip
import re
import shutil
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path

from schemas.manifest import Environment, Manifest, TraceFile
from schemas.run_directory import MANIFEST, TRACE, file_sha256

SAMPLES = Path(__file__).resolve().parent.parent / "analyzer" / "samples"

ENVIRONMENT = Environment(
    cpu="Intel Xeon Processor",
    cpu_count=16,
    gpu="NVIDIA H200",
    gpu_count=1,
    gpu_memory_bytes=150109880320,
    driver="580",
    versions={
        "python": "3.12",
        "torch": "2.11.0+cu130",
        "transformers": "5.17.0",
        "cuda_runtime": "13.0",
        "cuda_driver": "13.0",
    },
)
COMMON_NOTE = (
    "Random weights of the real sizes (GPT-2 124M), one forward of 512 tokens, SDPA, "
    "record_shapes=True; the host is a 16-core virtual machine. Recorded with torch.profiler "
    "alone: no kernel replay, no launch floor and no un-profiled latency were measured."
)


@dataclass(frozen=True)
class Sample:
    """One run: its name, the trace it is made from, and what is special about it."""

    name: str
    trace: str
    mode: str
    batch_size: int
    steps: int
    step_annotation: str
    notes: tuple[str, ...] = ()


RUNS = [
    Sample("gpt2-prefill-bs1-s512", "gpt2-prefill-bs1-s512", "eager", 1, 3, "step#*"),
    Sample("gpt2-prefill-bs2-s512", "gpt2-prefill-bs2-s512", "eager", 2, 1, "step#*"),
    Sample("gpt2-prefill-bs8-s512", "gpt2-prefill-bs8-s512", "eager", 8, 1, "step#*"),
    Sample(
        "gpt2-prefill-bs1-s512-graph",
        "gpt2-prefill-bs1-s512-graph-capture-and-replay",
        "foreign",
        1,
        3,
        "graph_replay#*",
        (
            "The eager model captured by hand into one CUDA graph, then replayed three times. The "
            "capture (annotation graph_capture) is in the same trace and is no step.",
        ),
    ),
    Sample(
        "gpt2-prefill-bs1-s512-compile",
        "gpt2-prefill-bs1-s512-compile-default",
        "compile",
        1,
        3,
        "step#*",
        ("torch.compile with its default mode: Triton kernels launched by cuLaunchKernel.",),
    ),
]


def recorded_at(trace: Path) -> str:
    """Return when the profiler's first event was recorded (UTC), as the trace itself says."""
    with gzip.open(trace, "rt", encoding="utf-8") as stream:
        head = stream.read(1 << 16)
    base = re.search(r'"baseTimeNanoseconds":\s*(\d+)', head)
    first = re.search(r'"ts":\s*(\d+)', head)
    if base is None or first is None:
        raise SystemExit(
            f"{trace} has no baseTimeNanoseconds or no event; it is not one of these traces."
        )
    moment = datetime.fromtimestamp(int(base[1]) // 10**9, timezone.utc)
    moment += timedelta(microseconds=int(first[1]))
    return moment.isoformat(timespec="seconds").replace("+00:00", "Z")


def make(sample: Sample, source: Path) -> Path:
    """Write one run directory; the manifest comes last."""
    trace = source / f"{sample.trace}.json.gz"
    digest = file_sha256(trace)
    run_dir = SAMPLES / sample.name
    shutil.rmtree(run_dir, ignore_errors=True)
    run_dir.mkdir(parents=True)
    shutil.copyfile(trace, run_dir / TRACE)
    manifest = Manifest(
        run_id=digest[:32],
        name=sample.name,
        created_at=recorded_at(trace),
        mode=sample.mode,
        traces=[TraceFile(TRACE, perturbs="every call and op is timed by torch.profiler")],
        model="gpt2",
        attention="sdpa",
        dtype="bfloat16",
        device="cuda",
        batch_size=sample.batch_size,
        prompt_len=512,
        phases=[{"phase": "prefill", "steps": sample.steps}],
        step_annotation=[sample.step_annotation],
        environment=ENVIRONMENT,
        files={TRACE: digest},
        notes=[*sample.notes, COMMON_NOTE],
    )
    (run_dir / MANIFEST).write_text(manifest.to_json(), encoding="utf-8")
    return run_dir


def main() -> None:
    parser = argparse.ArgumentParser(description="Make the sample runs from recorded H200 traces.")
    parser.add_argument("source", type=Path, help="folder with gpt2-prefill-*.json.gz")
    source = parser.parse_args().source
    for sample in RUNS:
        run_dir = make(sample, source)
        size = sum(path.stat().st_size for path in run_dir.iterdir())
        print(f"{run_dir.name:34} {size / 1e3:6.0f} kB")


if __name__ == "__main__":
    main()
