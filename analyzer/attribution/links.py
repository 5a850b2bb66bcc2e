"""Who started what: device event to call, call to op, everything to its step.

Works on one trace's columns (`kineto.Trace`); see docs/measurement.md for the rules. Ids are
ordinals in the arrays; -1 is none. Times are integer nanoseconds on the trace's clock.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from analyzer.attribution import classification
from analyzer.attribution.intervals import Bools, Ints, Nest, ordinals
from analyzer.trace.columns import HAS_BYTES, HAS_CORRELATION, HAS_EXTERNAL
from analyzer.trace.kineto import (
    ANNOTATION_CATEGORIES,
    CALL_CATEGORIES,
    DEVICE_CATEGORIES,
    LOST_CLOCK_NS,
    OP_CATEGORIES,
    PYTHON_CATEGORIES,
    Finding,
    Trace,
)

DEVICE_KINDS = ("kernel", "memcpy", "memset", "mtia")
DEFAULT_STEP_GLOBS = (("hostbound.*",), ("ProfilerStep#*",))


@dataclass
class Ops:
    """Operators and regions, sorted as in the file."""

    index: Ints
    thread: Ints
    name: Ints
    start: Ints
    dur: Ints  # as written; `end` is `start` where the time is bad
    end: Ints
    bad: Bools
    region: Bools
    external: Ints
    has_external: Bools
    shape: Ints
    parent: Ints = field(default_factory=lambda: np.empty(0, np.int64))
    outermost: Ints = field(default_factory=lambda: np.empty(0, np.int64))
    step: Ints = field(default_factory=lambda: np.empty(0, np.int64))


@dataclass
class Calls:
    """Runtime and driver API calls."""

    index: Ints
    thread: Ints
    name: Ints
    start: Ints
    dur: Ints  # as written; `end` is `start` where the time is bad
    end: Ints
    bad: Bools
    account: Ints
    kind: Ints
    no_translation: Bools
    correlation: Ints
    external: Ints
    has_external: Bools
    kernel_name: Ints
    op: Ints = field(default_factory=lambda: np.empty(0, np.int64))
    outermost: Ints = field(default_factory=lambda: np.empty(0, np.int64))
    step: Ints = field(default_factory=lambda: np.empty(0, np.int64))
    device_events: Ints = field(default_factory=lambda: np.empty(0, np.int64))
    capture: Ints = field(default_factory=lambda: np.empty(0, np.int64))


@dataclass
class DeviceEvents:
    """Kernels, copies, memsets (and MTIA events)."""

    index: Ints
    kind: Ints
    name: Ints
    device: Ints
    stream: Ints
    start: Ints
    dur: Ints  # as written; `end` is `start` where the time is bad
    end: Ints
    bad: Bools
    correlation: Ints
    external: Ints
    has_external: Bools
    bytes: Ints
    has_bytes: Bools
    config: Ints
    lane: Ints
    call: Ints = field(default_factory=lambda: np.empty(0, np.int64))
    op: Ints = field(default_factory=lambda: np.empty(0, np.int64))
    captured_op: Ints = field(default_factory=lambda: np.empty(0, np.int64))
    captured_shape: Ints = field(default_factory=lambda: np.empty(0, np.int64))
    graph_index: Ints = field(default_factory=lambda: np.empty(0, np.int64))
    step: Ints = field(default_factory=lambda: np.empty(0, np.int64))


@dataclass
class Step:
    """A window of the host's time: [start, end)."""

    name: str
    phase: str
    index: int
    start: int
    end: int
    thread: int = -1


@dataclass
class Attributed:
    """One trace, linked. `threads[i]` is the (pid, tid) JSON text of thread ordinal i."""

    trace: Trace
    threads: list[tuple[str, str]]
    ops: Ops
    calls: Calls
    device: DeviceEvents
    steps: list[Step]
    whole: Step
    python: dict[str, npt.NDArray[np.int64]]
    step_globs: tuple[str, ...]


def attribute(trace: Trace, step_globs: Sequence[str] = ()) -> Attributed:
    """Link the events of a trace and split it into steps.

    Args:
        trace: As `kineto.read` gives it; its wide rows are let go once the columns are made.
        step_globs: Names of the annotations that mark steps (shell patterns); empty: the
            collector's, else `ProfilerStep#N`, else the whole trace is one step.

    Findings about times, links and steps are added to `trace.findings`.
    """
    result, notes = _columns(trace)
    trace.rows = np.array(trace.rows[:0])
    _count_bad_times(trace, result.ops, result.calls, result.device)
    _link_calls(result.ops, result.calls, *_link_ops(result.ops))
    _link_device(result.calls, result.device)
    _mark_captures(trace, result.calls)
    _find_steps(result, notes, step_globs)
    _assign_steps(result)
    _count_links(result)
    return result


@dataclass
class _Notes:
    """The annotations of a trace, bad times left out."""

    names: list[str]
    start: Ints
    end: Ints
    thread: Ints


def _columns(trace: Trace) -> tuple[Attributed, _Notes]:
    """The rows by class, in narrow columns; nothing is linked yet."""
    rows = trace.rows
    categories = trace.categories()

    def of(*names: str) -> npt.NDArray[np.int64]:
        ids = [i for i, name in categories.items() if name in names]
        return np.flatnonzero(np.isin(rows["category"], ids))

    start = rows["ts"].astype(np.int64)
    duration = rows["dur"].astype(np.int64)
    bad = _bad_times(start, duration)
    thread, threads = _threads(trace)
    at_op, at_call, at_device = of(*OP_CATEGORIES), of(*CALL_CATEGORIES), of(*DEVICE_CATEGORIES)
    at_python, at_note = of(*PYTHON_CATEGORIES), of(*ANNOTATION_CATEGORIES)

    def column(name: str, at: npt.NDArray[np.int64]) -> Ints:
        return rows[name][at].astype(np.int64)

    def flag(bit: int, at: npt.NDArray[np.int64]) -> Bools:
        return (rows["flags"][at] & bit) != 0

    def table(at: npt.NDArray[np.int64], judge: str) -> Ints:
        """A property of names, looked up once a name."""
        ids, inverse = ordinals(column("name", at))
        ids_: list[int] = ids.tolist()
        values = [_JUDGES[judge](trace.strings[i]) for i in ids_]
        return np.array(values, np.int64)[inverse] if len(ids) else np.empty(0, np.int64)

    end = start + np.where(bad, 0, duration)
    ops = Ops(
        index=column("index", at_op),
        thread=thread[at_op],
        name=column("name", at_op),
        start=start[at_op],
        dur=duration[at_op],
        end=end[at_op],
        bad=bad[at_op],
        region=table(at_op, "region").astype(bool),
        external=column("external", at_op),
        has_external=flag(HAS_EXTERNAL, at_op),
        shape=column("shape", at_op),
    )
    correlation = np.where(flag(HAS_CORRELATION, at_call), column("correlation", at_call), 0)
    calls = Calls(
        index=column("index", at_call),
        thread=thread[at_call],
        name=column("name", at_call),
        start=start[at_call],
        dur=duration[at_call],
        end=end[at_call],
        bad=bad[at_call],
        account=table(at_call, "account"),
        kind=table(at_call, "kind"),
        no_translation=table(at_call, "no_translation").astype(bool),
        correlation=np.maximum(correlation, 0),
        external=column("external", at_call),
        has_external=flag(HAS_EXTERNAL, at_call),
        kernel_name=column("kernel", at_call),
    )
    device = _device_events(trace, at_device, start, end, bad)
    whole = _whole(ops, calls, device)
    python = {
        "index": column("index", at_python),
        "thread": thread[at_python],
        "name": column("name", at_python),
        "start": start[at_python],
        "dur": duration[at_python],
    }
    at_note = at_note[~bad[at_note]]
    name_ids: list[int] = rows["name"][at_note].tolist()
    notes = _Notes(
        [trace.strings[i] for i in name_ids], start[at_note], end[at_note], thread[at_note]
    )
    return Attributed(trace, threads, ops, calls, device, [], whole, python, ()), notes


_JUDGES: dict[str, Callable[[str], int]] = {
    "region": classification.is_region,
    "account": lambda name: classification.ACCOUNTS.index(classification.account_of_call(name)),
    "kind": lambda name: classification.LAUNCH_KINDS.index(classification.launch_kind(name)),
    "no_translation": classification.is_no_translation,
}


def _bad_times(start: Ints, duration: Ints) -> Bools:
    """Events whose clock is lost: negative, absurdly long, or far from all others."""
    if not len(start):
        return np.empty(0, bool)
    middle = int(np.median(start[duration >= 0])) if (duration >= 0).any() else 0
    # Unsigned distance: the difference of two int64 can overflow.
    far = (start > middle + LOST_CLOCK_NS) | (start < middle - LOST_CLOCK_NS)
    return (duration < 0) | (duration > LOST_CLOCK_NS) | far


def _threads(trace: Trace) -> tuple[Ints, list[tuple[str, str]]]:
    rows = trace.rows
    key = (rows["pid"].astype(np.int64) << 32) | (rows["tid"].astype(np.int64) & 0xFFFFFFFF)
    keys, inverse = ordinals(key)

    def text(i: int) -> str:
        return trace.strings[i] if i >= 0 else ""

    pairs = [
        (text(k >> 32), text(k & 0xFFFFFFFF if k & 0xFFFFFFFF != 0xFFFFFFFF else -1))
        for k in keys.tolist()
    ]
    return inverse, pairs


def _device_events(
    trace: Trace, at: npt.NDArray[np.int64], start: Ints, end: Ints, bad: Bools
) -> DeviceEvents:
    rows = trace.rows[at]
    kinds = {
        i: DEVICE_KINDS.index(DEVICE_CATEGORIES[name])
        for i, name in trace.categories().items()
        if name in DEVICE_CATEGORIES
    }
    kind = np.zeros(len(rows), np.int64)
    for i, value in kinds.items():
        kind[rows["category"] == i] = value
    device = np.where(rows["device"] >= 0, rows["device"], rows["pid"]).astype(np.int64)
    stream = np.where(rows["stream"] >= 0, rows["stream"], rows["tid"]).astype(np.int64)
    _, lane = ordinals((device << 32) | (stream & 0xFFFFFFFF))
    has = (rows["flags"] & HAS_CORRELATION) != 0
    return DeviceEvents(
        index=rows["index"].astype(np.int64),
        kind=kind,
        name=rows["name"].astype(np.int64),
        device=device,
        stream=stream,
        start=start[at],
        dur=rows["dur"].astype(np.int64),
        end=end[at],
        bad=bad[at],
        correlation=np.where(has, np.maximum(rows["correlation"], 0), 0),
        external=rows["external"].astype(np.int64),
        has_external=(rows["flags"] & HAS_EXTERNAL) != 0,
        bytes=rows["bytes"].astype(np.int64),
        has_bytes=(rows["flags"] & HAS_BYTES) != 0,
        config=rows["config"].astype(np.int64),
        lane=lane,
    )


def _whole(ops: Ops, calls: Calls, device: DeviceEvents) -> Step:
    starts: list[int] = []
    ends: list[int] = []
    for table in (ops, calls, device):
        good = ~table.bad
        if good.any():
            starts.append(int(table.start[good].min()))
            ends.append(int(table.end[good].max()))
    return Step("trace", "trace", 0, min(starts, default=0), max(ends, default=0))


def _count_bad_times(trace: Trace, ops: Ops, calls: Calls, device: DeviceEvents) -> None:
    counts = {
        "ops": int(ops.bad.sum()),
        "calls": int(calls.bad.sum()),
        "device events": int(device.bad.sum()),
    }
    total = sum(counts.values())
    if total:
        first = min(int(t.index[t.bad].min()) for t in (ops, calls, device) if t.bad.any())
        named = ", ".join(f"{n} {what}" for what, n in counts.items() if n)
        trace.findings.append(
            Finding(
                "bad_time",
                "warning",
                total,
                f"event {first}",
                f"{total} events have an impossible start or duration ({named}; first: event "
                f"{first}); they are counted and in no sum of times",
            )
        )


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
    linked = device.call[device.call >= 0]
    calls.device_events = np.bincount(linked, minlength=len(calls.start)).astype(np.int64)
    # Who owns a kernel has launched it, by whatever name.
    kernels = device.call[(device.call >= 0) & (device.kind == DEVICE_KINDS.index("kernel"))]
    unknown = np.unique(kernels[calls.kind[kernels] == classification.LAUNCH_KINDS.index("none")])
    calls.kind[unknown] = classification.LAUNCH_KINDS.index("kernel")
    calls.account[unknown] = classification.ACCOUNTS.index("launch")
    device.op = np.where(device.call >= 0, calls.op[device.call] if len(calls.op) else -1, -1)
    n = len(device.start)
    device.captured_op = np.full(n, -1, np.int64)
    device.captured_shape = np.full(n, -1, np.int64)
    device.graph_index = np.full(n, -1, np.int64)
    graph = np.flatnonzero(device.call >= 0)
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


def _phase(name: str) -> str:
    lowered = name.lower()
    for phase in ("prefill", "decode", "capture"):
        if phase in lowered:
            return phase
    return "step"


def _find_steps(result: Attributed, notes: _Notes, step_globs: Sequence[str]) -> None:
    trace, names = result.trace, notes.names
    for globs in [tuple(step_globs)] if step_globs else DEFAULT_STEP_GLOBS:
        patterns = [re.compile(fnmatch.translate(glob)) for glob in globs]
        found = [i for i, name in enumerate(names) if any(p.match(name) for p in patterns)]
        if found:
            counter: dict[str, int] = {}
            for i in sorted(found, key=lambda i: int(notes.start[i])):
                phase = _phase(names[i])
                index = counter.get(phase, 0)
                counter[phase] = index + 1
                result.steps.append(
                    Step(
                        names[i],
                        phase,
                        index,
                        int(notes.start[i]),
                        int(notes.end[i]),
                        int(notes.thread[i]),
                    )
                )
            result.step_globs = globs
            return
    if step_globs:
        seen = sorted({re.sub(r"\d+", "N", name) for name in names})[:8]
        trace.findings.append(
            Finding(
                "no_step_annotation",
                "warning",
                1,
                None,
                f"no annotation matches {', '.join(step_globs)}; the whole trace is one step. "
                + (f"It has: {', '.join(seen)}" if seen else "It has no annotations"),
            )
        )
    result.steps.append(result.whole)


def step_at(steps: Sequence[Step], time: Ints) -> Ints:
    """Index of the step that holds each time (the one that starts last); -1 outside."""
    if not steps:
        return np.full(len(time), -1, np.int64)
    nest = Nest(
        np.zeros(len(steps), np.int64),
        np.array([s.start for s in steps], np.int64),
        np.array([s.end for s in steps], np.int64),
        np.arange(len(steps)),
    )
    return nest.innermost(np.zeros(len(time), np.int64), time)


def _assign_steps(result: Attributed) -> None:
    steps, ops, calls, device = result.steps, result.ops, result.calls, result.device
    if steps == [result.whole]:  # closed: an event of no length may start at its end
        ops.step = np.where(ops.bad, -1, 0)
        calls.step = np.where(calls.bad, -1, 0)
    else:
        ops.step = np.where(ops.bad, -1, step_at(steps, ops.start))
        calls.step = np.where(calls.bad, -1, step_at(steps, calls.start))
    device.step = np.where(device.call >= 0, calls.step[device.call] if len(calls.step) else -1, -1)
    launching = calls.kind > 0
    for i, step in enumerate([*steps, result.whole]):
        if step is result.whole and i < len(steps):
            continue
        inside = (calls.step == i) if i < len(steps) else ~calls.bad
        for candidates in (
            calls.thread[inside & launching],
            calls.thread[inside],
            ops.thread[(ops.step == i) if i < len(steps) else ~ops.bad],
        ):
            if len(candidates):
                step.thread = int(np.bincount(candidates).argmax())
                break
    if steps == [result.whole]:
        inside_any = calls.thread[launching & ~calls.bad]
        if len(inside_any):
            result.whole.thread = int(np.bincount(inside_any).argmax())


def _count_links(result: Attributed) -> None:
    trace, ops, calls, device = result.trace, result.ops, result.calls, result.device
    orphans = int((device.call < 0).sum())
    if orphans:
        length = int((device.end - device.start)[device.call < 0].sum())
        total = int((device.end - device.start).sum())
        trace.findings.append(
            Finding(
                "orphan_device_events",
                "warning",
                orphans,
                None,
                f"{orphans} of {len(device.call)} device events have no launch call in the trace "
                f"(queued before it began, or not recorded): {length / 1e3:.3f} us of "
                f"{total / 1e3:.3f} us device time; they count as device time and belong to no "
                "step",
            )
        )
    if len(calls.start) and len(device.start) == 0 and len(ops.start):
        trace.findings.append(
            Finding(
                "no_device_events", "warning", 1, None, "the trace has calls but no device event"
            )
        )
    if not len(calls.start) and not len(device.start):
        trace.findings.append(
            Finding(
                "no_gpu",
                "note",
                1,
                None,
                "the trace has no GPU activity; it says nothing about a device",
            )
        )
    both = calls.has_external & (calls.correlation > 0)
    if both.any() and (calls.external[both] == calls.correlation[both]).mean() > 0.9:
        trace.findings.append(
            Finding(
                "external_id_is_correlation",
                "note",
                int(both.sum()),
                None,
                "External id only repeats the correlation (PyTorch before 2.3); ops are found by "
                "time",
            )
        )
