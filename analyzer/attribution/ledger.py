"""The ledger: every nanosecond of a step belongs to one account of one launching thread.

Crossed with the device: how much of each account ran while the device was idle (`exposed`), which
is what a change there can win. Accounts of a step, of all its threads, add up to its wall time;
exposed time adds up to the device's idle time. Integer nanoseconds. Ours; see docs/measurement.md.

All windows are shared out together: the cost is that of the stretches in them, not of threads times
steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from analyzer.attribution.accounts import (
    ACCOUNT,
    LibraryLaunches,
    Owned,
    cut,
    give_library,
    share_out,
)
from analyzer.attribution.decomposition import Launches, known
from analyzer.attribution.events import LinkedTrace, Step
from analyzer.attribution.intervals import Bools, Groups, Ints, Measure, spread, union

# Stretches that are shared out at once, as long as a window has not more: what they take of memory.
_MOST_STRETCHES = 1 << 18


@dataclass(frozen=True)
class Entry:
    """What one thread has of one account of one step.

    Attributes:
        step: -1 for the whole trace.
        is_main: Whether the thread is the step's main one, with most of its launches.
        exposed_ns: None where nothing is known of a device.
    """

    step: int
    thread: int
    is_main: bool
    account: str
    ns: int
    exposed_ns: int | None


@dataclass(frozen=True)
class Ledger:
    """The entries of a trace as columns: by step, its threads in order, each with every account.

    Attributes:
        account: Place in ACCOUNT.
        exposed_ns: None where nothing is known of a device.
    """

    step: Ints
    thread: Ints
    is_main: Bools
    account: Ints
    ns: Ints
    exposed_ns: Ints | None

    def __iter__(self) -> Iterator[Entry]:
        names = list(ACCOUNT)
        for i in range(len(self.ns)):
            yield Entry(
                int(self.step[i]),
                int(self.thread[i]),
                bool(self.is_main[i]),
                names[int(self.account[i])],
                int(self.ns[i]),
                None if self.exposed_ns is None else int(self.exposed_ns[i]),
            )


@dataclass
class Window:
    """The device during a step: union of all devices' events, clipped to the step.

    None in a trace without any device event: nothing says what its device did.
    """

    busy_ns: int | None
    idle_ns: int | None


def busy_measure(a: LinkedTrace) -> Measure | None:
    """Times at which any device is busy: the union of all device events with sound times.

    None for a trace without device events.
    """
    if not len(a.device.start):
        return None
    good = ~a.device.bad
    return Measure(*union(a.device.start[good], a.device.end[good]))


def window(busy: Measure | None, step: Step) -> Window:
    """How long the device was busy and idle in a step."""
    return windows(busy, [step])[0]


def windows(busy: Measure | None, steps: Sequence[Step]) -> list[Window]:
    """How long the device was busy and idle in each step."""
    if busy is None:
        return [Window(None, None)] * len(steps)
    start, end = _edges(steps)
    inside = busy.within(start, end)
    idle = end - start - inside
    return [Window(*both) for both in zip(inside.tolist(), idle.tolist(), strict=True)]


def _edges(steps: Sequence[Step]) -> tuple[Ints, Ints]:
    return (
        np.array([step.start for step in steps], np.int64),
        np.array([step.end for step in steps], np.int64),
    )


def ledger(a: LinkedTrace, launches: Launches, busy: Measure | None) -> Ledger:
    """Entries of every step and of the whole trace, for each thread that launches in it."""
    is_one = any(step is a.whole for step in a.steps)  # the step is the trace: the same figures
    steps = [a.whole] if is_one else [*a.steps, a.whole]
    members = _members(a, steps)
    ns, exposed = _shared_out(_stretches(a, launches, steps, members), members, busy)
    numbers = np.array([-1] if is_one else [*range(len(a.steps)), -1], np.int64)
    accounts = np.arange(len(ACCOUNT))
    found = Ledger(
        step=np.repeat(numbers[members.window], len(ACCOUNT)),
        thread=np.repeat(members.thread, len(ACCOUNT)),
        is_main=np.repeat(members.is_main, len(ACCOUNT)),
        account=np.tile(accounts, len(members.thread)),
        ns=ns,
        exposed_ns=exposed,
    )
    if not is_one:
        return found
    return Ledger(
        step=np.concatenate((found.step, np.zeros(len(found.step), np.int64))),
        thread=np.tile(found.thread, 2),
        is_main=np.tile(found.is_main, 2),
        account=np.tile(found.account, 2),
        ns=np.tile(found.ns, 2),
        exposed_ns=None if found.exposed_ns is None else np.tile(found.exposed_ns, 2),
    )


@dataclass(frozen=True)
class _Members:
    """The threads of each window, the main one first, then by their launches.

    Attributes:
        window: Place of the window; sorted.
        rank: Place among the threads of the window.
        start, end: Of the window.
    """

    window: Ints
    thread: Ints
    rank: Ints
    is_main: Bools
    start: Ints
    end: Ints


def _members(a: LinkedTrace, steps: Sequence[Step]) -> _Members:
    """The threads that launch in each window; the last window is the whole trace."""
    calls, last = a.calls, len(steps) - 1
    places = np.flatnonzero((calls.kind > 0) & ~calls.bad)
    step, thread = calls.step[places], calls.thread[places]
    inside = (step >= 0) & (step < last)
    main = np.array([one.thread for one in steps], np.int64)
    has_main = main >= 0
    width = int(max(thread.max(initial=0), main.max(initial=0))) + 1
    keys = np.concatenate((step[inside] * width + thread[inside], last * width + thread))
    pairs, launched = np.unique(keys, return_counts=True)
    mains = (np.arange(len(steps)) * width + main)[has_main]
    silent = np.setdiff1d(mains, pairs)
    pairs = np.concatenate((pairs, silent))
    launched = np.concatenate((launched, np.zeros(len(silent), np.int64)))
    window, thread = pairs // width, pairs % width
    is_main = thread == main[window]
    order = np.lexsort((thread, -launched, ~is_main, window))
    window = window[order]
    first = np.searchsorted(window, window)
    start, end = _edges(steps)
    return _Members(
        window=window,
        thread=thread[order],
        rank=np.arange(len(window)) - first,
        is_main=is_main[order],
        start=start[window],
        end=end[window],
    )


@dataclass(frozen=True)
class _Stretches:
    """The stretches of all launching threads, thread after thread, each as if it were alone.

    Attributes:
        low, high: Which stretches of its thread lie in the window of each member.
    """

    owned: Owned
    low: Ints
    high: Ints


def owned(a: LinkedTrace, launches: Launches, thread: int) -> Owned:
    """The account of each moment of one thread, as if it were alone; cut where steps begin, end."""
    edges = np.concatenate(_edges([*a.steps, a.whole]))
    step_start = np.array([s.start for s in a.steps] + [a.whole.start], np.int64)
    return _by_thread(a, launches, thread + 1).owned(a, launches, thread, edges, step_start)


def _by_thread(a: LinkedTrace, launches: Launches, number: int) -> _ByThread:
    return _ByThread(
        ops=Groups(a.ops.thread, number),
        calls=Groups(a.calls.thread, number),
        launches=Groups(a.calls.thread[launches.call], number),
    )


def _stretches(
    a: LinkedTrace, launches: Launches, steps: Sequence[Step], members: _Members
) -> _Stretches:
    number = int(members.thread.max(initial=-1)) + 1
    by_thread = _by_thread(a, launches, number)
    # Step -1 takes the last entry, the whole trace's.
    step_start = np.array([s.start for s in a.steps] + [a.whole.start], np.int64)
    of_thread = Groups(members.thread, number)
    parts: list[Owned] = []
    low, high = np.zeros((2, len(members.thread)), np.int64)
    before = 0
    for thread in range(number):
        own = of_thread.places(thread)
        if not len(own):
            continue
        edges = np.concatenate((members.start[own], members.end[own]))
        part = by_thread.owned(a, launches, thread, edges, step_start)
        low[own] = before + np.searchsorted(part.start, members.start[own])
        high[own] = before + np.searchsorted(part.start, members.end[own])
        before += len(part.start)
        parts.append(part)
    return _Stretches(Owned.together(parts), low, high)


@dataclass(frozen=True)
class _ByThread:
    """The events of each thread."""

    ops: Groups
    calls: Groups
    launches: Groups

    def owned(
        self, a: LinkedTrace, launches: Launches, thread: int, edges: Ints, step_start: Ints
    ) -> Owned:
        """The account of each moment of one thread, as if it were alone."""
        calls, ops = a.calls, a.ops
        call, op = self.calls.places(thread), self.ops.places(thread)
        call, op = call[~calls.bad[call]], op[~ops.bad[op]]
        region, op = op[ops.region[op]], op[~ops.region[op]]
        owned = cut(
            (calls.start[call], calls.end[call], calls.account[call], calls.copy_wait[call]),
            (ops.start[op], ops.end[op]),
            (ops.start[region], ops.end[region]),
            edges,
        )
        launch = self.launches.places(thread)
        dct = launches.dct[launch]
        library = launch[known(dct) & (dct > 0)]
        launching = call[calls.kind[call] > 0]
        return give_library(
            owned,
            LibraryLaunches(
                calls.start[launches.call[library]],
                launches.dct[library],
                step_start[launches.step[library]],
            ),
            (calls.start[launching], calls.end[launching]),
        )


def _shared_out(
    stretches: _Stretches, members: _Members, busy: Measure | None
) -> tuple[Ints, Ints | None]:
    """Time, and exposed time, of each account of each member."""
    ns = np.zeros(len(members.thread) * len(ACCOUNT), np.int64)
    exposed = None if busy is None else np.zeros_like(ns)
    size = stretches.high - stretches.low
    # Windows together until there are many stretches; members are sorted by window.
    first_member = np.flatnonzero(np.diff(members.window, prepend=-1))
    before = (np.cumsum(size) - size)[first_member] // _MOST_STRETCHES
    first_member = first_member[np.diff(before, prepend=-1) != 0]
    batches = [*first_member.tolist(), len(size)]
    for first, last in pairwise(batches):
        member = np.repeat(np.arange(first, last), size[first:last])
        owned = stretches.owned.at(spread(stretches.low[first:last], size[first:last]))
        at, start, end = share_out(owned, members.window[member], members.rank[member])
        place = member[at] * len(ACCOUNT) + owned.account[at]
        np.add.at(ns, place, end - start)
        if busy is not None and exposed is not None:
            np.add.at(exposed, place, end - start - busy.within(start, end))
    return ns, exposed
