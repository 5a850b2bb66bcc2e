"""Pairs of traces on a host that wanders between two speeds, as in decision 0007: a simulation."""

from __future__ import annotations

import random
from collections.abc import Callable
from statistics import median, quantiles

import pytest

from analyzer.reports.comparison import paired
from analyzer.reports.records import RunFigures
from tests.support.records import figures_of

TRACES = 15
STEPS = 4


def wandering(
    chance: random.Random, slow_s: float, fast_s: float, seconds: int
) -> Callable[[float], float]:
    """How long things take at a time, from a host that stays at a speed for so long on average."""
    changes, is_slow, now = [], chance.random() < slow_s / (slow_s + fast_s), 0.0
    while now < seconds:
        changes.append((now, 1.0 if is_slow else 0.65))
        now += chance.expovariate(1 / (slow_s if is_slow else fast_s))
        is_slow = not is_slow
    return lambda when: [factor for since, factor in changes if since <= when][-1]


def figures(own: str, variant: int, costs_ns: list[list[int]]) -> RunFigures:
    """What a comparison needs of a run whose traces have these decode steps."""
    manifest = {
        "run_id": own, "name": own, "created_at": "", "mode": "eager", "schema_version": 1,
        "traces": [], "group": {"id": "a group", "variant": variant, "variants": 2},
    }  # fmt: skip
    return figures_of(manifest, "decode", costs_ns)


@pytest.mark.parametrize(("slow_s", "fast_s"), [(20, 5), (5, 5), (60, 60)])
def test_ratios_of_pairs_hold_where_medians_of_both_runs_do_not(
    slow_s: float, fast_s: float
) -> None:
    """A trace a second, interleaved, 5 % of noise; the second run takes 1.1 times as long."""
    off_of_pairs: list[float] = []
    off_of_medians: list[float] = []
    off_one_after_the_other: list[float] = []
    for seed in range(300):
        chance = random.Random(seed)
        host = wandering(chance, slow_s, fast_s, 120)

        def trace(
            when: float,
            slower: float,
            host: Callable[[float], float] = host,
            chance: random.Random = chance,
        ) -> list[int]:
            cost = 1e7 * host(when) * slower * chance.lognormvariate(0, 0.05)
            return [round(cost * chance.lognormvariate(0, 0.02)) for _ in range(STEPS)]

        a = [trace(2 * k, 1.0) for k in range(TRACES)]
        b = [trace(2 * k + 1, 1.1) for k in range(TRACES)]
        later = [trace(60 + k, 1.1) for k in range(TRACES)]
        found = paired.ratios(figures("a", 1, a), figures("b", 2, b))
        assert found is not None
        ratio = found.phases["decode"].orchestration
        cost_a, cost_b, cost_later = (median(c for t in run for c in t) for run in (a, b, later))
        off_of_pairs.append(abs(ratio / 1.1 - 1))
        off_of_medians.append(abs(cost_b / cost_a / 1.1 - 1))
        off_one_after_the_other.append(abs(cost_later / cost_a / 1.1 - 1))

    def in_nine_of_ten(off: list[float]) -> float:
        return quantiles(off, n=10)[-1]

    assert in_nine_of_ten(off_of_pairs) < 0.06
    assert in_nine_of_ten(off_one_after_the_other) > 0.25
    if slow_s == fast_s == 5:  # half of the time at each speed: the median is at either
        assert in_nine_of_ten(off_of_medians) > 0.2


@pytest.mark.parametrize(
    ("count", "least", "largest"),
    [(5, 1, 5), (10, 2, 9), (15, 4, 12), (40, 15, 26), (2000, 963, 1038)],
)
def test_the_interval_of_a_median_is_that_of_the_binomial_table(
    count: int, least: int, largest: int
) -> None:
    values = [float(n) for n in range(count, 0, -1)]

    assert paired.interval(values) == (least, largest)


@pytest.mark.parametrize("values", [[], [1.0], [1.0] * 4])
def test_too_few_pairs_have_no_interval(values: list[float]) -> None:
    assert paired.interval(values) is None


def test_the_interval_holds_the_median_as_often_as_it_says() -> None:
    """Of a skewed distribution whose median is 1; by chance it may hold it more often."""
    chance = random.Random(1)
    held = 0
    for _ in range(2000):
        found = paired.interval([chance.lognormvariate(0, 0.5) for _ in range(15)])
        assert found is not None
        held += found[0] <= 1 <= found[1]

    assert 0.9 <= held / 2000 < 0.98
