"""Latency without the profiler: TTFT, ITL and each step's wall time, in raw samples.

TTFT: from token ids in host memory to the first token's value in host memory. ITL: every gap
between tokens. Host clock, integer nanoseconds; warm-up requests are run and left out.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from time import perf_counter_ns

import torch

from collector.calibration import calibrate
from collector.workloads.base import Workload
from schemas.measurements import Latency, LatencyRequest

DEFINITION = "host clock around steps that end with the token's value in host memory; no profiler"
# Calibrations of the host's speed among the requests.
SPEEDS = 10


class LatencyPass:
    """Requests of one workload without profiler, taken in as many blocks as one likes.

    Args:
        requests: How many will count in all; every so many of them the host is calibrated.
        tick: Called after each request that was run by `warm_up` or `take`.
    """

    def __init__(
        self,
        workload: Workload,
        new_tokens: int,
        device: str,
        requests: int,
        tick: Callable[[], None] = lambda: None,
    ) -> None:
        self.speeds_ns: list[int] = []
        self._workload = workload
        self._new_tokens = new_tokens
        self._device = device
        self._every = max(requests // SPEEDS, 1)
        self._tick = tick
        self._warmup = 0
        self._requests: list[LatencyRequest] = []

    def warm_up(self, requests: int) -> None:
        """Run requests that do not count, before all others."""
        for _ in range(requests):
            self._request()
            self._tick()
        self._warmup += requests

    def settle(self) -> None:
        """Run one request that does not count: the one after those of another workload."""
        self._request()

    def take(self, requests: int) -> None:
        """Run requests that count."""
        for _ in range(requests):
            ttft, *gaps = self._request()
            self._tick()
            if len(self._requests) % self._every == 0:
                self.speeds_ns.append(calibrate())
            self._requests.append(LatencyRequest(ttft, gaps, ttft + sum(gaps)))

    def measured(self) -> Latency:
        """Return what was measured so far."""
        steps = {
            "prefill": [request.ttft_ns for request in self._requests],
            "decode": [gap for request in self._requests for gap in request.itl_ns],
        }
        return Latency(DEFINITION, self._warmup, self._requests, steps)

    def _request(self) -> list[int]:
        """Times in ns from one token to the next; to the first one from the beginning."""
        if self._device.startswith("cuda"):
            torch.cuda.synchronize()
        times = [perf_counter_ns()]
        self._workload.prefill()
        times.append(perf_counter_ns())
        for _ in range(self._new_tokens - 1):
            self._workload.decode()
            times.append(perf_counter_ns())
        return [after - before for before, after in pairwise(times)]
