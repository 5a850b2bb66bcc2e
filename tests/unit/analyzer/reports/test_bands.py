"""The bands of HDBI: every value lies in one, and they meet."""

from __future__ import annotations

from itertools import pairwise

import pytest

from analyzer.reports.bands import BANDS, reading


@pytest.mark.parametrize(
    ("hdbi", "expected"),
    [
        (0.0, "host-bound"),
        (0.399, "host-bound"),
        (0.4, "balanced"),
        (0.599, "balanced"),
        (0.6, "device-bound"),
        (1.0, "device-bound"),
        (None, "unknown"),
    ],
)
def test_a_value_on_a_limit_is_of_the_band_above(hdbi: float | None, expected: str) -> None:
    assert reading(hdbi) == expected


def test_bands_reach_from_0_to_1_without_a_gap() -> None:
    assert (BANDS[0].least, BANDS[-1].below) == (0.0, 1.0)
    assert all(one.below == two.least for one, two in pairwise(BANDS))
