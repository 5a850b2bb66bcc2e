"""The events of one trace by class, in narrow columns: operators, calls, device events, steps.

Ids are ordinals in the arrays; -1 is none. Times are integer nanoseconds on the trace's clock. The
columns of links are empty until `links.py` and `steps.py` fill them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from analyzer.attribution import classification
from analyzer.attribution.intervals import Bools, Ints, ordinals
from analyzer.trace.columns import HAS_BYTES, HAS_CORRELATION, HAS_EXTERNAL
from analyzer.trace.events import (
    ANNOTATION_CATEGORIES,
    CALL_CATEGORIES,
    DEVICE_CATEGORIES,
    OP_CATEGORIES,
    PYTHON_CATEGORIES,
    Trace,
)

DEVICE_KINDS = ("kernel", "memcpy", "memset", "mtia")

# An event this far from the trace's middle, or this long, has lost its clock.
LOST_CLOCK_NS = 30 * 86_400 * 10**9

# What the names of ops and calls say, looked up once a name.
_CLASSIFIERS: dict[str, Callable[[str], int]] = {
    "region": classification.is_region,
    "account": lambda name: classification.ACCOUNTS.index(classification.account_of_call(name)),
    "kind": lambda name: classification.LAUNCH_KINDS.index(classification.launch_kind(name)),
    "no_translation": classification.is_no_translation,
}


def _unlinked() -> Ints:
    return np.empty(0, np.int64)


@dataclass
class Ops:
    """Operators and regions, sorted as in the file.

    Attributes:
        dur: As written; `end` is `start` where the time is bad.
        parent: The op or region that encloses it.
        outermost: The outermost op around it, itself at the top; regions do not count.
    """

    index: Ints
    thread: Ints
    name: Ints
    start: Ints
    dur: Ints
    end: Ints
    bad: Bools
    region: Bools
    external: Ints
    has_external: Bools
    shape: Ints
    parent: Ints = field(default_factory=_unlinked)
    outermost: Ints = field(default_factory=_unlinked)
    step: Ints = field(default_factory=_unlinked)


@dataclass
class Calls:
    """Runtime and driver API calls.

    Attributes:
        dur: As written; `end` is `start` where the time is bad.
        account, kind: Places in `classification.ACCOUNTS` and `LAUNCH_KINDS`.
        kernel_name: String id of the kernel that the call names (AMD).
        op, outermost: Innermost and outermost op around it.
        device_events: How many device events it started.
        capture: Number of the graph capture that recorded it.
    """

    index: Ints
    thread: Ints
    name: Ints
    start: Ints
    dur: Ints
    end: Ints
    bad: Bools
    account: Ints
    kind: Ints
    no_translation: Bools
    correlation: Ints
    external: Ints
    has_external: Bools
    kernel_name: Ints
    op: Ints = field(default_factory=_unlinked)
    outermost: Ints = field(default_factory=_unlinked)
    step: Ints = field(default_factory=_unlinked)
    device_events: Ints = field(default_factory=_unlinked)
    capture: Ints = field(default_factory=_unlinked)


@dataclass
class DeviceEvents:
    """Kernels, copies, memsets (and MTIA events).

    Attributes:
        kind: Place in DEVICE_KINDS.
        dur: As written; `end` is `start` where the time is bad.
        lane: Ordinal of (device, stream).
        call, op: The call that started it, and that call's op.
        replay_op, replay_shape: String ids of the name and the shapes of the op that launched it
            when its graph was captured.
        graph_index: Place among the events of its graph launch.
    """

    index: Ints
    kind: Ints
    name: Ints
    device: Ints
    stream: Ints
    start: Ints
    dur: Ints
    end: Ints
    bad: Bools
    correlation: Ints
    external: Ints
    has_external: Bools
    bytes: Ints
    has_bytes: Bools
    config: Ints
    lane: Ints
    call: Ints = field(default_factory=_unlinked)
    op: Ints = field(default_factory=_unlinked)
    replay_op: Ints = field(default_factory=_unlinked)
    replay_shape: Ints = field(default_factory=_unlinked)
    graph_index: Ints = field(default_factory=_unlinked)
    step: Ints = field(default_factory=_unlinked)


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
class LinkedTrace:
    """One trace, linked.

    Attributes:
        threads: The (pid, tid) JSON texts of each thread ordinal.
        steps: In order of start; `[whole]` if nothing marks steps.
        whole: The window of all events with sound times.
        python: Columns index, thread, name, start and dur of the Python functions.
        step_globs: The annotation patterns that found the steps; empty if none did.
    """

    trace: Trace
    threads: list[tuple[str, str]]
    ops: Ops
    calls: Calls
    device: DeviceEvents
    steps: list[Step]
    whole: Step
    python: dict[str, npt.NDArray[np.int64]]
    step_globs: tuple[str, ...]


@dataclass
class Annotations:
    """The annotations of a trace, bad times left out."""

    names: list[str]
    start: Ints
    end: Ints
    thread: Ints


def split_by_class(trace: Trace) -> tuple[LinkedTrace, Annotations]:
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

    def of_name(at: npt.NDArray[np.int64], classifier: str) -> Ints:
        ids, inverse = ordinals(column("name", at))
        ids_: list[int] = ids.tolist()
        values = [_CLASSIFIERS[classifier](trace.strings[i]) for i in ids_]
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
        region=of_name(at_op, "region").astype(bool),
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
        account=of_name(at_call, "account"),
        kind=of_name(at_call, "kind"),
        no_translation=of_name(at_call, "no_translation").astype(bool),
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
    annotations = Annotations(
        [trace.strings[i] for i in name_ids], start[at_note], end[at_note], thread[at_note]
    )
    return LinkedTrace(trace, threads, ops, calls, device, [], whole, python, ()), annotations


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
