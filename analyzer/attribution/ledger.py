"""The ledger: every nanosecond of a step belongs to one account of one launching thread.

Crossed with the device: how much of each account ran while the device was idle (`exposed`), which
is what a change there can win. Accounts of a step, of all its threads, add up to its wall time;
exposed time adds up to the device's idle time. Integer nanoseconds. Ours; see docs/measurement.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

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
from analyzer.attribution.intervals import Bools, Ints, Measure, union


@dataclass
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
    if busy is None:
        return Window(None, None)
    inside = int(busy.within(np.array([step.start]), np.array([step.end]))[0])
    return Window(inside, step.end - step.start - inside)


@dataclass(frozen=True)
class Ledger:
    """The ledger of a trace.

    Attributes:
        entries: Of every step and of the whole trace, for each thread that launches in it.
        owned: The account of each moment of such a thread, as if it were alone.
    """

    entries: list[Entry]
    owned: dict[int, Owned]


def ledger(a: LinkedTrace, launches: Launches, busy: Measure | None) -> Ledger:
    """Keep the ledger of a trace whose launches are decomposed."""
    windows = [(i, step) for i, step in enumerate(a.steps) if step is not a.whole]
    windows.append((-1, a.whole))
    launching = (a.calls.kind > 0) & ~a.calls.bad
    members = _threads_of(a, launching, windows)
    owned = {
        thread: _owned(
            a,
            launches,
            thread,
            [step for (_, step), own in zip(windows, members, strict=True) if thread in own],
        )
        for thread in sorted({thread for own in members for thread in own})
    }
    entries: list[Entry] = []
    for (number, step), own in zip(windows, members, strict=True):
        entries += _entries(number, step, own, owned, busy)
    if any(step is a.whole for step in a.steps):  # the step is the trace: the same figures
        entries += [replace(entry, step=0) for entry in entries if entry.step == -1]
    return Ledger(entries, owned)


def _threads_of(
    a: LinkedTrace, launching: Bools, windows: Sequence[tuple[int, Step]]
) -> list[list[int]]:
    """Threads that launch in each step, the main one first, then by their launches."""
    places = np.flatnonzero(launching)
    order = places[np.argsort(a.calls.step[places], kind="stable")]
    step_of = a.calls.step[order]
    found: list[list[int]] = []
    for number, step in windows:
        low, high = np.searchsorted(step_of, (number, number + 1)) if number >= 0 else (0, None)
        threads, counts = np.unique(a.calls.thread[order[low:high]], return_counts=True)
        by_launches: list[int] = threads[np.lexsort((threads, -counts))].tolist()
        main = [step.thread] if step.thread >= 0 else []
        found.append(main + [thread for thread in by_launches if thread != step.thread])
    return found


def _owned(a: LinkedTrace, launches: Launches, thread: int, windows: Sequence[Step]) -> Owned:
    """The account of each moment of one thread, as if it were alone."""
    ops, calls = a.ops, a.calls
    own = (calls.thread == thread) & ~calls.bad
    op = (ops.thread == thread) & ~ops.bad & ~ops.region
    region = (ops.thread == thread) & ~ops.bad & ops.region
    owned = cut(
        (calls.start[own], calls.end[own], calls.account[own]),
        (ops.start[op], ops.end[op]),
        (ops.start[region], ops.end[region]),
        np.array([t for step in windows for t in (step.start, step.end)], np.int64),
    )
    library = (calls.thread[launches.call] == thread) & known(launches.dct) & (launches.dct > 0)
    step_start = np.array([s.start for s in a.steps] + [a.whole.start], np.int64)
    launching = own & (calls.kind > 0)
    return give_library(
        owned,
        LibraryLaunches(
            calls.start[launches.call[library]],
            launches.dct[library],
            step_start[launches.step[library]],  # step -1 takes the last entry, the whole trace's
        ),
        (calls.start[launching], calls.end[launching]),
    )


def _entries(
    number: int,
    step: Step,
    threads: Sequence[int],
    owned: Mapping[int, Owned],
    busy: Measure | None,
) -> list[Entry]:
    """All accounts of each thread of a step."""
    if not threads:
        return []
    part, owner = share_out([owned[thread].within(step.start, step.end) for thread in threads])
    length = part.end - part.start
    exposed = None if busy is None else length - busy.within(part.start, part.end)
    place = owner * len(ACCOUNT) + part.account
    ns = _sums(place, length, len(threads))
    exposed_ns = [None] * len(ns) if exposed is None else _sums(place, exposed, len(threads))
    return [
        Entry(number, thread, thread == step.thread, name, ns[i], exposed_ns[i])
        for i, (thread, name) in enumerate((t, name) for t in threads for name in ACCOUNT)
    ]


def _sums(place: Ints, time: Ints, threads: int) -> list[int]:
    """The sum of times by place among the accounts of threads."""
    sums = np.zeros(threads * len(ACCOUNT), np.int64)
    np.add.at(sums, place, time)
    return sums.tolist()
