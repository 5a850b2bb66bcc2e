"""Reads a Kineto trace of our own making: launches, kernels and ops of each marked sample.

Small traces of synchronised samples only; the analyzer reads everybody's. Times are integer
nanoseconds from the decimal text: a double would lose some.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

_CALLS = ("cuda_runtime", "cuda_driver")


@dataclass
class Launch:
    """One launch call with its kernel; `op` is the innermost op around it."""

    api: str
    start: int
    end: int
    kernel: str
    kernel_start: int
    kernel_end: int
    grid: list[int] | None
    block: list[int] | None
    shared_memory: int | None
    op: dict[str, Any] | None
    outermost_start: int | None


@dataclass
class Sample:
    """One marked sample: the label after the prefix, and its launches in order."""

    label: str
    start: int
    end: int
    launches: list[Launch] = field(default_factory=list[Launch])


def ns(text: str) -> int:
    """Microseconds in decimal text as nanoseconds."""
    return int((Decimal(text) * 1000).to_integral_value())


def read(path: Path, prefix: str) -> Iterator[Sample]:
    """Yield the samples marked by annotations that begin with `prefix`, in order of time."""
    document = json.loads(path.read_text(encoding="utf-8"), parse_float=str, parse_int=str)
    samples: list[Sample] = []
    ops: list[tuple[int, int, dict[str, Any]]] = []
    calls: dict[str, tuple[int, int, str]] = {}
    kernels: list[dict[str, Any]] = []
    for event in document["traceEvents"]:
        if event.get("ph") != "X":
            continue
        category = event.get("cat")
        if category == "kernel":
            kernels.append(event)
            continue
        if category not in ("user_annotation", "cpu_op", *_CALLS):
            continue
        start = ns(event["ts"])
        end = start + ns(event["dur"])
        if category == "user_annotation":
            if event["name"].startswith(prefix):
                samples.append(Sample(event["name"][len(prefix) :], start, end))
        elif category == "cpu_op":
            ops.append((start, end, event))
        elif "correlation" in event["args"]:
            calls[event["args"]["correlation"]] = (start, end, event["name"])
    samples.sort(key=lambda sample: sample.start)
    ops.sort(key=lambda op: (op[0], -op[1]))
    op_starts = [op[0] for op in ops]
    starts = [sample.start for sample in samples]
    for kernel in kernels:
        args = kernel["args"]
        call = calls.get(args.get("correlation", "0"))
        if call is None:
            continue
        index = bisect_right(starts, call[0]) - 1
        if index < 0 or call[0] >= samples[index].end:
            continue
        inner, outer_start = _around(ops, op_starts, call[0], samples[index].start)
        kernel_start = ns(kernel["ts"])
        samples[index].launches.append(
            Launch(
                api=call[2],
                start=call[0],
                end=call[1],
                kernel=kernel["name"],
                kernel_start=kernel_start,
                kernel_end=kernel_start + ns(kernel["dur"]),
                grid=_ints(args.get("grid")),
                block=_ints(args.get("block")),
                shared_memory=int(args["shared memory"]) if "shared memory" in args else None,
                op=inner,
                outermost_start=outer_start,
            )
        )
    for sample in samples:
        sample.launches.sort(key=lambda launch: launch.start)
        yield sample


def _around(
    ops: list[tuple[int, int, dict[str, Any]]], starts: list[int], time: int, since: int
) -> tuple[dict[str, Any] | None, int | None]:
    """Innermost op around a time, and the start of the outermost one, within a sample."""
    inner: dict[str, Any] | None = None
    outermost: int | None = None
    index = bisect_right(starts, time) - 1
    while index >= 0 and ops[index][0] >= since:
        if ops[index][1] > time:
            inner = inner or ops[index][2]
            outermost = ops[index][0]
        index -= 1
    return inner, outermost


def _ints(value: Any) -> list[int] | None:
    return [int(v) for v in value] if value is not None else None
