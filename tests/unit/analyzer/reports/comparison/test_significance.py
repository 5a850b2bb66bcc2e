"""A change is shown where the recordings speak for it, and noise is not."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from analyzer.reports.comparison.significance import FEWEST, block_medians, of_medians, of_pairs


def noisy(level: float, spread: float, n: int, seed: int) -> list[float]:
    dice = random.Random(seed)
    return [level * dice.gauss(1, spread) for _ in range(n)]


def test_too_few_units_give_no_bounds() -> None:
    assert of_pairs([1.0] * (FEWEST - 1)) is None
    assert of_medians([1.0] * FEWEST, [1.0] * (FEWEST - 1)) is None


def test_equal_pairs_show_no_change_and_leave_none_open() -> None:
    shown = of_pairs([1.0] * 20)

    assert shown is not None
    assert (shown.low, shown.high, shown.smallest) == (0, 0, 0)


@pytest.mark.parametrize("change", [1.0, 1.05, 0.9])
def test_bounds_hold_the_change_that_was_made(change: float) -> None:
    before, after = noisy(100, 0.02, 40, 3), noisy(100 * change, 0.02, 40, 4)

    shown = of_medians(before, after)

    assert shown is not None
    assert shown.low < change - 1 < shown.high
    assert (shown.low > 0) == (change == 1.05)
    assert (shown.high < 0) == (change == 0.9)


def test_noise_is_seldom_taken_for_a_change() -> None:
    wrong = sum(
        shown is not None and shown.low > 0
        for seed in range(200)
        if (shown := of_pairs(noisy(1, 0.05, 20, seed)))
    )

    assert wrong <= 6


def test_blocks_are_contiguous_within_recordings() -> None:
    assert block_medians([[1, 3], [5]]) == [1, 3, 5]
    assert block_medians([list(range(24)), [100]]) == [*range(1, 24, 3), 100]


def test_the_same_recordings_give_the_same_bounds() -> None:
    values = noisy(1, 0.05, 30, 3)

    assert of_pairs(values) == of_pairs(values)


@given(st.lists(st.floats(0.5, 2), min_size=FEWEST, max_size=60))
def test_bounds_lie_within_what_was_seen(ratios: list[float]) -> None:
    shown = of_pairs(ratios)

    assert shown is not None
    assert min(ratios) - 1 - 1e-9 <= shown.low <= shown.high <= max(ratios) - 1 + 1e-9
