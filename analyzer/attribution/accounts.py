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
from analyzer.attribution.intervals import Bools, Ints, Measure, disjoint, distinct, union

ACCOUNT = {name: i for i, name in enumerate(classification.ACCOUNTS)}
_NEVER = np.iinfo(np.int64).min
_OUTSIDE = (ACCOUNT["python"], ACCOUNT["region"])  # of ops and calls


@dataclass
class Owned:
    """Disjoint stretches of a thread's time, sorted, each with its account's number."""

    start: Ints
    end: Ints
    account: Ints

    def within(self, start: int, end: int) -> Owned:
        """The stretches of a window whose edges are edges of stretches."""
        low, high = np.searchsorted(self.start, (start, end)).tolist()
        return Owned(self.start[low:high], self.end[low:high], self.account[low:high])


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
    start, end = points[:-1], points[1:]
    account = np.full(len(start), ACCOUNT["python"], np.int64)
    account[_inside(region_start, region_end, start)] = ACCOUNT["region"]
    account[_inside(op_start, op_end, start)] = ACCOUNT["framework"]
    if len(call_start):
        at = np.searchsorted(call_start, start, "right") - 1
        in_call = (at >= 0) & (call_end[at] > start)
        account[in_call] = call_account[at[in_call]]
        account[in_call & (start < turn[at])] = ACCOUNT["copy_wait"]
    return Owned(start, end, account)


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
    source = np.searchsorted(owned.start, points[:-1], "right") - 1
    account = owned.account[source]
    measured = op_time.up_to(points[:-1])
    order = np.argsort(low, kind="stable")
    at = np.searchsorted(low[order], measured, "right") - 1
    taken = (at >= 0) & (high[order][at] > measured) & (account == ACCOUNT["framework"])
    account[taken] = ACCOUNT["library"]
    return Owned(points[:-1], points[1:], account)


def share_out(threads: Sequence[Owned]) -> tuple[Owned, Ints]:
    """Give each moment of a window to one of its threads, with that thread's account.

    It belongs to the thread that is in an op or call, to the first of several; where none is, to
    the thread whose op or call comes next, and where none comes, to the first thread.

    Args:
        threads: The stretches of each thread, all over the same window.

    Returns:
        Stretches of one owner and account, and each one's place among the threads.
    """
    if len(threads) == 1:
        return threads[0], np.zeros(len(threads[0].start), np.int64)
    points = distinct(np.concatenate([edge for own in threads for edge in (own.start, own.end)]))
    start = points[:-1]
    account = np.empty((len(threads), len(start)), np.int64)
    following = np.empty_like(account)
    for i, own in enumerate(threads):
        account[i] = own.account[np.searchsorted(own.start, start, "right") - 1]
        inside = ~np.isin(account[i], _OUTSIDE)
        # Now, for a moment inside; else when the thread's next op or call starts.
        begins = np.append(start[inside], np.iinfo(np.int64).max)
        following[i] = begins[np.searchsorted(begins[:-1], start)]
    owner = following.argmin(axis=0)  # the first of equals
    return Owned(start, points[1:], account[owner, np.arange(len(start))]), owner
