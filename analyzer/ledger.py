"""The ledger: on a launching thread every nanosecond of a step belongs to one account.

Crossed with the device: how much of each account ran while the device was idle (`exposed`), which
is what a change there can win. Accounts of a step add up to its wall time on that thread; exposed
time adds up to the device's idle time. Integer nanoseconds. Ours; see docs/measurement.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from analyzer import classify
from analyzer.attribution import Attributed, Step
from analyzer.decompose import Launches, known
from analyzer.intervals import Bools, Ints, Measure, disjoint, union

_ACCOUNT = {name: i for i, name in enumerate(classify.ACCOUNTS)}


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


def busy_measure(a: Attributed) -> Measure:
    """Times at which any device is busy: the union of all device events with sound times."""
    good = ~a.device.bad
    return Measure(*union(a.device.start[good], a.device.end[good]))


def window(busy: Measure, step: Step) -> Window:
    """How long the device was busy and idle in a step."""
    inside = int(busy.within(np.array([step.start]), np.array([step.end]))[0])
    return Window(inside, step.end - step.start - inside)


def ledger(a: Attributed, launches: Launches, busy: Measure) -> list[Entry]:
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


def _launches_in(a: Attributed, thread: int, step: Step) -> bool:
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
    a: Attributed,
    launches: Launches,
    busy: Measure,
    thread: int,
    windows: Sequence[tuple[int, Step]],
) -> list[Entry]:
    ops, calls = a.ops, a.calls
    own_calls = np.flatnonzero((calls.thread == thread) & ~calls.bad)
    which, call_start, call_end = disjoint(calls.start[own_calls], calls.end[own_calls])
    call_account = calls.account[own_calls[which]]
    own_ops = (ops.thread == thread) & ~ops.bad
    op_start, op_end = union(ops.start[own_ops & ~ops.region], ops.end[own_ops & ~ops.region])
    region_start, region_end = union(ops.start[own_ops & ops.region], ops.end[own_ops & ops.region])
    edges = np.array([t for _, step in windows for t in (step.start, step.end)], np.int64)
    points = np.unique(
        np.concatenate((call_start, call_end, op_start, op_end, region_start, region_end, edges))
    )
    start, end = points[:-1], points[1:]
    account = np.full(len(start), _ACCOUNT["python"], np.int64)
    account[_inside(region_start, region_end, start)] = _ACCOUNT["region"]
    account[_inside(op_start, op_end, start)] = _ACCOUNT["framework"]
    if len(call_start):
        at = np.searchsorted(call_start, start, "right") - 1
        in_call = (at >= 0) & (call_end[at] > start)
        account[in_call] = call_account[at[in_call]]
    start, end, account = _split_library(a, launches, thread, start, end, account)
    exposed = (end - start) - busy.within(start, end)
    entries: list[Entry] = []
    for number, step in windows:
        low, high = np.searchsorted(start, (step.start, step.end))
        part = slice(int(low), int(high))
        ns = np.zeros(len(_ACCOUNT), np.int64)
        bare = np.zeros(len(_ACCOUNT), np.int64)
        np.add.at(ns, account[part], (end - start)[part])
        np.add.at(bare, account[part], exposed[part])
        entries += [
            Entry(number, thread, thread == step.thread, name, int(ns[i]), int(bare[i]))
            for name, i in _ACCOUNT.items()
        ]
    return entries


def _inside(start: Ints, end: Ints, time: Ints) -> Bools:
    if not len(start):
        return np.zeros(len(time), bool)
    at = np.searchsorted(start, time, "right") - 1
    return (at >= 0) & (end[at] > time)


def _split_library(
    a: Attributed, launches: Launches, thread: int, start: Ints, end: Ints, account: Ints
) -> tuple[Ints, Ints, Ints]:
    """Of the op time before each library launch, its dCT nearest the launch is the library's."""
    calls = a.calls
    mine = calls.thread[launches.call] == thread
    mine &= known(launches.dct) & (launches.dct > 0)
    if not mine.any():
        return start, end, account
    call = launches.call[mine]
    # A stretch begins where the thread's previous launch of any kind ended, or with the step.
    before = np.flatnonzero((calls.thread == thread) & (calls.kind > 0) & ~calls.bad)
    before = before[np.argsort(calls.start[before], kind="stable")]
    reach = np.concatenate(([np.iinfo(np.int64).min], np.maximum.accumulate(calls.end[before])))
    begin = reach[np.searchsorted(calls.start[before], calls.start[call])]
    step_start = np.array([s.start for s in a.steps] + [a.whole.start], np.int64)
    begin = np.maximum(begin, step_start[launches.step[mine]])
    begin = np.minimum(begin, calls.start[call])
    framework = account == _ACCOUNT["framework"]
    op_time = Measure(start[framework], end[framework])
    high = op_time.up_to(calls.start[call])
    low = np.maximum(op_time.up_to(begin), high - launches.dct[mine])
    some = high > low
    low, high = low[some], high[some]
    if not len(low):
        return start, end, account
    cut_start, cut_end = op_time.inverse(low), op_time.inverse(high - 1) + 1
    points = np.unique(np.concatenate((start, end[-1:], cut_start, cut_end)))
    source = np.searchsorted(start, points[:-1], "right") - 1
    new_start, new_end, new_account = points[:-1], points[1:], account[source]
    measured = op_time.up_to(new_start)
    order = np.argsort(low, kind="stable")
    at = np.searchsorted(low[order], measured, "right") - 1
    taken = (at >= 0) & (high[order][at] > measured) & (new_account == _ACCOUNT["framework"])
    new_account[taken] = _ACCOUNT["library"]
    return new_start, new_end, new_account
