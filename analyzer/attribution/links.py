"""Who started what: device event to call, call to op, everything to its step.

Works on one trace's columns (`trace.events.Trace`); see docs/measurement.md for the rules.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from analyzer.attribution import classification, evidence, steps
from analyzer.attribution.event_classes import split_by_class
from analyzer.attribution.events import (
    DEVICE_KINDS,
    Calls,
    DeviceEvents,
    LinkedTrace,
    Ops,
)
from analyzer.attribution.intervals import Ints, Nest
from analyzer.trace.events import Trace

_NEVER = np.iinfo(np.int64).min


def link_trace(trace: Trace, step_globs: Sequence[str] = ()) -> LinkedTrace:
    """Link the events of a trace and split it into steps.

    Args:
        trace: As its reader gives it; its wide rows are let go once the columns are made.
        step_globs: Names of the annotations that mark steps (shell patterns), where the collector
            did not mark them; see `steps.py` for what comes before and behind them.

    Findings about times, links and steps are added to `trace.findings`.
    """
    linked = split_by_class(trace)
    trace.rows, trace.captured_in, trace.named_ops = np.array(trace.rows[:0]), None, None
    evidence.check_events(trace, linked.unread)
    evidence.check_times(linked)
    ops, nest = _link_ops(linked.ops)
    _link_calls(linked.ops, linked.calls, ops, nest)
    _link_device(linked.calls, linked.device)
    _link_captured(linked.ops, linked.device, ops, nest)
    _mark_captures(trace, linked.calls)
    steps.find_steps(linked, step_globs)
    steps.assign_steps(linked)
    steps.measure_coverage(linked)
    evidence.check_links(linked)
    return linked


def _link_ops(ops: Ops) -> tuple[Ints, Nest]:
    """Set parents and outermost ops; returns the ops without regions, and their nest."""
    n = len(ops.start)
    ops.parent = np.full(n, -1, np.int64)
    ops.outermost = np.full(n, -1, np.int64)
    good = np.flatnonzero(~ops.bad)
    parent = Nest(ops.thread[good], ops.start[good], ops.end[good], ops.index[good]).parents()
    ops.parent[good] = np.where(parent >= 0, good[parent], -1)
    real = np.flatnonzero(~ops.bad & ~ops.region)
    inner = Nest(ops.thread[real], ops.start[real], ops.end[real], ops.index[real])
    ops.outermost[real] = real[inner.roots()]
    return real, inner


def _link_calls(ops: Ops, calls: Calls, real: Ints, nest: Nest) -> None:
    inner = nest.innermost(calls.thread, calls.start)
    has = (inner >= 0) & ~calls.bad
    calls.op = np.full(len(inner), -1, np.int64)
    calls.op[has] = real[inner[has]]
    calls.outermost = np.where(calls.op >= 0, ops.outermost[calls.op] if len(ops.start) else -1, -1)


def _link_device(calls: Calls, device: DeviceEvents) -> None:
    """Correlation to call; where several calls share one, a launch by name before others, then the
    first.
    """
    usable = np.flatnonzero(calls.correlation > 0)
    order = usable[
        np.lexsort((calls.start[usable], calls.kind[usable] == 0, calls.correlation[usable]))
    ]
    known, first = np.unique(calls.correlation[order], return_index=True)
    device.call = np.full(len(device.start), -1, np.int64)
    if len(known):
        at = np.minimum(np.searchsorted(known, device.correlation), len(known) - 1)
        hit = (device.correlation > 0) & (known[at] == device.correlation)
        device.call[hit] = order[first[at[hit]]]
    _fold_nested(calls, device)
    linked = device.call[device.call >= 0]
    calls.device_events = np.bincount(linked, minlength=len(calls.start)).astype(np.int64)
    _mark_launches(calls, device)
    _mark_copy_waits(calls, device)
    device.op = np.where(device.call >= 0, calls.op[device.call] if len(calls.op) else -1, -1)
    device.replay_shape = np.full(len(device.start), -1, np.int64)
    _number_graph_events(calls, device)
    # Outside graphs the op around the call is the one.
    device.replay_op[(device.op >= 0) & (device.graph_index < 0)] = -1


def _link_captured(ops: Ops, device: DeviceEvents, real: Ints, nest: Nest) -> None:
    """Device events of graphs take the op around the capture of their node, if that is known."""
    at = np.flatnonzero(device.capture_thread >= 0)
    inner = nest.innermost(device.capture_thread[at], device.capture_start[at])
    at, op = at[inner >= 0], real[inner[inner >= 0]]
    device.replay_op[at], device.replay_shape[at] = ops.name[op], ops.shape[op]


def _fold_nested(calls: Calls, device: DeviceEvents) -> None:
    """Make one launch of a launch call and those within it: a driver call in a runtime call.

    The outer one owns what the inner ones started.
    """
    launching = np.flatnonzero((calls.kind > 0) & ~calls.bad)
    if not len(launching):
        return
    nest = Nest(
        calls.thread[launching],
        calls.start[launching],
        calls.end[launching],
        calls.index[launching],
    )
    outer = launching[nest.roots()]
    nested = (outer != launching) & (calls.end[launching] <= calls.end[outer])
    owner = np.arange(len(calls.start))
    owner[launching[nested]] = outer[nested]
    calls.kind[launching[nested]] = classification.LAUNCH_KINDS.index("none")
    has = device.call >= 0
    device.call[has] = owner[device.call[has]]


def _mark_launches(calls: Calls, device: DeviceEvents) -> None:
    """Who owns a kernel has launched it, by whatever name: a memset may run a kernel that fills."""
    kernels = device.call[(device.call >= 0) & (device.kind == DEVICE_KINDS.index("kernel"))]
    by_name = [classification.LAUNCH_KINDS.index(kind) for kind in ("kernel", "graph")]
    unnamed = np.unique(kernels[~np.isin(calls.kind[kernels], by_name)])
    calls.kind[unnamed] = classification.LAUNCH_KINDS.index("kernel")
    calls.account[unnamed] = classification.ACCOUNTS.index("launch")
    calls.no_translation[unnamed] = False


def _mark_copy_waits(calls: Calls, device: DeviceEvents) -> None:
    """How long each copy that ended on the host after it had ended on the device waited for its
    turn: from the call's start to the end of what its device had begun before the copy.
    """
    calls.copy_wait = np.zeros(len(calls.start), np.int64)
    sound = np.flatnonzero(~device.bad)
    memory = classification.ACCOUNTS.index("memory")
    own = sound[device.call[sound] >= 0]
    own = own[(calls.account == memory)[device.call[own]]]
    # The first event of each call: a copy may be made in parts.
    own = own[np.lexsort((device.start[own], device.call[own]))]
    called, first = np.unique(device.call[own], return_index=True)
    last_end = np.maximum.reduceat(device.end[own], first) if len(own) else device.end[own]
    first = own[first]
    turn = device.start[first]
    for one in np.unique(device.device[first]).tolist():
        others = sound[device.device[sound] == one]
        others = others[np.argsort(device.start[others], kind="stable")]
        reach = np.concatenate(([_NEVER], np.maximum.accumulate(device.end[others])))
        mine = device.device[first] == one
        earlier = reach[np.searchsorted(device.start[others], turn[mine])]
        turn[mine] = np.minimum(turn[mine], earlier)
    start, end = calls.start[called], calls.end[called]
    waited = np.minimum(turn, end) - start
    calls.copy_wait[called] = np.where(end >= last_end, np.maximum(waited, 0), 0)


def _number_graph_events(calls: Calls, device: DeviceEvents) -> None:
    """Set the place of each device event among those of its graph launch; -1 for others."""
    device.graph_index = np.full(len(device.start), -1, np.int64)
    # A replay recorded as one block tells nothing of its events.
    graph = np.flatnonzero((device.call >= 0) & (device.kind != DEVICE_KINDS.index("graph")))
    graph = graph[calls.kind[device.call[graph]] == classification.LAUNCH_KINDS.index("graph")]
    order = graph[np.lexsort((device.index[graph], device.start[graph], device.call[graph]))]
    owner = device.call[order]
    first = np.concatenate(([True], owner[1:] != owner[:-1])) if len(owner) else np.empty(0, bool)
    begin = np.maximum.accumulate(np.where(first, np.arange(len(owner)), 0))
    device.graph_index[order] = np.arange(len(owner)) - begin


def _mark_captures(trace: Trace, calls: Calls) -> None:
    """Number the capture that each captured launch belongs to; -1 outside captures."""
    n = len(calls.start)
    calls.capture = np.full(n, -1, np.int64)
    ids: list[int] = np.unique(calls.name).tolist() if n else []
    begins = np.isin(calls.name, [i for i in ids if "StreamBeginCapture" in trace.strings[i]])
    ends = np.isin(calls.name, [i for i in ids if "StreamEndCapture" in trace.strings[i]])
    graph = classification.LAUNCH_KINDS.index("graph")
    order = np.argsort(calls.start[begins], kind="stable")
    for number, at in enumerate(np.flatnonzero(begins)[order].tolist()):
        thread, begin = calls.thread[at], calls.start[at]
        after = calls.start[ends & (calls.thread == thread) & (calls.start >= begin)]
        stop = int(after.min()) if len(after) else int(calls.end.max()) + 1
        inside = (
            (calls.thread == thread)
            & (calls.start >= begin)
            & (calls.start < stop)
            & (calls.kind > 0)
            & (calls.kind != graph)
            & (calls.device_events == 0)
            & (calls.capture < 0)
        )
        calls.capture[inside] = number
