"""Is a change shown by the recordings, or may it be noise?

Steps of one recording are no independent measurements: neighbours share what the host did at that
moment. So they are dealt into contiguous blocks, and blocks are drawn with replacement (block
bootstrap: Efron and Tibshirani, An Introduction to the Bootstrap, chapters 6 and 8), in each phase
for itself. Of runs that were recorded interleaved the pairs of traces are drawn. The draws have a
fixed seed: the same runs give the same answer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from analyzer.queries.costs import Step

CONFIDENCE = 0.98  # 1 % on each side: at most two of a hundred comparisons of equals fail
FEWEST = 6  # blocks, requests or pairs; fewer give no interval
_BLOCKS = 40
_DRAWS = 4000
_SEED = 2603

Draws = NDArray[np.float64]  # a figure as each draw has it


@dataclass(frozen=True)
class Shown:
    """What the recordings speak for: bounds of a relative change or of a value."""

    low: float
    high: float
    unit: str  # pairs of traces | requests | traces | blocks of steps
    before: int  # units of the base
    after: int  # units of the other run

    @property
    def smallest(self) -> float:
        """The smallest change that so many units can show."""
        return (self.high - self.low) / 2


def of_pairs(ratios: Sequence[float]) -> Shown | None:
    """Bounds of the median change over pairs; None if they are too few."""
    if len(ratios) < FEWEST:
        return None
    medians = np.median(_drawn(np.asarray(ratios, float), _generator(0)), axis=1)
    return _bounds(medians - 1, "pairs of traces", len(ratios), len(ratios))


def of_medians(before: Sequence[float], after: Sequence[float], unit: str) -> Shown | None:
    """Bounds of the relative change between two medians; None if a side is too small."""
    if min(len(before), len(after)) < FEWEST or 0 in before:
        return None
    one, two = (
        np.median(_drawn(np.asarray(values, float), _generator(side)), axis=1)
        for side, values in enumerate((before, after))
    )
    return _bounds(two / one - 1, unit, len(before), len(after))


class Resampled:
    """A run's steps, drawn again and again in blocks; figures as each draw has them.

    Args:
        steps: Of one run, in order of time.
        side: Two sides of a comparison draw independently.
    """

    def __init__(self, steps: Sequence[Step], side: int) -> None:
        phases: dict[str, list[Step]] = {}
        for step in steps:
            phases.setdefault(step.phase, []).append(step)
        self._strata = [_blocks(own) for own in phases.values()]
        self.blocks = min((len(blocks) for blocks in self._strata), default=0)
        generator = _generator(side)
        self._draws = [
            generator.integers(0, len(blocks), (_DRAWS, len(blocks))) for blocks in self._strata
        ]

    def mean(self, get: Callable[[Step], int | None]) -> Draws | None:
        """The mean step's figure; None where a step's is unknown or the blocks are too few."""
        sums = self.sum(get)
        return None if sums is None else sums / self._count()

    def sum(self, get: Callable[[Step], int | None]) -> Draws | None:
        """A figure summed over all steps; None as `mean`."""
        if self.blocks < FEWEST:
            return None
        total = np.zeros(_DRAWS)
        for blocks, draws in zip(self._strata, self._draws, strict=True):
            values = [[get(step) for step in block] for block in blocks]
            if any(value is None for block in values for value in block):
                return None
            of_blocks = np.asarray([sum(v or 0 for v in block) for block in values], float)
            total += of_blocks[draws].sum(axis=1)
        return total

    def median(self, get: Callable[[Step], int | None]) -> Draws | None:
        """The median over blocks of their median step; None as `mean`."""
        if self.blocks < FEWEST or len(self._strata) != 1:
            return None
        values = [[get(step) for step in block] for block in self._strata[0]]
        if any(value is None for block in values for value in block):
            return None
        of_blocks = np.asarray([np.median(np.asarray(block, float)) for block in values])
        return np.median(of_blocks[self._draws[0]], axis=1)

    def _count(self) -> Draws:
        count = np.zeros(_DRAWS)
        for blocks, draws in zip(self._strata, self._draws, strict=True):
            count += np.asarray([len(block) for block in blocks], float)[draws].sum(axis=1)
        return count


def bounds_of(values: Draws, before: int, after: int) -> Shown:
    """Bounds of a figure that draws of blocks of steps gave."""
    return _bounds(values, "blocks of steps", before, after)


def _blocks(steps: Sequence[Step]) -> list[list[Step]]:
    """The steps of a phase as contiguous blocks within traces, at most about forty."""
    traces: dict[int, list[Step]] = {}
    for step in steps:
        traces.setdefault(step.trace_id, []).append(step)
    size = max(-(-len(steps) // _BLOCKS), 1)
    return [own[i : i + size] for own in traces.values() for i in range(0, len(own), size)]


def _drawn(values: Draws, generator: np.random.Generator) -> Draws:
    return values[generator.integers(0, len(values), (_DRAWS, len(values)))]


def _generator(side: int) -> np.random.Generator:
    return np.random.default_rng((_SEED, side))


def _bounds(values: Draws, unit: str, before: int, after: int) -> Shown:
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(values, (tail, 1 - tail))
    return Shown(float(low), float(high), unit, before, after)
