"""Traces of a few events, written by hand: with and without a GPU, and with a hostile name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def event(name: str, category: str, start_us: float, dur_us: float, **args: Any) -> dict[str, Any]:
    """One Kineto event; on a stream if it is a kernel's."""
    device = category == "kernel"
    return {
        "ph": "X", "cat": category, "name": name, "ts": start_us, "dur": dur_us,
        "pid": 0 if device else 1, "tid": 7 if device else 1, "args": args,
    }  # fmt: skip


CPU_EVENTS = [
    event("aten::linear", "cpu_op", 100, 300),
    event("aten::addmm", "cpu_op", 120, 260),
    event("aten::relu", "cpu_op", 500, 100),
]
HOSTILE = (
    "<script>alert(1)</script> **bold** [x](http://example.invalid) $a$ :red[x] `q` \"'" + "é" * 400
)
GPU_EVENTS = [
    *CPU_EVENTS,
    event("cuLaunchKernelEx", "cuda_driver", 300, 40, correlation=1),
    event(HOSTILE, "kernel", 350, 300, correlation=1, device=0, stream=7),
    event("cudaLaunchKernel", "cuda_runtime", 540, 20, correlation=2),
    event("elementwise_x", "kernel", 660, 40, correlation=2, device=0, stream=7),
]


def written(path: Path, events: list[dict[str, Any]]) -> Path:
    """A trace file."""
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}), encoding="utf-8")
    return path
