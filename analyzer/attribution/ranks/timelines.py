"""What a rank's launching thread and its device did at each moment, on the common clock.

A timeline has no holes and no ends: each piece lasts to the next, the first begins before all and
the last never ends.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from analyzer.attribution import classification
from analyzer.attribution.accounts import Owned
from analyzer.attribution.events import LinkedTrace
from analyzer.attribution.intervals import (
    Bools,
    Ints,
    Measure,
    Nest,
    disjoint,
    distinct,
    union,
)

# Accounts that only a rank's wait has: the late rank's host was outside its steps; its launch had
# been made, so its device was late; nothing of it was recorded then.
BETWEEN_STEPS, DEVICE_QUEUE, NOT_RECORDED = "between_steps", "device_queue", "not_recorded"
WAIT_ACCOUNTS = (*classification.ACCOUNTS, BETWEEN_STEPS, DEVICE_QUEUE, NOT_RECORDED)
ACCOUNT = {name: i for i, name in enumerate(WAIT_ACCOUNTS)}
_EVER = np.iinfo(np.int64).min // 4


@dataclass(frozen=True)
class Timeline:
    """Pieces of time, each with an owner.

    Attributes:
        start: Of each piece, rising.
        account: Place in WAIT_ACCOUNTS.
        name: String id of what held it, -1 for nothing.
        before: Whether the name is of what came next, as nothing held it.
        collective: The collective in which the device waited then, -1 for none.
    """

    start: Ints
    account: Ints
    name: Ints
    before: Bools
    collective: Ints

    def spread(self, start: Ints, end: Ints) -> tuple[Ints, Ints, Ints, Ints]:
        """Cut intervals at the pieces: (interval, piece, start, end) of each part, no empty one."""
        low = np.searchsorted(self.start, start, "right") - 1
        high = np.searchsorted(self.start, end, "left")
        count = np.where(end > start, high - low, 0)
        interval = np.repeat(np.arange(len(start)), count)
        first = np.cumsum(count) - count
        piece = np.arange(len(interval)) - first[interval] + low[interval]
        stop = np.append(self.start[1:], np.iinfo(np.int64).max)[piece]
        return (
            interval,
            piece,
            np.maximum(self.start[piece], start[interval]),
            np.minimum(stop, end[interval]),
        )


def host_timeline(linked: LinkedTrace, thread: int, owned: Owned, offset: int) -> Timeline:
    """The accounts of a thread; outside the trace's steps, if it has marks, `between_steps`.

    Args:
        owned: The thread's stretches of the whole trace.
        offset: The rank's clock less the common one.
    """
    steps = union(
        np.array([step.start for step in linked.steps], np.int64),
        np.array([step.end for step in linked.steps], np.int64),
    )
    first = min(linked.whole.start, *steps[0].tolist())
    last = max(linked.whole.end, *steps[1].tolist())
    start = distinct(np.concatenate((owned.start, owned.end[-1:], *steps, [_EVER, first, last])))
    account = np.full(len(start), ACCOUNT["python"], np.int64)
    at = np.searchsorted(owned.start, start, "right") - 1
    has = (at >= 0) & (owned.end[at] > start) if len(owned.start) else np.zeros(len(start), bool)
    account[has] = owned.account[at[has]]
    recorded = (start >= first) & (start < last)
    if linked.steps != [linked.whole]:
        between = recorded & (Measure(*steps).within(start, start + 1) == 0)
        account[between] = ACCOUNT[BETWEEN_STEPS]
    account[~recorded] = ACCOUNT[NOT_RECORDED]
    name, before = _holders(linked, thread, start)
    name[~recorded], before[~recorded] = -1, False
    return Timeline(start - offset, account, name, before, np.full(len(start), -1, np.int64))


def _holders(linked: LinkedTrace, thread: int, time: Ints) -> tuple[Ints, Bools]:
    """The outermost op around each time, else the call, region or annotation, else what follows."""
    ops, calls, marks = linked.ops, linked.calls, linked.annotations
    own = (ops.thread == thread) & ~ops.bad
    op, region = np.flatnonzero(own & ~ops.region), np.flatnonzero(own & ops.region)
    call = np.flatnonzero((calls.thread == thread) & ~calls.bad)
    # The marks of steps hold everything, and so tell nothing.
    steps = np.array([step.start for step in linked.steps], np.int64)
    mark = np.flatnonzero((marks.thread == thread) & ~np.isin(marks.start, steps))
    name = np.full(len(time), -1, np.int64)
    for table, at, is_outermost in (
        (ops, op, True),
        (calls, call, True),
        (ops, region, False),
        (marks, mark, False),
    ):
        left = np.flatnonzero(name < 0)
        same = np.zeros(len(at), np.int64)
        nest = Nest(same, table.start[at], table.end[at], np.arange(len(at)))
        found = nest.innermost(np.zeros(len(left), np.int64), time[left])
        left, found = left[found >= 0], found[found >= 0]
        name[left] = table.name[at[nest.roots()[found] if is_outermost else found]]
    starts = np.concatenate((ops.start[op], calls.start[call]))
    order = np.argsort(starts, kind="stable")
    names = np.append(np.concatenate((ops.name[op], calls.name[call]))[order], -1)
    following = names[np.searchsorted(starts[order], time)]
    before = (name < 0) & (following >= 0)
    return np.where(before, following, name), before


def device_timeline(
    linked: LinkedTrace, device: int, waits: tuple[Ints, Ints, Ints], offset: int
) -> Timeline:
    """What ran on a device; of several events at once the one that began first.

    Args:
        device: String id of the device.
        waits: Of the rank's collectives that waited: (collective, device event, wait in ns).
    """
    events = linked.device
    on_device = np.flatnonzero(~events.bad & (events.device == device))
    begin = np.array(events.start)
    begin[waits[1]] += waits[2]
    here = np.isin(waits[1], on_device)
    collective, event, wait = (column[here] for column in waits)
    start = np.concatenate((events.start[event], begin[on_device])) - offset
    end = np.concatenate((events.start[event] + wait, events.end[on_device])) - offset
    which, low, high = disjoint(start, end)
    # Each piece and the gap behind it; a gap of no length vanishes.
    edges = np.concatenate(([_EVER], np.column_stack((low, high)).reshape(-1)))
    owner = np.concatenate(([-1], np.column_stack((which, np.full(len(which), -1))).reshape(-1)))
    kept = np.append(edges[1:] > edges[:-1], True)
    edges, owner = edges[kept], owner[kept]
    names = np.concatenate((events.name[event], events.name[on_device], [-1]))
    links = np.concatenate((collective, np.full(len(on_device) + 1, -1)))
    return Timeline(
        edges,
        np.full(len(edges), ACCOUNT[DEVICE_QUEUE], np.int64),
        names[owner],
        np.zeros(len(edges), bool),
        links[owner],
    )
