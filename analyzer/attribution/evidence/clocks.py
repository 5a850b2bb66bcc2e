"""Times that cannot be: work before its launch, work long after it, clocks that go back."""

from __future__ import annotations

import numpy as np

from analyzer.attribution.decomposition import known
from analyzer.attribution.events import Calls, Ops
from analyzer.attribution.evidence.check import FIGURES, Seen, counted
from analyzer.attribution.evidence.material import Material
from analyzer.attribution.intervals import Ints, union

# A device that stands idle for so long has not waited for a launch that is over.
LATE_NS = 5_000_000
# With work of so many steps waiting, this is long enough.
LATE_STEPS, LATE_BY_STEPS_NS = 3, 1_000_000
# Old traces count whole microseconds: a child may seem to outlast its parent by two.
ROUNDING_NS = 2_000


def late_bursts(m: Material) -> Seen:
    """Idle times of the device in which launched work waited for long."""
    waiting, longest = set[int](), 0
    for ready, began, launches in _late_gaps(m):
        steps = len(np.unique(m.launches.step[launches]))
        if began - ready >= LATE_NS or steps >= LATE_STEPS:
            waiting.update(launches.tolist())
            longest = max(longest, began - ready)
    waited = len(waiting)
    if not waited:
        return Seen(0, len(m.launches.call), "")
    found = (
        f"the device stood idle for up to {longest / 1e6:,.1f} ms while "
        f"{counted(waited, 'launch', 'launches')} waited: stamped late, or waiting for what the "
        "trace does not show"
    )
    return Seen(
        waited,
        len(m.launches.call),
        found,
        not_judged=m.and_balance("device_idle", "launch_time", "step_time"),
    )


def _late_gaps(m: Material) -> list[tuple[int, int, Ints]]:
    """Idle times of a device before which launches had ended: since when its next work was ready,
    when it began, and the launches that waited.
    """
    device, calls, launches = m.linked.device, m.linked.calls, m.launches
    has = np.flatnonzero((launches.first >= 0) & known(launches.t_launch))
    first, call = launches.first[has], launches.call[has]
    found: list[tuple[int, int, Ints]] = []
    for one in np.unique(device.device[first]).tolist():
        at = (device.device == one) & ~device.bad
        starts, ends = union(device.start[at], device.end[at])
        mine = device.device[first] == one
        begin, ready = device.start[first[mine]], calls.end[call[mine]]
        order = np.argsort(begin, kind="stable")
        begin, ready, numbers = begin[order], ready[order], has[mine][order]
        gap = np.searchsorted(starts, begin, "right") - 1
        leads = begin == starts[gap]
        before = np.where(gap > 0, ends[np.maximum(gap - 1, 0)], np.iinfo(np.int64).min)
        since = np.maximum(before, ready)
        for i in np.flatnonzero(leads & (begin - since >= LATE_BY_STEPS_NS)).tolist():
            waiting = ready[i:] <= begin[i] - LATE_BY_STEPS_NS
            found.append((int(since[i]), int(begin[i]), numbers[i:][waiting]))
    return found


def clocks(m: Material) -> Seen:
    """Device events before their launch, events that overlap where one thread cannot, lost times,
    clocks of ranks that are apart.
    """
    gap = m.launches.t_launch[known(m.launches.t_launch)]
    early = int((gap < 0).sum())
    crossing = _crossings(m.linked.ops) + _crossings(m.linked.calls)
    lost = sum(finding.count for finding in m.finding("bad_time"))
    parts: list[str] = []
    if early:
        parts.append(
            f"{early:,} of {counted(len(gap), 'launch', 'launches')} begin on the device before "
            f"their call (by up to {-int(gap.min()) / 1e3:,.1f} us): its clock is off"
        )
    if crossing:
        parts.append(
            f"{counted(crossing, 'operator or call', 'operators and calls')} begin within another "
            "of their thread and outlast it: time went back"
        )
    if lost:
        parts.append(f"{counted(lost, 'event')} of impossible start or duration")
    if m.ranks_apart_ns:
        parts.append(f"its clock is {m.ranks_apart_ns / 1e3:,.1f} us apart from another rank's")
    count = early + crossing + lost + bool(m.ranks_apart_ns)
    if not count:
        return Seen(0, len(gap), "")
    figures = {"device_idle"}
    if early or m.ranks_apart_ns:
        figures |= set(m.and_balance("launch_time"))
    if crossing or lost:
        figures |= {"host_time", "host_cost", "hdbi"}
    if lost:
        figures |= {"launch_time", "step_time"}
    return Seen(
        count,
        len(gap),
        "; ".join(parts),
        # An event of impossible times is in no sum.
        at_least=("device_time",) if m.linked.device.bad.any() else (),
        not_judged=tuple(name for name in FIGURES if name in figures),
    )


def _crossings(events: Ops | Calls) -> int:
    """How many events of a thread begin within an earlier one and outlast it."""
    good = np.flatnonzero(~events.bad)
    order = good[np.lexsort((-events.end[good], events.start[good], events.thread[good]))]
    thread, start, end = events.thread[order], events.start[order], events.end[order]
    count = 0
    for part in np.split(np.arange(len(order)), np.flatnonzero(np.diff(thread)) + 1):
        # Where each event ends at the latest of those before it, and that one is still open.
        reach = np.maximum.accumulate(end[part])[:-1] if len(part) else end[:0]
        later = part[1:]
        over = np.minimum(end[later] - reach, reach - start[later])
        count += int((over > ROUNDING_NS).sum())
    return count
