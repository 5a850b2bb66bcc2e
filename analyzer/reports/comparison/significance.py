"""Is a change shown by the recordings, or may it be noise?

Steps of one recording are no independent measurements: neighbours share what the host did at that
moment. So they are dealt into contiguous blocks, and blocks are drawn with replacement (block
bootstrap: Efron and Tibshirani, An Introduction to the Bootstrap, chapters 6 and 8). Of runs that
were recorded interleaved the pairs of traces are drawn. The draws have a fixed seed: the same runs
give the same answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np
from numpy.typing import NDArray

CONFIDENCE = 0.98  # 1 % on each side: at most two of a hundred comparisons of equals fail
FEWEST = 6  # blocks or pairs; fewer give no interval
# Few and long: a host's speed holds for seconds, and blocks must be as good as independent.
BLOCKS = 12
_DRAWS = 4000
_SEED = 2603

Draws = NDArray[np.float64]  # a figure as each draw has it


@dataclass(frozen=True)
class Shown:
    """What the recordings speak for: bounds of a relative change."""

    low: float
    high: float
    units: str  # how many of what: pairs of traces, or blocks of steps

    @property
    def smallest(self) -> float:
        """The smallest change that so many units can show."""
        return (self.high - self.low) / 2


def of_pairs(ratios: Sequence[float]) -> Shown | None:
    """Bounds of the median change over pairs; None if they are too few."""
    if len(ratios) < FEWEST:
        return None
    medians = np.median(_drawn(np.asarray(ratios, float), _generator(0)), axis=1)
    return _bounds(medians - 1, f"{len(ratios)} pairs of traces")


def of_medians(before: Sequence[float], after: Sequence[float]) -> Shown | None:
    """Bounds of the relative change between the medians of blocks; None for too few of them."""
    if min(len(before), len(after)) < FEWEST or 0 in before:
        return None
    one, two = (
        np.median(_drawn(np.asarray(values, float), _generator(side)), axis=1)
        for side, values in enumerate((before, after))
    )
    return _bounds(two / one - 1, f"{len(before)} and {len(after)} blocks of steps")


def block_medians(traces: Sequence[Sequence[int]]) -> list[float]:
    """The median time of each contiguous block of steps, ns.

    Args:
        traces: The times of a phase's steps in their order, by recording.
    """
    size = max(-(-sum(map(len, traces)) // BLOCKS), 1)
    return [
        float(median(times[i : i + size])) for times in traces for i in range(0, len(times), size)
    ]


def _drawn(values: Draws, generator: np.random.Generator) -> Draws:
    return values[generator.integers(0, len(values), (_DRAWS, len(values)))]


def _generator(side: int) -> np.random.Generator:
    return np.random.default_rng((_SEED, side))


def _bounds(values: Draws, units: str) -> Shown:
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(values, (tail, 1 - tail))
    return Shown(float(low), float(high), units)
