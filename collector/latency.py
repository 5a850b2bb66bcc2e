"""Latency without the profiler: TTFT, ITL and each step's wall time, in raw samples.

TTFT: from token ids in host memory to the first token's value in host memory. ITL: every gap
between tokens. Host clock, integer nanoseconds; warm-up requests are run and left out.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from time import perf_counter_ns
from typing import Any

import torch

from collector.workloads import Workload


def measure(
    workload: Workload,
    new_tokens: int,
    warmup: int,
    requests: int,
    device: str,
    tick: Callable[[int], None] = lambda number: None,
) -> dict[str, Any]:
    """Run requests one after the other; returns what `latency.json` holds.

    Args:
        tick: Called after each request, with the number of them that are done, warm-up included.
    """
    samples: list[dict[str, Any]] = []
    prefill: list[int] = []
    decode: list[int] = []
    for number in range(warmup + requests):
        if device.startswith("cuda"):
            torch.cuda.synchronize()
        began = perf_counter_ns()
        workload.prefill()
        times = [perf_counter_ns()]
        for _ in range(new_tokens - 1):
            workload.decode()
            times.append(perf_counter_ns())
        tick(number + 1)
        if number < warmup:
            continue
        gaps = [b - a for a, b in pairwise(times)]
        prefill.append(times[0] - began)
        decode += gaps
        samples.append({"ttft_ns": times[0] - began, "itl_ns": gaps, "total_ns": times[-1] - began})
    return {
        "definition": "host clock around steps that end with the token's value in host memory; "
        "no profiler",
        "warmup": warmup,
        "requests": samples,
        "steps": {"prefill": prefill, "decode": decode},
    }
