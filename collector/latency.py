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

from collector.turns import ALONE, LATENCY, Alone, Turns
from collector.workloads import Workload

# Requests of one turn.
BLOCK = 5


def measure(
    workload: Workload,
    new_tokens: int,
    warmup: int,
    requests: int,
    device: str,
    tick: Callable[[int], None] = lambda number: None,
    seat: Turns | Alone = ALONE,
) -> dict[str, Any]:
    """Run requests one after the other; returns what `latency.json` holds.

    Args:
        tick: Called after each request, with the number of them that are done, warm-up included.
        seat: With turns, the requests are run in blocks, each after one that does not count.
    """
    for number in range(warmup):
        _request(workload, new_tokens, device)
        tick(number + 1)
    samples: list[dict[str, Any]] = []
    prefill: list[int] = []
    decode: list[int] = []
    block = BLOCK if seat.is_shared else requests
    for first in range(0, requests, block):
        with seat.turn(LATENCY):
            if seat.is_shared:
                _request(workload, new_tokens, device)
            for number in range(first, min(first + block, requests)):
                ttft, *gaps = _request(workload, new_tokens, device)
                tick(warmup + number + 1)
                prefill.append(ttft)
                decode += gaps
                total = ttft + sum(gaps)
                samples.append({"ttft_ns": ttft, "itl_ns": gaps, "total_ns": total})
    return {
        "definition": "host clock around steps that end with the token's value in host memory; "
        "no profiler",
        "warmup": warmup,
        "requests": samples,
        "steps": {"prefill": prefill, "decode": decode},
    }


def _request(workload: Workload, new_tokens: int, device: str) -> list[int]:
    """Times in ns from one token to the next; to the first one from the beginning."""
    if device.startswith("cuda"):
        torch.cuda.synchronize()
    times = [perf_counter_ns()]
    workload.prefill()
    times.append(perf_counter_ns())
    for _ in range(new_tokens - 1):
        workload.decode()
        times.append(perf_counter_ns())
    return [after - before for before, after in pairwise(times)]
