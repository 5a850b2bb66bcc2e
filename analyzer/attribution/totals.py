"""Sums over the launches and device events of a step, of a trace, of a run; HDBI from them.

Reads no table. Integer nanoseconds; None is unknown. A sum with an unknown part is unknown, unless
its definition says otherwise. Sources: TaxBreak (arXiv:2603.12465), SKIP (arXiv:2504.11750).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from analyzer.attribution import classification
from analyzer.attribution.decomposition import UNKNOWN, Floor, Launches, known
from analyzer.attribution.events import DEVICE_KINDS, Calls, DeviceEvents, LinkedTrace, Ops
from analyzer.attribution.intervals import Bools, Groups, Ints, covered_by_group, ordinals
from analyzer.attribution.ledger import Window

_KERNEL_LAUNCH = classification.LAUNCH_KINDS.index("kernel")
_GRAPH = classification.LAUNCH_KINDS.index("graph")


@dataclass
class Totals:
    """One row of the table `totals`; the columns are explained there."""

    kernels: int | None
    memcpys: int
    memsets: int
    launches: int
    graph_launches: int
    launches_without_op: int
    orphan_device_events: int
    launches_without_device_event: int
    negative_gaps: int
    clean_launches: int
    bad_time_events: int
    wall_ns: int
    device_active_ns: int | None
    device_busy_ns: int | None
    device_event_sum_ns: int | None
    orphan_device_ns: int
    active_outside_steps_ns: int | None
    event_sum_outside_steps_ns: int | None
    busy_in_window_ns: int | None
    device_idle_ns: int | None
    t_py_ns: int | None
    t_dispatch_ns: int | None
    t_base_ns: int | None
    ft_ns: int | None
    ct_ns: int | None
    kt_ns: int | None
    kt_fw_ns: int | None
    kt_fw_low_ns: int | None
    kt_fw_high_ns: int | None
    ct_paper_ns: int | None
    orchestration_ns: int | None
    tklqt_ns: int | None
    hdbi: float | None
    hdbi_busy: float | None
    launch_floor_ns: int | None
    floor_source: str


def hdbi(device_ns: int | None, orchestration_ns: int | None) -> float | None:
    """Host-Device Balance Index: 0 host-bound, 1 device-bound; None if unknown or nothing ran.

    Raises:
        ValueError: A time is negative.
    """
    if device_ns is None or orchestration_ns is None:
        return None
    if device_ns < 0 or orchestration_ns < 0:
        raise ValueError(
            f"negative time: device {device_ns} ns, orchestration {orchestration_ns} ns"
        )
    both = device_ns + orchestration_ns
    return device_ns / both if both else None


def of_step(
    a: LinkedTrace,
    launches: Launches,
    floor: Floor,
    number: int | None,
    wall_ns: int,
    window: Window,
) -> Totals:
    """Totals of step `number`, or of everything in the trace (None).

    A trace without any launch call measured no launch, one without any device event no device:
    their times are unknown, not 0.
    """

    def group(table: _Table) -> Ints:
        return np.zeros(len(table.step), np.int64) if number is None else table.step - number

    # Of the groups only the one of number 0 is asked for.
    parts = _Parts(*(Groups(group(table), 1) for table in (launches, a.device, a.calls, a.ops)))
    (total,) = _totals(a, launches, floor, parts, [wall_ns], [window], is_whole=number is None)
    return total


def of_steps(
    a: LinkedTrace, launches: Launches, floor: Floor, windows: Sequence[Window]
) -> list[Totals]:
    """Totals of each step, as `of_step` gives them; all at once."""
    tables = (launches, a.device, a.calls, a.ops)
    parts = _Parts(*(Groups(table.step, len(a.steps)) for table in tables))
    walls = [step.end - step.start for step in a.steps]
    return _totals(a, launches, floor, parts, walls, windows)


_Table = Launches | DeviceEvents | Calls | Ops


@dataclass(frozen=True)
class _Parts:
    """The events of a trace by step, each table's."""

    launches: Groups
    device: Groups
    calls: Groups
    ops: Groups


def _totals(
    a: LinkedTrace,
    launches: Launches,
    floor: Floor,
    parts: _Parts,
    walls: Sequence[int],
    windows: Sequence[Window],
    *,
    is_whole: bool = False,
) -> list[Totals]:
    device, calls = a.device, a.calls
    own, events = parts.launches, parts.device
    by_name = np.isin(calls.kind, (_KERNEL_LAUNCH, _GRAPH))
    # What a trace has at all: without it a sum is unknown, not 0.
    has_launches, has_device = bool(by_name.any()), bool(len(device.start))
    duration = device.end - device.start
    kind = [device.kind == i for i in range(len(DEVICE_KINDS))]
    orphan, outside = device.call < 0, device.step < 0
    silent = by_name & (calls.device_events == 0) & (calls.capture < 0)
    with_op, launched = known(launches.t_dispatch), known(launches.t_launch)
    # Replays recorded as one block hide their kernels.
    opaque = events.counts(kind[DEVICE_KINDS.index("graph")]) > 0
    whole = is_whole and has_device

    def summed(values: Ints, where: Bools | None = None) -> _Column:
        """The sum of each step; unknown if one of its values is."""
        if not has_launches:
            return [None] * len(walls)
        missing = ~known(values) if where is None else ~known(values) & where
        return _column(own.sums(values, where), own.counts(missing) == 0)

    def timed(where: Bools | None, has: bool, but: Bools | None = None) -> _Column:
        """Device time of each step; unknown if it was not measured, or where `but`."""
        return _column(events.sums(duration, where), ~but if but is not None and has else has)

    kt, t_py = summed(launches.dkt), summed(launches.t_py, with_op)
    t_dispatch = summed(launches.t_dispatch, with_op)
    orchestration = [
        None if k is None else (p or 0) + (d or 0) + k
        for k, p, d in zip(kt, t_py, t_dispatch, strict=True)
    ]
    # A device that does not tell which of its events are kernels says nothing of them.
    tells_kernels = bool(kind[0].any() or not kind[DEVICE_KINDS.index("mtia")].any())
    active = timed(kind[0], has_device and tells_kernels, opaque)
    busy = _column(_busy(device, events), has_device)
    counts: dict[str, _Column] = {
        "kernels": _column(events.counts(kind[0]), ~opaque),
        "memcpys": events.counts(kind[1]).tolist(),
        "memsets": events.counts(kind[2]).tolist(),
        "launches": own.sizes().tolist(),
        "graph_launches": own.counts(launches.is_graph).tolist(),
        "launches_without_op": own.counts(~with_op).tolist(),
        "orphan_device_events": events.counts(orphan).tolist(),
        "launches_without_device_event": parts.calls.counts(silent).tolist(),
        "negative_gaps": own.counts(launched & (launches.t_launch < 0)).tolist(),
        "clean_launches": own.counts(launches.is_clean).tolist(),
        "bad_time_events": (
            events.counts(device.bad) + parts.calls.counts(calls.bad) + parts.ops.counts(a.ops.bad)
        ).tolist(),
    }
    columns: dict[str, _Column] = {
        **counts,
        "wall_ns": list(walls),
        "device_active_ns": active,
        "device_busy_ns": busy,
        "device_event_sum_ns": timed(None, has_device),
        "orphan_device_ns": timed(orphan, True),
        "active_outside_steps_ns": timed(kind[0] & outside, whole and tells_kernels, opaque),
        "event_sum_outside_steps_ns": timed(outside, whole),
        "busy_in_window_ns": [window.busy_ns for window in windows],
        "device_idle_ns": [window.idle_ns for window in windows],
        "t_py_ns": t_py,
        "t_dispatch_ns": t_dispatch,
        "t_base_ns": _column(*own.common(launches.t_base, UNKNOWN)),
        "ft_ns": summed(launches.dft, with_op),
        "ct_ns": summed(launches.dct, with_op),
        "kt_ns": kt,
        **_above_floor(launches, own, kt),
        "ct_paper_ns": summed(launches.dct_paper, with_op),
        "orchestration_ns": orchestration,
        "tklqt_ns": _column(own.sums(launches.t_launch, launched), has_launches and has_device),
        "hdbi": [hdbi(*both) for both in zip(active, orchestration, strict=True)],
        "hdbi_busy": [hdbi(*both) for both in zip(busy, orchestration, strict=True)],
        "launch_floor_ns": [None if floor.ns == UNKNOWN else floor.ns] * len(walls),
        "floor_source": [floor.source] * len(walls),
    }
    names = [field.name for field in fields(Totals)]
    return [Totals(*row) for row in zip(*(columns[name] for name in names), strict=True)]


def _above_floor(launches: Launches, own: Groups, kt: _Column) -> dict[str, _Column]:
    """dKT_fw of each step, and its bounds where not every launch was matched."""
    if not known(launches.replay_launch).any():
        return {name: [None] * len(kt) for name in ("kt_fw_ns", "kt_fw_low_ns", "kt_fw_high_ns")}
    matched = known(launches.dkt_fw)
    rest = ~matched & ~launches.is_graph
    low = own.sums(launches.dkt_fw, matched)
    above = np.maximum(launches.t_launch - launches.dkt, 0)
    high = low + own.sums(above, rest & known(launches.t_launch))
    is_known = np.array([value is not None for value in kt], bool)
    return {
        "kt_fw_ns": _column(low, is_known & (own.counts(rest) == 0)),
        "kt_fw_low_ns": _column(low, is_known),
        "kt_fw_high_ns": _column(high, is_known),
    }


# A column of Totals: Python numbers, None for unknown.
_Column = list[Any]


def _column(values: Ints, is_known: Bools | bool) -> _Column:
    every: list[int] = values.tolist()
    if isinstance(is_known, bool):
        return every if is_known else [None] * len(every)
    return [value if has else None for value, has in zip(every, is_known.tolist(), strict=True)]


def add(parts: list[Totals]) -> Totals:
    """The totals of several traces of one run, added up."""
    if len(parts) == 1:
        return parts[0]
    values: dict[str, object] = {}
    for field in fields(Totals):
        column = [getattr(part, field.name) for part in parts]
        if field.name in ("hdbi", "hdbi_busy", "t_base_ns"):
            values[field.name] = None
        elif field.name in ("launch_floor_ns", "floor_source"):
            values[field.name] = column[0]
        else:
            values[field.name] = None if any(v is None for v in column) else sum(column)
    total = Totals(**values)  # pyright: ignore[reportArgumentType]
    total.hdbi = hdbi(total.device_active_ns, total.orchestration_ns)
    total.hdbi_busy = hdbi(total.device_busy_ns, total.orchestration_ns)
    return total


def _busy(device: DeviceEvents, by_step: Groups) -> Ints:
    """The length of the union of each step's device events, added over devices."""
    step, at = by_step.members(~device.bad)
    devices, one = ordinals(device.device[at])
    number = max(len(devices), 1)
    key = step * number + one
    covered = covered_by_group(key, device.start[at], device.end[at])
    return Groups(step, by_step.number).sums(covered)
