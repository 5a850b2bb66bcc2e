"""Which account owns each moment of a thread: the cutting that the ledger and the timeline share.

Arrays in, arrays out; integer nanoseconds; nothing here knows of traces or tables. Calls win over
ops, ops over regions, and what is left is Python's. Of several threads one owns each moment. See
docs/measurement.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from analyzer.attribution import classification
from analyzer.attribution.intervals import Bools, Ints, Measure, blocks, disjoint, distinct, union

ACCOUNT = {name: i for i, name in enumerate(classification.ACCOUNTS)}
_NEVER = np.iinfo(np.int64).min
_OUTSIDE = (ACCOUNT["python"], ACCOUNT["region"])  # of ops and calls


@dataclass
class Owned:
    """Disjoint stretches of a thread's time, sorted, each with its account's number."""

    start: Ints
    end: Ints
    account: Ints

    def at(self, places: Ints) -> Owned:
        return Owned(self.start[places], self.end[places], self.account[places])

    @classmethod
    def together(cls, parts: Sequence[Owned]) -> Owned:
        """The stretches of several threads, one thread after the other."""
        if len(parts) == 1:
            return parts[0]
        none = np.empty(0, np.int64)
        return cls(
            np.concatenate([none, *(part.start for part in parts)]),
            np.concatenate([none, *(part.end for part in parts)]),
            np.concatenate([none, *(part.account for part in parts)]),
        )


@dataclass
class LibraryLaunches:
    """Launches of library kernels on the thread: call start, dCT, and start of the step, in ns."""

    start: Ints
    dct: Ints
    step_start: Ints


def cut(
    calls: tuple[Ints, Ints, Ints, Ints],
    ops: tuple[Ints, Ints],
    regions: tuple[Ints, Ints],
    edges: Ints,
) -> Owned:
    """Cut the thread's time where an owner changes and at `edges`; the library's is not told yet.

    Args:
        calls: (start, end, account, copy_wait) of the thread's calls; nested ones belong to the
            outermost. copy_wait: how long from its start a copy waited for its turn on the device.
        ops, regions: (start, end).
    """
    which, call_start, call_end = disjoint(calls[0], calls[1])
    call_account = calls[2][which]
    turn = np.maximum((calls[0] + calls[3])[which], call_start)
    op_start, op_end = union(*ops)
    region_start, region_end = union(*regions)
    edges = np.concatenate((edges, turn[turn > call_start]))
    points = distinct(
        np.concatenate((call_start, call_end, op_start, op_end, region_start, region_end, edges))
    )
    account = np.full(max(len(points) - 1, 0), ACCOUNT["python"], np.int64)
    for block in blocks(len(account)):
        start, here = points[block], account[block]
        here[_inside(region_start, region_end, start)] = ACCOUNT["region"]
        here[_inside(op_start, op_end, start)] = ACCOUNT["framework"]
        if len(call_start):
            at = np.searchsorted(call_start, start, "right") - 1
            in_call = (at >= 0) & (call_end[at] > start)
            here[in_call] = call_account[at[in_call]]
            here[in_call & (start < turn[at])] = ACCOUNT["copy_wait"]
    return Owned(points[:-1], points[1:], account)


def _inside(start: Ints, end: Ints, time: Ints) -> Bools:
    if not len(start):
        return np.zeros(len(time), bool)
    at = np.searchsorted(start, time, "right") - 1
    return (at >= 0) & (end[at] > time)


def give_library(owned: Owned, library: LibraryLaunches, launches: tuple[Ints, Ints]) -> Owned:
    """Of the op time before each library launch, its dCT nearest the launch becomes the library's.

    Args:
        launches: (start, end) of all launch calls of the thread, copies and graphs included: a
            stretch begins where the previous one ended, or with the step.
    """
    framework = owned.account == ACCOUNT["framework"]
    if not len(library.start) or not framework.any():
        return owned
    order = np.argsort(launches[0], kind="stable")
    reach = np.concatenate(([_NEVER], np.maximum.accumulate(launches[1][order])))
    begin = reach[np.searchsorted(launches[0][order], library.start)]
    begin = np.minimum(np.maximum(begin, library.step_start), library.start)
    op_time = Measure(owned.start[framework], owned.end[framework])
    high = op_time.up_to(library.start)
    low = np.maximum(op_time.up_to(begin), high - library.dct)
    some = high > low
    low, high = low[some], high[some]
    if not len(low):
        return owned
    cut_start, cut_end = op_time.inverse(low), op_time.inverse(high - 1) + 1
    points = distinct(np.concatenate((owned.start, owned.end[-1:], cut_start, cut_end)))
    order = np.argsort(low, kind="stable")
    low, high = low[order], high[order]
    account = np.empty(len(points) - 1, np.int64)
    for block in blocks(len(account)):
        start = points[block]
        here = owned.account[np.searchsorted(owned.start, start, "right") - 1]
        measured = op_time.up_to(start)
        at = np.searchsorted(low, measured, "right") - 1
        taken = (at >= 0) & (high[at] > measured) & (here == ACCOUNT["framework"])
        here[taken] = ACCOUNT["library"]
        account[block] = here
    return Owned(points[:-1], points[1:], account)


def share_out(owned: Owned, window: Ints, rank: Ints) -> tuple[Ints, Ints, Ints]:
    """Give each moment of each window to one of its threads.

    It belongs to the thread that is in an op or call, to the first of several; where none is, to
    the thread whose op or call comes next, and where none comes, to the first thread.

    Args:
        owned: The stretches of each thread of each window, all over the whole window.
        window, rank: Of each stretch: its window, and its thread's place among the threads there.
            Sorted by both.

    Returns:
        (stretches, starts, ends): the parts that they keep.
    """
    alone = np.ones(int(window.max(initial=-1)) + 1, bool)
    alone[window[rank > 0]] = False
    whole, shared = np.flatnonzero(alone[window]), np.flatnonzero(~alone[window])
    if not len(shared):
        return whole, owned.start, owned.end
    parts = _shared(owned.at(shared), window[shared], rank[shared])
    return (
        np.concatenate((whole, shared[parts[0]])),
        np.concatenate((owned.start[whole], parts[1])),
        np.concatenate((owned.end[whole], parts[2])),
    )


def _shared(owned: Owned, window: Ints, rank: Ints) -> tuple[Ints, Ints, Ints]:
    """`share_out` of windows with several threads: one walk over all their stretches."""
    order = np.lexsort((owned.start, window))
    start, of_window = owned.start[order], window[order]
    follows = np.append(of_window[1:] == of_window[:-1], False)
    end = np.where(follows, np.append(start[1:], 0), owned.end[order])
    cell = np.flatnonzero(end > start)
    first = _first_inside(owned.account, window, rank, order)[cell]
    # Where nobody is inside, who comes next.
    coming = np.where(first >= 0, np.arange(len(cell)), len(cell))
    coming = np.minimum.accumulate(coming[::-1])[::-1]
    at_window = np.append(of_window[cell], -1)
    owner = np.where(at_window[coming] == at_window[:-1], np.append(first, 0)[coming], 0)
    # The owner's stretch is its last one that had begun.
    member = np.cumsum(_begins(window, rank)) - 1
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    leader = member[np.searchsorted(window, of_window[cell])]
    wanted = (leader + owner) * len(order) + cell
    at = np.searchsorted(member * len(order) + place, wanted, "right") - 1
    return at, start[cell], end[cell]


def _begins(window: Ints, rank: Ints) -> Bools:
    """Which stretches are their thread's first in a window."""
    change = (window[1:] != window[:-1]) | (rank[1:] != rank[:-1])
    return np.concatenate(([True], change))


def _first_inside(account: Ints, window: Ints, rank: Ints, order: Ints) -> Ints:
    """From each stretch's start on, in `order`: the first thread in an op or call; -1 for none."""
    inside = ~np.isin(account, _OUTSIDE)
    begins = _begins(window, rank)
    changes = np.where(begins, inside, inside != np.concatenate(([False], inside[:-1])))
    changes, rank, window = changes[order], rank[order], window[order]
    first_of_window = np.searchsorted(window, window)
    found = np.full(len(order), -1, np.int64)
    one, none = np.uint64(1), np.uint64(0)
    # Who is inside is a set of bits that entering and leaving flip, 64 threads at a time.
    for word in range(int(rank.max()) // 64 + 1):
        bit = np.left_shift(one, (rank % 64).astype(np.uint64))
        sets = np.bitwise_xor.accumulate(np.where(changes & (rank // 64 == word), bit, none))
        sets ^= np.concatenate(([none], sets[:-1]))[first_of_window]
        lowest = np.frexp((sets & (~sets + one)).astype(np.float64))[1] - 1
        found = np.where((found < 0) & (sets != none), 64 * word + lowest, found)
    return found
