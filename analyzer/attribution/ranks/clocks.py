"""The clocks of ranks, told by the ends of their collectives, and which collectives are pairs.

A synchronising collective ends on all its ranks at one moment: the median difference of ends is
the offset of two clocks, and what remains its error. What does not fit is no pair. Ours; see
docs/measurement.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from analyzer.attribution.decomposition import percentile
from analyzer.attribution.intervals import Bools, Ints
from analyzer.attribution.ranks.collectives import Collectives

LEAST_TOLERANCE_NS = 50_000  # ends of a pair may differ by that, or by a tenth of the shorter one
LEAST_GOOD_SHARE = 0.9  # of collectives, below which nothing is said of waits


@dataclass
class Clock:
    """The clock of a rank against that of the first rank with collectives.

    Attributes:
        reference: Place of the rank that it is known through.
        offset_ns: What it shows less what the first's shows; None if they share no collective.
        error_ns: 95 % of what remains between ends is at most that; of a rank that is known through
            others the sum.
        pairs: Collectives shared with the rank that it is known through.
        good_pairs: Of them, real pairs.
    """

    reference: int
    offset_ns: int | None = None
    error_ns: int | None = None
    pairs: int = 0
    good_pairs: int = 0


@dataclass(frozen=True)
class Alignment:
    """Clocks of the ranks, and collectives on the common clock.

    Attributes:
        clocks: By place of the rank; the first's offset is 0.
        start, end: Of each collective, on the first's clock.
        shared: Collectives that several ranks have.
        good: Of them, those that are one collective; the others' waits are unknown.
        worst_ns: Largest difference of ends among those that are none.
    """

    clocks: list[Clock]
    start: Ints
    end: Ints
    shared: Bools
    good: Bools
    worst_ns: int

    @property
    def good_share(self) -> float | None:
        """The part of shared collectives that are pairs; None if none is shared."""
        return float(self.good.sum() / self.shared.sum()) if self.shared.any() else None


def align(found: Collectives, ranks: int) -> Alignment:
    """Find the offset of each rank's clock, and judge which collectives are pairs."""
    order = np.lexsort((found.member, found.instance))
    first_of = _first_of_instance(found.instance, order)
    mine = np.flatnonzero(first_of != np.arange(len(first_of)))  # with a partner before them
    edges: dict[tuple[int, int], tuple[int, int, Ints]] = {}
    key = found.member[first_of[mine]] * ranks + found.member[mine]
    for pair in np.unique(key).tolist():
        at = mine[key == pair]
        difference = found.end[at] - found.end[first_of[at]]
        offset = exact_median(difference)
        error = percentile(np.abs(difference - offset), 95)
        edges[divmod(pair, ranks)] = (offset, error, at)
    clocks = _spread(edges, ranks)
    offset = np.array([clock.offset_ns or 0 for clock in clocks], np.int64)[found.member]
    known = np.array([clock.offset_ns is not None for clock in clocks])[found.member]
    start, end = found.start - offset, found.end - offset
    number = int(found.instance.max(initial=-1)) + 1
    members = np.bincount(found.instance, minlength=number)
    shared = (members > 1)[found.instance]
    last_start = _by_instance(np.maximum, found.instance, start, number)
    first_end = _by_instance(np.minimum, found.instance, end, number)
    last_end = _by_instance(np.maximum, found.instance, end, number)
    shortest = _by_instance(np.minimum, found.instance, end - start, number)
    tolerance = np.maximum(shortest // 10, LEAST_TOLERANCE_NS)
    fits = (last_start < first_end) & (last_end - first_end <= tolerance)
    fits &= _by_instance(np.minimum, found.instance, found.name, number) == _by_instance(
        np.maximum, found.instance, found.name, number
    )
    fits &= _by_instance(np.minimum, found.instance, known.astype(np.int64), number) > 0
    good = shared & fits[found.instance]
    for rank, clock in enumerate(clocks):
        pair = edges.get((min(rank, clock.reference), max(rank, clock.reference)))
        if pair and clock.offset_ns is not None:
            clock.pairs, clock.good_pairs = len(pair[2]), int(good[pair[2]].sum())
    apart = (last_end - first_end)[found.instance[shared & ~good]]
    return Alignment(clocks, start, end, shared, good, int(apart.max(initial=0)))


def exact_median(values: Ints) -> int:
    """The median, of two middle values the mean, half to even; integers of any size."""
    ordered = np.sort(values)
    low, high = int(ordered[(len(ordered) - 1) // 2]), int(ordered[len(ordered) // 2])
    return round(Fraction(low + high, 2))


def _first_of_instance(instance: Ints, order: Ints) -> Ints:
    """For each collective the entry of its lowest rank."""
    ordered = instance[order]
    first = order[np.searchsorted(ordered, ordered)]
    result = np.empty(len(order), np.int64)
    result[order] = first
    return result


def _by_instance(how: np.ufunc, instance: Ints, values: Ints, number: int) -> Ints:
    start = np.iinfo(np.int64).min if how is np.maximum else np.iinfo(np.int64).max
    result = np.full(number, start, np.int64)
    how.at(result, instance, values)
    return result


def _spread(edges: dict[tuple[int, int], tuple[int, int, Ints]], ranks: int) -> list[Clock]:
    """Offsets to the first rank with collectives, along the edges with the least error."""
    reference = min((low for low, _ in edges), default=0)
    clocks = [Clock(reference) for _ in range(ranks)]
    clocks[reference] = Clock(reference, 0, 0)
    while True:
        best: tuple[int, int, int, int] | None = None
        for (low, high), (offset, error, _) in edges.items():
            for here, there, sign in ((low, high, 1), (high, low, -1)):
                one = clocks[here]
                if one.offset_ns is None or clocks[there].offset_ns is not None:
                    continue
                found = ((one.error_ns or 0) + error, there, one.offset_ns + sign * offset, here)
                best = min(best, found) if best else found
        if best is None:
            return clocks
        error, there, offset, here = best
        clocks[there] = Clock(here, offset, error)
