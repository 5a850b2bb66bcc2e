"""What the launching thread started and waited for, in order, by name."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from analyzer.attribution.classification import ACCOUNTS, LAUNCH_KINDS
from analyzer.attribution.events import Calls, LinkedTrace
from analyzer.attribution.intervals import Bools, Ints, ordinals

FEWEST_REPETITIONS = 3
_WAIT, _GRAPH = ACCOUNTS.index("wait"), LAUNCH_KINDS.index("graph")


@dataclass(frozen=True)
class LaunchSequence:
    """Launches and waits of the launching thread, in order of time.

    Attributes:
        thread: Ordinal of the thread.
        call: Place in the trace's calls.
        token: Ordinal of what was launched, by kernel and op; of a wait, by call and op.
        op: Ordinal of the op's name.
        in_op: Whether it is called in an op.
        sized: Ordinal of what was launched, and how large.
        launch: Whether it is a launch; else it is a wait.
        graph: Whether it launches a graph.
        kernels: Device events that it started.
        start, end: Of the call, in ns.
    """

    thread: int
    call: Ints
    token: Ints
    op: Ints
    in_op: Bools
    sized: Ints
    launch: Bools
    graph: Bools
    kernels: Ints
    start: Ints
    end: Ints


def launch_sequence(linked: LinkedTrace) -> LaunchSequence | None:
    calls, device = linked.calls, linked.device
    good = ~calls.bad & (calls.capture < 0)
    launching = good & (calls.kind > 0)
    if int(launching.sum()) < FEWEST_REPETITIONS:
        return None
    thread = int(np.bincount(calls.thread[launching]).argmax())
    own = np.flatnonzero(good & (calls.thread == thread) & ((calls.kind > 0) | _waits(calls)))
    own = own[np.argsort(calls.start[own], kind="stable")]
    launch = calls.kind[own] > 0
    # A host that polls waits a varying number of times.
    again = np.concatenate(([False], ~launch[1:] & ~launch[:-1]))
    own, launch = own[~again], launch[~again]
    event = _first_event(linked)[own]
    none = np.full(len(own), -1, np.int64)
    named = np.append(device.name, -1)[event]
    config = np.append(device.config, -1)[event]
    op = calls.op[own]
    op_name = np.where(op >= 0, linked.ops.name[op], -1) if len(linked.ops.name) else none
    graph = calls.kind[own] == _GRAPH
    kernels = np.where(launch, calls.device_events[own], 0)
    token = _ordinals(launch, np.where(event >= 0, named, -2 - calls.name[own]), op_name)
    token = _ordinals(token, np.where(graph, kernels, 0))
    return LaunchSequence(
        thread=thread,
        call=own,
        token=token,
        op=_ordinals(launch, op_name),
        in_op=op >= 0,
        sized=_ordinals(token, config),
        launch=launch,
        graph=graph,
        kernels=kernels,
        start=calls.start[own],
        end=calls.end[own],
    )


def _waits(calls: Calls) -> Bools:
    return (calls.account == _WAIT) & (calls.kind == 0)


def _first_event(linked: LinkedTrace) -> Ints:
    """Place of the first device event of each call; -1 without one."""
    device = linked.device
    first = np.full(len(linked.calls.start), -1, np.int64)
    owned = np.flatnonzero(device.call >= 0)
    backwards = owned[np.argsort(device.start[owned], kind="stable")][::-1]
    first[device.call[backwards]] = backwards
    return first


def _ordinals(*columns: Ints | Bools) -> Ints:
    """A small number for each distinct row."""
    result = np.zeros(len(columns[0]), np.int64)
    for column in columns:
        distinct, of_column = ordinals(column.astype(np.int64))
        _, result = ordinals(result * max(len(distinct), 1) + of_column)
    return result
