"""The events of one trace by class, in narrow columns: operators, calls, device events, steps.

Ids are ordinals in the arrays; -1 is none. Times are integer nanoseconds on the trace's clock. The
columns of links are empty until `links.py` and `steps.py` fill them.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from analyzer.attribution.intervals import Bools, Ints
from analyzer.attribution.step_dialects import StepMark
from analyzer.trace.events import (
    Trace,
    Unread,
)

DEVICE_KINDS = ("kernel", "memcpy", "memset", "mtia", "graph")

# An event this far from the trace's middle, or this long, has lost its clock.
LOST_CLOCK_NS = 30 * 86_400 * 10**9


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
    copy_wait: Ints = field(default_factory=_unlinked)  # from its start, for earlier device work


@dataclass
class DeviceEvents:
    """Kernels, copies, memsets (MTIA events, and graph replays recorded as one block each).

    Attributes:
        kind: Place in DEVICE_KINDS.
        dur: As written; `end` is `start` where the time is bad.
        shape: Text of `trace.columns.collective`, for a collective's kernel.
        lane: Ordinal of (device, stream).
        capture_thread, capture_start: Where and when its graph node was captured, if the trace
            tells; else thread -1.
        call, op: The call that started it, and that call's op.
        replay_op, replay_shape: String ids of the name and the shapes of the op that launched it
            when its graph was captured, or that it names itself.
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
    shape: Ints
    lane: Ints
    capture_thread: Ints
    capture_start: Ints
    replay_op: Ints
    call: Ints = field(default_factory=_unlinked)
    op: Ints = field(default_factory=_unlinked)
    replay_shape: Ints = field(default_factory=_unlinked)
    graph_index: Ints = field(default_factory=_unlinked)
    step: Ints = field(default_factory=_unlinked)


@dataclass
class PythonFunctions:
    """Calls of Python functions, where the trace was read with them."""

    index: Ints
    thread: Ints
    name: Ints
    start: Ints
    dur: Ints


@dataclass
class Step:
    """A window of the host's time: [start, end).

    Attributes:
        mark: What the engine's text says; None for other steps.
        outer: Name of the engine's mark around it.
        is_warm_up: A first repetition that is slower than the rest; in no median.
    """

    name: str
    phase: str
    index: int
    start: int
    end: int
    thread: int = -1
    mark: StepMark | None = None
    outer: str | None = None
    is_warm_up: bool = False


@dataclass
class StepSource:
    """What told the steps of a trace.

    Attributes:
        name: One of `steps.SOURCES`.
        coverage: Share of the trace's launches in its steps; None without launches.
        confidence: 1 for marks; for repetitions the share of launches that they have in common;
            None if the whole trace is one step.
    """

    name: str
    coverage: float | None = None
    confidence: float | None = None


@dataclass
class Annotations:
    """The annotations of a trace, bad times left out.

    Attributes:
        name: The string id of each.
        is_step: The format itself calls it a step.
    """

    names: list[str]
    name: Ints
    start: Ints
    end: Ints
    thread: Ints
    is_step: Bools


@dataclass
class LinkedTrace:
    """One trace, linked.

    Attributes:
        threads: The (pid, tid) JSON texts of each thread ordinal.
        steps: In order of start; `[whole]` if nothing marks steps.
        whole: The window of all events with sound times.
        step_source: What told the steps.
        unread: What of the trace is in none of the columns.
    """

    trace: Trace
    threads: list[tuple[str, str]]
    ops: Ops
    calls: Calls
    device: DeviceEvents
    steps: list[Step]
    whole: Step
    python: PythonFunctions
    annotations: Annotations
    unread: Unread
    step_source: StepSource = field(default_factory=lambda: StepSource("trace"))
