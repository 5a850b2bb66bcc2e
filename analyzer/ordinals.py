"""Small ordinals for values that repeat: faster than sorting all of them."""

from __future__ import annotations

import numpy as np

from analyzer.intervals import Ints


def ordinals(values: Ints) -> tuple[Ints, Ints]:
    """The distinct values, sorted, and for each value its place among them."""
    distinct = np.unique(values)
    if len(distinct) and int(distinct[-1]) - int(distinct[0]) < 4 * len(values) + 1024:
        # A table of all values between least and greatest is small: look up instead of searching.
        table = np.zeros(int(distinct[-1]) - int(distinct[0]) + 1, np.int64)
        table[distinct - distinct[0]] = np.arange(len(distinct))
        return distinct, table[values - distinct[0]]
    return distinct, np.searchsorted(distinct, values)
