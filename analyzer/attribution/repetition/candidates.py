"""Where a sequence might be cut: stretches that occur equally often stand at the same place of each
repetition, so each number of occurrences is one candidate.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from analyzer.attribution.intervals import Ints
from analyzer.attribution.repetition.sequence import FEWEST_REPETITIONS

_GRAM_LENGTHS = (1, 4, 16)
_MOST_CANDIDATES = 16  # for each length of stretch
_BASE = np.uint64(0x9E3779B97F4A7C15)


def candidates(token: Ints) -> Iterator[Ints]:
    """Places of a stretch, for each number of times that many stretches occur."""
    seen: set[tuple[int, int]] = set()
    length, value = 1, token.astype(np.uint64)
    while length <= _GRAM_LENGTHS[-1] and len(value) >= FEWEST_REPETITIONS:
        if length in _GRAM_LENGTHS:
            for places in _regular(value):
                key = (len(places), int(places[1] - places[0]))
                if key not in seen:
                    seen.add(key)
                    yield places
        value = (value[:-length] * _BASE) ^ (value[length:] + (value[:-length] >> np.uint64(29)))
        length *= 2


def _regular(value: np.ndarray) -> Iterator[Ints]:
    """For each number of occurrences, places of the value that recurs most evenly."""
    _, of_place, times = np.unique(value, return_inverse=True, return_counts=True)
    order = np.argsort(of_place, kind="stable")
    begin = np.cumsum(times) - times
    gaps = np.diff(order, prepend=0).astype(float)
    gaps[begin] = 0
    total = np.add.reduceat(gaps, begin)
    squares = np.add.reduceat(gaps * gaps, begin)
    often = np.flatnonzero(times >= FEWEST_REPETITIONS)
    if not len(often):
        return
    mean = total[often] / (times[often] - 1)
    uneven = squares[often] / (times[often] - 1) / (mean * mean)
    rank = np.lexsort((uneven, times[often]))
    numbers, at, weight = np.unique(times[often][rank], return_index=True, return_counts=True)
    share = weight * numbers
    for i in np.argsort(-share, kind="stable")[:_MOST_CANDIDATES].tolist():
        chosen = int(often[rank[at[i]]])
        yield order[begin[chosen] : begin[chosen] + times[chosen]]
