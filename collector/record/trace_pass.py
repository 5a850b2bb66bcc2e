"""Passes under a profiler: the timed trace, the graph capture's trace, the execution trace.

Each pass is one request (prefill and decode steps, annotated) and writes a file; memory holds one
request's events. What a pass perturbs is said in PERTURBS and goes into the manifest.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter_ns
from typing import Any

import torch

from collector.calibration import calibrate
from collector.workloads.base import Workload
from schemas.run_directory import CAPTURE_ANNOTATION, DECODE_ANNOTATION, PREFILL_ANNOTATION

PERTURBS = {
    "latency": "nothing: no profiler; each step ends with a read-back of its tokens",
    "trace": "host time: Kineto records every operator with its shapes and every CUDA call",
    "stacks": "host time, much more than the trace pass: Python frames are recorded too",
    "capture": "host time: the profiler records the capture; nothing in it is a latency",
    "execution_trace": "host time, far more than the trace pass: used for schemas and scalars only",
    "replay": "each op alone and synchronised under the profiler: launch cost, not throughput",
}


def activities(device: str) -> list[torch.profiler.ProfilerActivity]:
    """CPU, and CUDA where the device is one."""
    found = [torch.profiler.ProfilerActivity.CPU]
    if device.startswith("cuda"):
        found.append(torch.profiler.ProfilerActivity.CUDA)
    return found


def run_request(workload: Workload, new_tokens: int, annotate: bool) -> list[int]:
    """One request; returns each step's host wall time in ns."""
    walls: list[int] = []
    for number in range(new_tokens):
        name = f"{PREFILL_ANNOTATION}#0" if number == 0 else f"{DECODE_ANNOTATION}#{number - 1}"
        mark = torch.profiler.record_function(name) if annotate else nullcontext()
        began = perf_counter_ns()
        with mark:
            workload.prefill() if number == 0 else workload.decode()
        walls.append(perf_counter_ns() - began)
    return walls


@dataclass(frozen=True)
class TraceTimes:
    """What was measured around one trace, in ns.

    Attributes:
        profiled: Host wall time of each step of the profiled request.
        unprofiled: The same of the request just before it.
        host_speed: Calibrations just before and just after both.
    """

    profiled: list[int]
    unprofiled: list[int]
    host_speed: list[int]


def record(
    workload: Workload, new_tokens: int, device: str, path: Path, stacks: bool = False
) -> TraceTimes:
    """Record one request into a Kineto trace at `path` (.json), after one without profiler."""
    unprofiled_request(workload, min(new_tokens, 2), device)  # wakes CPU and GPU; does not count
    before = calibrate()
    unprofiled = unprofiled_request(workload, new_tokens, device)
    profile, profiled = profiled_request(workload, new_tokens, device, stacks)
    after = calibrate()
    profile.export_chrome_trace(str(path))
    return TraceTimes(profiled, unprofiled, [before, after])


def unprofiled_request(workload: Workload, new_tokens: int, device: str) -> list[int]:
    """Run one request without profiler; returns each step's host wall time in ns."""
    walls = run_request(workload, new_tokens, annotate=False)
    _synchronise(device)
    return walls


def warm_up(workload: Workload, new_tokens: int, device: str, stacks: bool) -> None:
    """Profile one request and drop it: the first one in a process also sets the profiler up."""
    profiled_request(workload, new_tokens, device, stacks)


def profiled_request(
    workload: Workload, new_tokens: int, device: str, stacks: bool
) -> tuple[torch.profiler.profile, list[int]]:
    """Run one request under the profiler; returns its events and each step's host wall time."""
    with torch.profiler.profile(
        activities=activities(device), record_shapes=True, with_stack=stacks
    ) as profile:
        walls = run_request(workload, new_tokens, annotate=True)
        _synchronise(device)
    return profile, walls


def record_capture(capture: Callable[[], Any], device: str, path: Path) -> None:
    """Record the capture of a runtime's graphs into a Kineto trace at `path`."""
    with torch.profiler.profile(activities=activities(device), record_shapes=True) as profile:
        with torch.profiler.record_function(f"{CAPTURE_ANNOTATION}#0"):
            capture()
        _synchronise(device)
    profile.export_chrome_trace(str(path))


def record_execution_trace(workload: Workload, new_tokens: int, device: str, path: Path) -> None:
    """Record one request into a PyTorch execution trace at `path` (.json)."""
    observer = torch.profiler.ExecutionTraceObserver()
    observer.register_callback(str(path))
    try:
        observer.start()
        run_request(workload, new_tokens, annotate=False)
        _synchronise(device)
        observer.stop()
    finally:
        observer.unregister_callback()


def _synchronise(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize()
