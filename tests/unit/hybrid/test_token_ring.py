"""The token ring: waiting for tokens that another writes."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("torch")

from hybrid import Cancelled, HybridError
from hybrid.generator import Activity
from hybrid.state.buffers import RING
from hybrid.streams import HostStreams
from hybrid.token_ring import PolledRing, TokenRing


def no_check() -> None:
    return None


def buffers():
    return SimpleNamespace(ring_array=np.full(RING, -1, dtype=np.int32))


def test_a_request_begins_behind_the_places_of_the_one_before():
    b = buffers()
    ring = TokenRing(b)
    assert ring.begin() == 0
    for step in range(3):
        ring.expect(step)
    assert ring.begin() == 3
    ring.expect(0)
    b.ring_array[3] = 17
    assert ring.receive(0, no_check) == 17


def test_a_ring_goes_round():
    ring = TokenRing(buffers())
    ring.expect(RING - 2)
    assert ring.begin() == RING - 1
    ring.expect(0)
    assert ring.begin() == 0


def test_a_device_that_ends_without_a_token_is_an_error_not_a_wait():
    ring = PolledRing(buffers(), HostStreams(), Activity(), run_ahead=4)
    ring.begin()
    ring.expect(0)
    with pytest.raises(HybridError, match="without writing a token"):
        ring.receive(0, no_check)


def test_a_wait_can_be_cancelled():
    def cancelled() -> None:
        raise Cancelled

    ring = PolledRing(buffers(), HostStreams(), Activity(capturing=True), run_ahead=4)
    ring.begin()
    ring.expect(0)
    with pytest.raises(Cancelled):
        ring.receive(0, cancelled)


def test_a_token_that_comes_late_during_a_capture_is_a_stall(monkeypatch):
    """Step 6 sets the pace, 1 ms; step 7 takes 2 ms and is waited for beside a capture."""
    clock = iter([1.000, 1.001, 1.003])
    monkeypatch.setattr("hybrid.token_ring.time.perf_counter", lambda: next(clock))
    b, activity = buffers(), Activity()
    ring = PolledRing(b, HostStreams(), activity, run_ahead=4)
    ring.begin()
    b.ring_array[5:8] = 7
    ring.receive(5, no_check)
    ring.receive(6, no_check)
    assert ring.token_ms == pytest.approx(1.0)

    activity.capturing = True
    b.ring_array[7] = -1
    monkeypatch.setattr("hybrid.token_ring.time.sleep", lambda _: b.ring_array.__setitem__(7, 7))
    ring.receive(7, no_check)
    assert (ring.stalls, ring.token_ms) == (1, pytest.approx(1.0))
