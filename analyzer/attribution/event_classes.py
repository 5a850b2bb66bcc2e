"""Deals the rows of one trace to its classes: operators, calls, device events, annotations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass

import numpy as np

from analyzer.attribution import classification
from analyzer.attribution.events import (
    DEVICE_KINDS,
    LOST_CLOCK_NS,
    Annotations,
    Calls,
    DeviceEvents,
    LinkedTrace,
    Ops,
    PythonFunctions,
    Step,
)
from analyzer.attribution.intervals import Bools, Ints, ordinals
from analyzer.trace.columns import HAS_BYTES, HAS_CORRELATION, HAS_EXTERNAL
from analyzer.trace.duplicates import repeated
from analyzer.trace.events import (
    ANNOTATION_CATEGORIES,
    DEVICE_CATEGORIES,
    OLD_OP_CATEGORIES,
    OP_CATEGORIES,
    PYTHON_CATEGORIES,
    STEP_CATEGORIES,
    Trace,
    is_call_category,
    is_known_category,
    unread,
)


def split_by_class(trace: Trace) -> LinkedTrace:
    """Return the rows by class, in narrow columns; nothing is linked yet.

    An event that stands twice counts once. A call of an unknown category is known by what it
    launches.
    """
    twice = repeated(trace.rows)
    if twice.any():
        trace.keep(~twice)
    rows = _Rows.of(trace)
    ranges = _old_ranges(rows)
    op_places = rows.places(OP_CATEGORIES)
    device = _device_events(rows, rows.places(DEVICE_CATEGORIES))
    odd = _unknown_calls(rows, device)
    call_places = rows.places([name for name in rows.categories.values() if is_call_category(name)])
    ops = _ops(rows, op_places[~np.isin(op_places, ranges)] if len(ranges) else op_places)
    calls = _calls(rows, _together(call_places, odd))
    python = _python_functions(rows, rows.places(PYTHON_CATEGORIES))
    taken = Counter(rows.categories[i] for i in rows.column("category", odd).tolist())
    rest = unread(trace, taken, int(twice.sum()))
    marks = _annotations(rows, _together(rows.places(ANNOTATION_CATEGORIES), ranges))
    whole = _whole(ops, calls, device)
    return LinkedTrace(trace, rows.threads, ops, calls, device, [], whole, python, marks, rest)


@dataclass(frozen=True)
class _Rows:
    """The rows of a trace, with columns that all classes share.

    Attributes:
        categories: As of `Trace.categories`.
        bad: Which rows have lost their clock: their `end` is `start`.
        thread: Place in `threads`.
    """

    trace: Trace
    categories: dict[int, str]
    bad: Bools
    thread: Ints
    threads: list[tuple[str, str]]

    @classmethod
    def of(cls, trace: Trace) -> _Rows:
        bad = _bad_times(trace.rows["ts"], trace.rows["dur"])
        return cls(trace, trace.categories(), bad, *_threads(trace))

    def places(self, categories: Collection[str]) -> Ints:
        """Which rows are of some categories."""
        return self.trace.places(lambda name: name in categories)

    def column(self, name: str, at: Ints) -> Ints:
        return self.trace.rows[name][at].astype(np.int64, copy=False)

    def start(self, at: Ints) -> Ints:
        return self.column("ts", at)

    def dur(self, at: Ints) -> Ints:
        return self.column("dur", at)

    def end(self, at: Ints) -> Ints:
        return self.start(at) + np.where(self.bad[at], 0, self.dur(at))

    def has(self, flag: int, at: Ints) -> Bools:
        return (self.trace.rows["flags"][at] & flag) != 0

    def classified(self, at: Ints, classify: Callable[[str], int]) -> Ints:
        """What the names of rows say, looked up once a name."""
        ids, inverse = ordinals(self.column("name", at))
        strings: list[str] = [self.trace.strings[i] for i in ids.tolist()]
        return np.array([classify(text) for text in strings], np.int64)[inverse]


def _together(places: Ints, more: Ints) -> Ints:
    """Two sets of places without a common one, in order."""
    return np.sort(np.concatenate((places, more))) if len(more) else places


def _old_ranges(rows: _Rows) -> Ints:
    """Ranges that a user or the profiler marked, in the operators' category."""
    at = rows.places(OLD_OP_CATEGORIES)
    return at[rows.classified(at, classification.is_old_range).astype(bool)]


def _unknown_calls(rows: _Rows, device: DeviceEvents) -> Ints:
    """Events of unknown categories that launch by their name, or own a device event."""
    at = rows.places([name for name in rows.categories.values() if not is_known_category(name)])
    if not len(at):
        return at
    launch = rows.classified(at, _launch_kind)
    by_name = np.isin(launch, [classification.LAUNCH_KINDS.index(k) for k in ("kernel", "graph")])
    correlation = _correlation(rows, at)
    return at[by_name | ((correlation > 0) & np.isin(correlation, device.correlation))]


def _ops(rows: _Rows, at: Ints) -> Ops:
    return Ops(
        index=rows.column("index", at),
        thread=rows.thread[at],
        name=rows.column("name", at),
        start=rows.start(at),
        dur=rows.dur(at),
        end=rows.end(at),
        bad=rows.bad[at],
        region=rows.classified(at, classification.is_region).astype(bool),
        external=rows.column("external", at),
        has_external=rows.has(HAS_EXTERNAL, at),
        shape=rows.column("shape", at),
    )


def _calls(rows: _Rows, at: Ints) -> Calls:
    return Calls(
        index=rows.column("index", at),
        thread=rows.thread[at],
        name=rows.column("name", at),
        start=rows.start(at),
        dur=rows.dur(at),
        end=rows.end(at),
        bad=rows.bad[at],
        account=rows.classified(at, _account),
        kind=rows.classified(at, _launch_kind),
        no_translation=rows.classified(at, classification.is_no_translation).astype(bool),
        correlation=_correlation(rows, at),
        external=rows.column("external", at),
        has_external=rows.has(HAS_EXTERNAL, at),
        kernel_name=rows.column("kernel", at),
    )


def _account(name: str) -> int:
    return classification.ACCOUNTS.index(classification.account_of_call(name))


def _launch_kind(name: str) -> int:
    return classification.LAUNCH_KINDS.index(classification.launch_kind(name))


def _correlation(rows: _Rows, at: Ints) -> Ints:
    """The correlation id of each row; 0, which no event has, for none and for a negative one."""
    has = rows.has(HAS_CORRELATION, at)
    return np.where(has, np.maximum(rows.column("correlation", at), 0), 0)


def _device_events(rows: _Rows, at: Ints) -> DeviceEvents:
    category = rows.trace.rows["category"][at]
    kind = np.zeros(len(at), np.int64)
    for i, name in rows.categories.items():
        if name in DEVICE_CATEGORIES:
            kind[category == i] = DEVICE_KINDS.index(DEVICE_CATEGORIES[name])
    # A format may name device and stream as process and thread only.
    device, stream = rows.column("device", at), rows.column("stream", at)
    device = np.where(device >= 0, device, rows.column("pid", at))
    stream = np.where(stream >= 0, stream, rows.column("tid", at))
    _, lane = ordinals((device << 32) | (stream & 0xFFFFFFFF))
    captured_in, named = rows.trace.captured_in, rows.trace.named_ops
    captured = np.full(len(at), -1, np.int64) if captured_in is None else captured_in[at]
    return DeviceEvents(
        index=rows.column("index", at),
        kind=kind,
        name=rows.column("name", at),
        device=device,
        stream=stream,
        start=rows.start(at),
        dur=rows.dur(at),
        end=rows.end(at),
        bad=rows.bad[at],
        correlation=_correlation(rows, at),
        external=rows.column("external", at),
        has_external=rows.has(HAS_EXTERNAL, at),
        bytes=rows.column("bytes", at),
        has_bytes=rows.has(HAS_BYTES, at),
        config=rows.column("config", at),
        shape=rows.column("shape", at),
        lane=lane,
        capture_thread=np.where(captured >= 0, rows.thread[captured], -1),
        capture_start=rows.start(captured),
        replay_op=np.full(len(at), -1, np.int64) if named is None else named[at],
    )


def _python_functions(rows: _Rows, at: Ints) -> PythonFunctions:
    return PythonFunctions(
        index=rows.column("index", at),
        thread=rows.thread[at],
        name=rows.column("name", at),
        start=rows.start(at),
        dur=rows.dur(at),
    )


def _annotations(rows: _Rows, at: Ints) -> Annotations:
    at = at[~rows.bad[at]]
    name = rows.column("name", at)
    names: list[str] = [rows.trace.strings[i] for i in name.tolist()]
    is_step = np.isin(at, rows.places(STEP_CATEGORIES))
    return Annotations(names, name, rows.start(at), rows.end(at), rows.thread[at], is_step)


def _bad_times(start: Ints, duration: Ints) -> Bools:
    """Events whose clock is lost: negative, absurdly long, or far from all others."""
    if not len(start):
        return np.empty(0, bool)
    bad = (duration < 0) | (duration > LOST_CLOCK_NS)
    least, most = int(start.min()), int(start.max())
    if most - least <= LOST_CLOCK_NS:
        return bad
    middle = int(np.median(start[duration >= 0])) if (duration >= 0).any() else 0
    # Unsigned distance: the difference of two int64 can overflow.
    return bad | (start > middle + LOST_CLOCK_NS) | (start < middle - LOST_CLOCK_NS)


def _threads(trace: Trace) -> tuple[Ints, list[tuple[str, str]]]:
    """The thread of each row, and all threads by their pids, then tids; a tid of none is last."""
    number = len(trace.strings)
    tids = np.where(trace.rows["tid"] < 0, number, trace.rows["tid"])
    pid_ids, pid = ordinals(trace.rows["pid"])
    tid_ids, tid = ordinals(tids)
    keys, inverse = ordinals(pid * len(tid_ids) + tid)
    texts = [*trace.strings, ""]  # -1 and `number` are the last
    pids: list[int] = pid_ids[keys // len(tid_ids)].tolist() if len(keys) else []
    known: list[int] = tid_ids[keys % len(tid_ids)].tolist() if len(keys) else []
    return inverse, [(texts[a], texts[b]) for a, b in zip(pids, known, strict=True)]


def _whole(ops: Ops, calls: Calls, device: DeviceEvents) -> Step:
    starts, ends = list[int](), list[int]()
    for table in (ops, calls, device):
        good = ~table.bad
        if good.any():
            starts.append(int(table.start[good].min()))
            ends.append(int(table.end[good].max()))
    return Step("trace", "trace", 0, min(starts, default=0), max(ends, default=0))
