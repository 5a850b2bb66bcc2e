"""A step as a schedule of two resources, played again with other times.

The launching thread works and calls; the device runs what it was given in stream order. With
nothing changed the schedule gives the recorded step time back. Integer nanoseconds; scales are in
millionths. Ours; see docs/measurement.md.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import median_low

from analyzer.queries.records import ScheduledCall, ScheduledEvent

ONE = 1_000_000  # a scale of 1, in millionths
QUEUED_NS = 5_000  # a call that ended so long before was waiting in the queue


@dataclass(frozen=True)
class DeviceWork:
    """What a call gave the device: its first event decides, the others keep their distance to it.

    Attributes:
        host_ns, path_ns: From the call's start to the first event's start on an idle stream: the
            host's part, and the rest.
        gap_ns: From the end of the stream's previous event to the start, if it was waiting.
        parts: (offset from the first start, duration, lane) of each event.
    """

    lane: str
    host_ns: int
    path_ns: int
    gap_ns: int
    parts: tuple[tuple[int, int, str], ...]
    family: str | None = None


@dataclass(frozen=True)
class HostCall:
    """One call of the launching thread.

    Attributes:
        work_ns: Host work between the previous call's end and this call's start.
        own_ns: What the call itself costs the host.
        fixed_ns: What it takes whatever the host's speed (a wait for something not modelled).
        returns_ns: None if it does not wait; else it returns so long after the device is done.
    """

    work_ns: int
    own_ns: int
    fixed_ns: int = 0
    returns_ns: int | None = None
    work: DeviceWork | None = None


@dataclass(frozen=True)
class Timeline:
    """A step as a schedule; `rest_ns` is host work after the last call."""

    calls: tuple[HostCall, ...]
    rest_ns: int


def simulate(timeline: Timeline, scale: int = ONE, call_scale: int | None = None) -> int:
    """Return the step's time: to the later of the host's end and the device's.

    Args:
        scale: Host work, in millionths of what was recorded.
        call_scale: The calls' own time; None: as `scale`.
    """
    calls_at = scale if call_scale is None else call_scale
    now = done = 0
    ready: dict[str, int] = {}
    for call in timeline.calls:
        now += scaled(call.work_ns, scale)
        if work := call.work:
            start = now + scaled(work.host_ns, calls_at) + work.path_ns
            if work.lane in ready:
                start = max(start, ready[work.lane] + work.gap_ns)
            for offset, dur, lane in work.parts:
                end = start + offset + dur
                ready[lane] = max(ready.get(lane, end), end)
                done = max(done, end)
        now += scaled(call.own_ns, calls_at) + call.fixed_ns
        if call.returns_ns is not None:
            now = max(now, done + call.returns_ns)
    return max(now + scaled(timeline.rest_ns, scale), done)


def scaled(ns: int, scale: int) -> int:
    return (ns * scale + ONE // 2) // ONE


def timeline(calls: Sequence[ScheduledCall], events: Sequence[ScheduledEvent]) -> Timeline:
    """Make the schedule of a step from its calls and device events, both in order.

    An outer call owns the calls within it and what they started.
    """
    outer: list[ScheduledCall] = []
    owner: dict[int, int] = {}
    reach = 0
    for call in calls:
        if not outer or call.start_ns >= reach:
            outer.append(call)
            reach = call.start_ns + call.dur_ns
        owner[call.call_id] = len(outer) - 1
    given: dict[int, list[ScheduledEvent]] = {}
    for event in events:
        if event.call_id in owner:
            given.setdefault(owner[event.call_id], []).append(event)
    before = _ends_before(events)
    path, gap = _usual(outer, given, before)
    made: list[HostCall] = []
    now = done = 0
    for number, call in enumerate(outer):
        start, end = call.start_ns, call.start_ns + call.dur_ns
        own = given.get(number, [])
        work = _device_work(call, own, before, path, gap) if own else None
        done = max([done, *(e.start_ns + e.dur_ns for e in own)])
        one = HostCall(start - now, end - start, work=work)
        if call.account == "wait" or (call.account == "memory" and own and end >= done):
            if done <= start:  # nothing to wait for, but a faster host may have to
                one = replace(one, returns_ns=0)
            elif end >= done:
                one = replace(one, own_ns=0, returns_ns=end - done)
            else:  # it waited for something else than the last event
                one = replace(one, own_ns=0, fixed_ns=end - start)
        made.append(one)
        now = end
    step_ns = calls[0].step_ns if calls else 0
    return Timeline(tuple(made), max(step_ns - now, 0))


def _ends_before(events: Sequence[ScheduledEvent]) -> dict[int, int]:
    """For each event (by identity): until when earlier events of its lane ran."""
    reach: dict[str, int] = {}
    before: dict[int, int] = {}
    for event in events:
        lane = event.lane
        if lane in reach:
            before[id(event)] = reach[lane]
        end = event.start_ns + event.dur_ns
        reach[lane] = max(reach.get(lane, end), end)
    return before


def _usual(
    outer: Sequence[ScheduledCall],
    given: dict[int, list[ScheduledEvent]],
    before: dict[int, int],
) -> tuple[int, int]:
    """The step's usual time from call to kernel on an idle stream, and between queued kernels."""
    paths: list[int] = []
    gaps: list[int] = []
    for number, own in given.items():
        call, first = outer[number], own[0]
        ended = before.get(id(first))
        if ended is None:
            continue
        if ended <= call.start_ns:
            paths.append(first.start_ns - call.start_ns)
        elif call.start_ns + call.dur_ns + QUEUED_NS <= ended:
            gaps.append(first.start_ns - ended)
    return median_low(paths or [5_000]), median_low(gaps or [1_000])


def _device_work(
    call: ScheduledCall,
    own: list[ScheduledEvent],
    before: dict[int, int],
    path: int,
    gap: int,
) -> DeviceWork:
    """So that the schedule starts the first event when it did start, whichever of launch path and
    queue was the later."""
    first = own[0]
    waited = first.start_ns - call.start_ns
    ended = before.get(id(first))
    since = None if ended is None else first.start_ns - ended
    if since is None or (ended is not None and ended <= call.start_ns):
        latency, gap_ns = waited, min(gap, since) if since is not None else gap
    else:
        gap_ns = min(since, gap)
        latency = min(waited, path) if since <= gap else waited
    host = max(min(call.dur_ns, latency), 0)
    begin = first.start_ns
    return DeviceWork(
        first.lane,
        host,
        latency - host,
        gap_ns,
        tuple((e.start_ns - begin, e.dur_ns, e.lane) for e in own),
        first.family if len(own) == 1 else None,
    )


def fused(step: Timeline, most: int, duration: Callable[[list[int]], int]) -> Timeline:
    """Merge up to `most` neighbouring elementwise launches; `duration` makes one of theirs."""
    made: list[HostCall] = []
    group: list[HostCall] = []

    def close() -> None:
        if not group:
            return
        first = group[0]
        assert first.work is not None
        offset, _, lane = first.work.parts[0]
        dur = duration([c.work.parts[0][1] for c in group if c.work])
        made.append(replace(first, work=replace(first.work, parts=((offset, dur, lane),))))
        group.clear()

    for call in step.calls:
        if call.work and call.work.family == "elementwise":
            if len(group) == most:
                close()
            group.append(call)
        elif call.work or call.returns_ns is not None or not group:
            close()
            made.append(call)
        # A call without work within a group (an attribute, an error query) goes with its launch.
    close()
    return Timeline(tuple(made), step.rest_ns)


def calibrate(step: Timeline, target_ns: int) -> int:
    """The scale of the host's work at which the schedule takes `target_ns`, or comes nearest."""
    low, high = 1, 4 * ONE
    while low < high:
        middle = (low + high) // 2
        if simulate(step, middle) < target_ns:
            low = middle + 1
        else:
            high = middle
    return low
