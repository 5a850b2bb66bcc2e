"""Sets of half-open intervals in integer nanoseconds, as sorted arrays. Nothing here knows of
traces.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

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
        if not len(self._start):
            return np.zeros(len(time), np.int64)
        i = np.searchsorted(self._start, time, "right") - 1
        inside = np.minimum(time, self._end[i]) - self._start[i]
        return np.where(i < 0, 0, self._before[i] + inside)

    def within(self, start: Ints, end: Ints) -> Ints:
        """Length of the set inside each [start, end)."""
        return self.up_to(end) - self.up_to(start)

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
        """The last earlier interval still open at each start, by pointer jumping (few rounds)."""
        n = len(self._start)
        # Slot 0 is a sentinel that never ends; slot i + 1 is interval i.
        end = np.concatenate(([np.iinfo(np.int64).max], self._end))
        parent = np.arange(-1, n, dtype=np.int64)
        parent[0] = 0
        active = np.arange(1, n + 1)
        while len(active):
            dead = end[parent[active]] <= self._start[active - 1]
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


def ordinals(values: Ints) -> tuple[Ints, Ints]:
    """The distinct values, sorted, and for each value its place among them."""
    distinct = np.unique(values)
    if len(distinct) and int(distinct[-1]) - int(distinct[0]) < 4 * len(values) + 1024:
        # A table of all values between least and greatest is small: look up instead of searching.
        table = np.zeros(int(distinct[-1]) - int(distinct[0]) + 1, np.int64)
        table[distinct - distinct[0]] = np.arange(len(distinct))
        return distinct, table[values - distinct[0]]
    return distinct, np.searchsorted(distinct, values)
