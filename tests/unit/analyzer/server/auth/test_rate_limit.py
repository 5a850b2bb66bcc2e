"""How often one client may ask, by a clock that the test moves."""

from __future__ import annotations

import pytest

from analyzer.server.auth import rate_limit
from analyzer.server.auth.rate_limit import RateLimit


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_burst_goes_through_then_the_rate_holds() -> None:
    clock = Clock()
    kept = RateLimit(2.0, 5.0, clock)

    assert [kept.take("a") for _ in range(10)] == [0.0] * 10
    assert kept.take("a") == pytest.approx(0.5)
    clock.now += 0.5
    assert kept.take("a") == 0.0
    assert kept.take("a") > 0


def test_one_clients_haste_is_not_anothers() -> None:
    kept = RateLimit(1.0, 1.0, Clock())

    assert kept.take("a") == 0.0
    assert kept.take("a") > 0
    assert kept.take("b") == 0.0


def test_many_clients_take_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rate_limit, "_MOST_KEPT", 100)
    kept = RateLimit(1.0, 1.0, Clock())

    for i in range(1_000):
        kept.take(f"client {i}")

    assert len(kept._buckets) <= 100
