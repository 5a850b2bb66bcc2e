"""The token ring: where the host finds the tokens that queued steps leave behind.

A step writes its token to the place of its number; a place that was not written yet holds -1.
Times are milliseconds.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from .errors import HybridError
from .generator import Activity
from .state.buffers import RING, Buffers
from .streams import Streams

_EVENTS = 64


class TokenRing:
    """The ring of a host that needs not wait: on the CPU a step has run when its call returns.

    Attributes:
        token_ms: Smoothed time between two tokens outside of captures, 0 where it is not known.
        stalls: Tokens that came late during a capture.
    """

    def __init__(self, b: Buffers) -> None:
        self._b, self._array = b, b.ring_array
        self._base = self._used = 0
        self.token_ms = 0.0
        self.stalls = 0

    def begin(self) -> int:
        """Begin a request behind the places of the one before; return the place of step 0."""
        self._base = (self._base + self._used) % RING
        self._used = 0
        return self._base

    def expect(self, step: int) -> None:
        """Empty the place of a step that is about to be enqueued."""
        self._used = step + 1
        self._array[self._place(step)] = -1

    def enqueued(self, step: int) -> None:
        """Note that a step was enqueued on the current stream."""

    def receive(self, step: int, check: Callable[[], None]) -> int:
        """Return the token of a step, waited for.

        Args:
            check: Called now and then while waiting; may raise to end it.

        Raises:
            HybridError: The device has nothing left to do and wrote no token.
        """
        check()
        return int(self._array[self._place(step)])

    def _place(self, step: int) -> int:
        return (self._base + step) % RING


class CopiedRing(TokenRing):
    """A ring in device memory; each token is copied to the host, and an event says when."""

    def __init__(self, b: Buffers) -> None:
        super().__init__(b)
        self._events = [torch.cuda.Event() for _ in range(_EVENTS)]

    def enqueued(self, step: int) -> None:
        place = self._place(step)
        self._b.host_ring[place : place + 1].copy_(
            self._b.ring[place : place + 1], non_blocking=True
        )
        self._events[place % _EVENTS].record()

    def receive(self, step: int, check: Callable[[], None]) -> int:
        check()
        place = self._place(step)
        self._events[place % _EVENTS].synchronize()
        return int(self._array[place])


class PolledRing(TokenRing):
    """A ring in pinned host memory that the sampling kernel writes: read until a token is there."""

    def __init__(self, b: Buffers, streams: Streams, activity: Activity, run_ahead: int) -> None:
        super().__init__(b)
        self._streams, self._activity, self._run_ahead = streams, activity, run_ahead
        self._arrived = 0.0

    def receive(self, step: int, check: Callable[[], None]) -> int:
        array, activity, place = self._array, self._activity, self._place(step)
        capturing = False
        spins = 0
        while array[place] < 0:
            spins += 1
            if activity.capturing:
                capturing = True
                time.sleep(0)  # hand over the interpreter lock: the capture needs it too
            if not spins % 256:
                check()
                if not spins % 65536 and self._streams.is_drained() and array[place] < 0:
                    raise HybridError(
                        "the device finished its queue without writing a token; reset the engine"
                    )
        self._time(step, capturing)
        check()
        return int(array[place])

    def _time(self, step: int, capturing: bool) -> None:
        now = time.perf_counter()
        gap_ms, self._arrived = (now - self._arrived) * 1e3, now
        # The first gaps are not steady: those steps were queued behind the prefill.
        if step <= self._run_ahead + 1:
            return
        if capturing and self.token_ms and gap_ms > 1.5 * self.token_ms:
            self.stalls += 1
        elif not capturing:
            self.token_ms = 0.9 * self.token_ms + 0.1 * gap_ms if self.token_ms else gap_ms
