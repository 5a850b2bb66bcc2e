"""The ledger: on a launching thread every nanosecond of a step belongs to one account.

Crossed with the device: how much of each account ran while the device was idle (`exposed`), which
is what a change there can win. Accounts of a step add up to its wall time on that thread; exposed
time adds up to the device's idle time. Integer nanoseconds. Ours; see docs/measurement.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from analyzer.attribution.accounts import ACCOUNT, LibraryLaunches, cut, give_library
from analyzer.attribution.decomposition import Launches, known
from analyzer.attribution.events import LinkedTrace, Step
from analyzer.attribution.intervals import Measure, union


@dataclass
class Entry:
    """One account of one step on one thread. `step` is -1 for the whole trace."""

    step: int
    thread: int
    is_main: bool
    account: str
    ns: int
    exposed_ns: int


@dataclass
class Window:
    """The device during a step: union of all devices' events, clipped to the step."""

    busy_ns: int
    idle_ns: int


def busy_measure(a: LinkedTrace) -> Measure:
    """Times at which any device is busy: the union of all device events with sound times."""
    good = ~a.device.bad
    return Measure(*union(a.device.start[good], a.device.end[good]))


def window(busy: Measure, step: Step) -> Window:
    """How long the device was busy and idle in a step."""
    inside = int(busy.within(np.array([step.start]), np.array([step.end]))[0])
    return Window(inside, step.end - step.start - inside)


def ledger(a: LinkedTrace, launches: Launches, busy: Measure) -> list[Entry]:
    """Entries of every step and of the whole trace, for each thread that launches in it."""
    windows = [(i, step) for i, step in enumerate(a.steps) if step is not a.whole]
    windows.append((-1, a.whole))
    entries: list[Entry] = []
    launching = np.unique(a.calls.thread[(a.calls.kind > 0) & ~a.calls.bad]).tolist()
    threads = sorted(set(launching) | {step.thread for _, step in windows if step.thread >= 0})
    whole_is_step = any(step is a.whole for step in a.steps)
    for thread in threads:
        own = [
            (number, step)
            for number, step in windows
            if step.thread == thread or _launches_in(a, thread, step)
        ]
        if own:
            found = _thread_entries(a, launches, busy, thread, own)
            entries += found
            if whole_is_step:  # the step is the trace: the same figures under both
                entries += [
                    Entry(0, e.thread, e.is_main, e.account, e.ns, e.exposed_ns)
                    for e in found
                    if e.step == -1
                ]
    return entries


def _launches_in(a: LinkedTrace, thread: int, step: Step) -> bool:
    calls = a.calls
    return bool(
        (
            (calls.thread == thread)
            & (calls.kind > 0)
            & ~calls.bad
            & (calls.start >= step.start)
            & (calls.start < step.end)
        ).any()
    )


def _thread_entries(
    a: LinkedTrace,
    launches: Launches,
    busy: Measure,
    thread: int,
    windows: Sequence[tuple[int, Step]],
) -> list[Entry]:
    ops, calls = a.ops, a.calls
    own = (calls.thread == thread) & ~calls.bad
    op = (ops.thread == thread) & ~ops.bad & ~ops.region
    region = (ops.thread == thread) & ~ops.bad & ops.region
    owned = cut(
        (calls.start[own], calls.end[own], calls.account[own]),
        (ops.start[op], ops.end[op]),
        (ops.start[region], ops.end[region]),
        np.array([t for _, step in windows for t in (step.start, step.end)], np.int64),
    )
    library = (calls.thread[launches.call] == thread) & known(launches.dct) & (launches.dct > 0)
    step_start = np.array([s.start for s in a.steps] + [a.whole.start], np.int64)
    launching = own & (calls.kind > 0)
    owned = give_library(
        owned,
        LibraryLaunches(
            calls.start[launches.call[library]],
            launches.dct[library],
            step_start[launches.step[library]],  # step -1 takes the last entry, the whole trace's
        ),
        (calls.start[launching], calls.end[launching]),
    )
    start, end, account = owned.start, owned.end, owned.account
    exposed = (end - start) - busy.within(start, end)
    entries: list[Entry] = []
    for number, step in windows:
        low, high = np.searchsorted(start, (step.start, step.end))
        part = slice(int(low), int(high))
        ns = np.zeros(len(ACCOUNT), np.int64)
        exposed_ns = np.zeros(len(ACCOUNT), np.int64)
        np.add.at(ns, account[part], (end - start)[part])
        np.add.at(exposed_ns, account[part], exposed[part])
        entries += [
            Entry(number, thread, thread == step.thread, name, int(ns[i]), int(exposed_ns[i]))
            for name, i in ACCOUNT.items()
        ]
    return entries
