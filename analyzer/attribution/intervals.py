"""Sets of half-open intervals in integer nanoseconds, as sorted arrays. Nothing here knows of
traces; of `analyzer.trace` only compiled code is used.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from analyzer.trace import native_scanner
from analyzer.trace.columns import ordinals

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


def union(start: Ints, end: Ints) -> tuple[Ints, Ints]:
    """Merge intervals; empty ones vanish. Returns sorted, disjoint (starts, ends)."""
    some = end > start
    start, end = start[some], end[some]
    if not len(start):
        return start, end
    order = np.argsort(start, kind="stable")
    start, reach = start[order], np.maximum.accumulate(end[order])
    first = np.concatenate(([True], start[1:] > reach[:-1]))
    last = np.concatenate((first[1:], [True]))
    return start[first], reach[last]


def distinct(times: Ints) -> Ints:
    """The distinct values, sorted; by sorting, as times seldom repeat."""
    # Several sorted arrays one after the other are the usual case, which this kind merges.
    ordered = np.sort(times, kind="stable")
    return (
        ordered[np.concatenate(([True], ordered[1:] != ordered[:-1]))] if len(ordered) else ordered
    )


def blocks(number: int) -> Iterator[slice]:
    """Places in blocks that fit a core's cache: what is made on the way is small then."""
    for first in range(0, number, 1 << 16):
        yield slice(first, min(first + (1 << 16), number))


def length(start: Ints, end: Ints) -> int:
    """Total length of disjoint intervals."""
    return int((end - start).sum())


def disjoint(start: Ints, end: Ints) -> tuple[Ints, Ints, Ints]:
    """Give each moment to the interval that began first: outermost wins, a late overlap keeps its
    rest.

    Args:
        start, end: In any order.

    Returns:
        (indices into the input, starts, ends) of the non-empty rests, sorted.
    """
    order = np.lexsort((-end, start))
    s, e = start[order], end[order]
    if not len(s):
        return order, s, e
    reach = np.concatenate(([np.iinfo(np.int64).min], np.maximum.accumulate(e)[:-1]))
    s = np.maximum(s, reach)
    some = e > s
    return order[some], s[some], e[some]


class Measure:
    """The measure of a set of disjoint intervals up to a time; differences give the part in a
    window.
    """

    def __init__(self, start: Ints, end: Ints) -> None:
        self._start, self._end = start, end
        self._before = np.concatenate((np.zeros(1, np.int64), np.cumsum(end - start)))

    def up_to(self, time: Ints) -> Ints:
        """Length of the set below each time."""
        result = np.zeros(len(time), np.int64)
        for block in blocks(len(time) if len(self._start) else 0):
            here = time[block]
            i = np.searchsorted(self._start, here, "right") - 1
            inside = np.minimum(here, self._end[i]) - self._start[i]
            result[block] = np.where(i < 0, 0, self._before[i] + inside)
        return result

    def within(self, start: Ints, end: Ints) -> Ints:
        """Length of the set inside each [start, end)."""
        if not len(start):
            return np.zeros(0, np.int64)
        # As a rule one window ends where the next begins.
        before = self.up_to(start)
        after = np.append(before[1:], self.up_to(end[-1:]))
        apart = np.flatnonzero(end[:-1] != start[1:])
        after[apart] = self.up_to(end[apart])
        return after - before

    def inverse(self, measure: Ints) -> Ints:
        """The first time by which the set has that length; for measures below the total."""
        i = np.searchsorted(self._before, measure, "right") - 1
        i = np.minimum(i, len(self._start) - 1)
        return self._start[i] + (measure - self._before[i])


def _in_order(*keys: Ints) -> Ints:
    """Indices that sort by the keys, the first one leading; profilers write in order, so look
    first.
    """
    later = np.zeros(max(len(keys[0]) - 1, 0), bool)
    equal = ~later
    for key in keys:
        later |= equal & (key[1:] > key[:-1])
        equal &= key[1:] == key[:-1]
    if (later | equal).all():
        return np.arange(len(keys[0]))
    return np.lexsort(keys[::-1])


class Nest:
    """Intervals of many threads as forests: which one encloses a moment, innermost and outermost.

    The innermost enclosing interval is the one that starts last; of those the shortest; of those
    the last in the file. Interval index -1 means none.
    """

    def __init__(self, thread: Ints, start: Ints, end: Ints, index: Ints) -> None:
        """Args: one entry an interval; `thread` is a small ordinal, `index` the place in the
        file.
        """
        self.order = _in_order(thread, start, -end, index)
        self._offset = 0
        self._span = 1
        if len(start):
            self._offset = int(start.min())
            self._span = int(end.max()) - self._offset + 2
        self._start = self._axis(thread[self.order], start[self.order])
        self._end = np.maximum(self._axis(thread[self.order], end[self.order]), self._start)
        self._parent = self._parents()

    def _axis(self, thread: Ints, time: Ints) -> Ints:
        # One time axis for all threads, one after the other, so that one search serves all.
        shifted = np.minimum(np.maximum(time - self._offset, -1), self._span - 1)
        return thread.astype(np.int64) * (self._span + 1) + shifted

    def _parents(self) -> Ints:
        """The last earlier interval still open at each start."""
        n = len(self._start)
        if library := native_scanner.library():
            found, stack = np.empty(n, np.int64), np.empty(n, np.int64)
            arrays = (self._start, self._end, found, stack)
            start, end, parents, spare = (array.ctypes.data for array in arrays)
            library.hb_parents(start, end, n, parents, spare)
            return found
        # By pointer jumping (few rounds). Slot 0 never ends; slot i + 1 is interval i.
        ends = np.concatenate(([np.iinfo(np.int64).max], self._end))
        parent = np.arange(-1, n, dtype=np.int64)
        parent[0] = 0
        active = np.arange(1, n + 1)
        while len(active):
            dead = ends[parent[active]] <= self._start[active - 1]
            active = active[dead]
            parent[active] = parent[parent[active]]
        return parent[1:] - 1

    def parents(self) -> Ints:
        """Parent of each interval, in the order of the input; -1 at the top."""
        result = np.full(len(self.order), -1, np.int64)
        has = self._parent >= 0
        result[self.order[has]] = self.order[self._parent[has]]
        return result

    def roots(self) -> Ints:
        """Outermost enclosing interval of each interval (itself at the top), in the order of the
        input.
        """
        root = np.where(self._parent >= 0, self._parent, np.arange(len(self._parent)))
        while True:
            above = root[root]
            if (above == root).all():
                break
            root = above
        result = np.empty(len(self.order), np.int64)
        result[self.order] = self.order[root]
        return result

    def innermost(self, thread: Ints, time: Ints) -> Ints:
        """Index of the innermost interval of that thread around each time; -1 if none."""
        if not len(self.order):
            return np.full(len(time), -1, np.int64)
        axis = self._axis(thread, time)
        outside = (time < self._offset) | (time >= self._offset + self._span)
        at = np.searchsorted(self._start, axis, "right") - 1
        at[outside] = -1
        active = np.flatnonzero(at >= 0)
        while len(active):
            active = active[self._end[at[active]] <= axis[active]]
            at[active] = self._parent[at[active]]
            active = active[at[active] >= 0]
        # A thread without an interval around the time ends on another thread's.
        result = np.where(at >= 0, self.order[at], -1)
        return result


def spread(low: Ints, size: Ints) -> Ints:
    """The numbers of all ranges [low, low + size), one range after the other."""
    before = np.cumsum(size) - size
    return np.repeat(low - before, size) + np.arange(int(size.sum()))


class Groups:
    """Rows by group: what each group has of a column. Rows outside [0, number) are in none."""

    def __init__(self, group: Ints, number: int) -> None:
        self.number = number
        self._group = group
        self._order = _in_order(group)
        self._borders = np.searchsorted(group[self._order], np.arange(number + 1))

    def places(self, i: int) -> Ints:
        """The rows of a group, in their order."""
        return self._order[self._borders[i] : self._borders[i + 1]]

    def members(self, where: Bools) -> tuple[Ints, Ints]:
        """(group, row) of each row that is in a group and `where`, by group."""
        rows = self._order[self._borders[0] : self._borders[-1]]
        rows = rows[where[rows]]
        return self._group[rows], rows

    def sizes(self) -> Ints:
        return np.diff(self._borders)

    def counts(self, where: Bools) -> Ints:
        """Number of rows of each group that are `where`."""
        group = self._group[where]
        return np.bincount(group[(group >= 0) & (group < self.number)], minlength=self.number)

    def sums(self, values: Ints, where: Bools | None = None) -> Ints:
        """The sum of each group's values, exact; of those `where`."""
        values = values if where is None else np.where(where, values, 0)
        before = np.concatenate((np.zeros(1, np.int64), np.cumsum(values[self._order])))
        return before[self._borders[1:]] - before[self._borders[:-1]]

    def common(self, values: Ints, unknown: int) -> tuple[Ints, Bools]:
        """The value that all rows of a group have, and whether there is one that is known."""
        ordered = values[self._order]
        first = np.append(ordered, unknown)[self._borders[:-1]]
        group, rows = self.members(np.ones(len(values), bool))
        other = Groups(group, self.number).counts(values[rows] != first[group])
        return first, (self.sizes() > 0) & (other == 0) & (first != unknown)


def covered_by_group(group: Ints, start: Ints, end: Ints) -> Ints:
    """What each interval adds to the union of those of its group that begin before it.

    Args:
        group: Sorted.
    """
    order = _in_order(group, start)
    group, start, end = group[order], start[order], end[order]
    reach = running_max(group, end)
    same = np.concatenate(([False], group[1:] == group[:-1])) if len(group) else np.empty(0, bool)
    before = np.where(same, np.concatenate((end[:1], reach[:-1])), start)
    result = np.empty(len(order), np.int64)
    result[order] = np.maximum(end - np.maximum(start, before), 0)
    return result


def running_max(group: Ints, values: Ints) -> Ints:
    """The greatest value of each row's group so far; `group` is sorted."""
    if not len(group) or group[0] == group[-1]:
        return np.maximum.accumulate(values)
    # By rank: a value and its group may not fit one number.
    by_value = np.argsort(values, kind="stable")
    rank = np.empty(len(values), np.int64)
    rank[by_value] = np.arange(len(values))
    number = len(values) * ordinals(group)[1]
    return values[by_value[np.maximum.accumulate(number + rank) - number]]
