"""Sums over the launches and device events of a step, of a trace, of a run; HDBI from them.

Reads no table. Integer nanoseconds; None is unknown. A sum with an unknown part is unknown, unless
its definition says otherwise. Sources: TaxBreak (arXiv:2603.12465), SKIP (arXiv:2504.11750).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TypeVar

import numpy as np

from analyzer.attribution import classification
from analyzer.attribution.decomposition import UNKNOWN, Floor, Launches, known
from analyzer.attribution.events import DEVICE_KINDS, Calls, DeviceEvents, LinkedTrace, Ops
from analyzer.attribution.intervals import Ints, length, union
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
    everything = _Events(launches, a.device, a.calls, a.ops)
    if number is None:
        return _totals(everything, everything.measured(), floor, wall_ns, window, is_whole=True)
    places = [np.flatnonzero(table.step == number) for table in everything.tables]
    return _totals(everything.at(places), everything.measured(), floor, wall_ns, window)


def of_steps(
    a: LinkedTrace, launches: Launches, floor: Floor, windows: Sequence[Window]
) -> list[Totals]:
    """Totals of each step, as `of_step` gives them; the events are sorted by step once."""
    everything = _Events(launches, a.device, a.calls, a.ops)
    measured = everything.measured()
    groups = [_by_step(table.step, len(a.steps)) for table in everything.tables]
    return [
        _totals(everything.at(places), measured, floor, step.end - step.start, window)
        for step, window, *places in zip(a.steps, windows, *groups, strict=True)
    ]


def _by_step(step: Ints, steps: int) -> list[Ints]:
    """Places of the events of each step."""
    order = np.argsort(step, kind="stable")
    border = np.searchsorted(step[order], np.arange(steps + 1))
    return [order[border[i] : border[i + 1]] for i in range(steps)]


@dataclass(frozen=True)
class _Measured:
    """What a trace has at all: without it a sum is unknown, not 0."""

    launches: bool
    device: bool
    kernels: bool
    replays: bool


@dataclass(frozen=True)
class _Events:
    """The events of a trace, or some of them."""

    launches: Launches
    device: DeviceEvents
    calls: Calls
    ops: Ops

    @property
    def tables(self) -> tuple[Launches, DeviceEvents, Calls, Ops]:
        return self.launches, self.device, self.calls, self.ops

    def measured(self) -> _Measured:
        kinds = {DEVICE_KINDS[i] for i in np.unique(self.device.kind).tolist()}
        return _Measured(
            launches=bool(np.isin(self.calls.kind, (_KERNEL_LAUNCH, _GRAPH)).any()),
            device=bool(len(self.device.start)),
            # A device that does not tell which of its events are kernels says nothing of them.
            kernels=bool(kinds) and ("kernel" in kinds or "mtia" not in kinds),
            replays=bool(known(self.launches.replay_launch).any()),
        )

    def at(self, places: Sequence[Ints]) -> _Events:
        """The events at places of each table, in the order of `tables`."""
        launches, device, calls, ops = places
        return _Events(
            _taken(self.launches, launches),
            _taken(self.device, device),
            _taken(self.calls, calls),
            _taken(self.ops, ops),
        )


_Table = TypeVar("_Table", Launches, DeviceEvents, Calls, Ops)


def _taken(table: _Table, places: Ints) -> _Table:
    columns = {field.name: getattr(table, field.name)[places] for field in fields(table)}
    return type(table)(**columns)


def _totals(
    events: _Events,
    measured: _Measured,
    floor: Floor,
    wall_ns: int,
    window: Window,
    *,
    is_whole: bool = False,
) -> Totals:
    launches, device, calls, ops = events.tables
    duration = device.end - device.start
    kind = [device.kind == i for i in range(len(DEVICE_KINDS))]
    orphan = device.call < 0
    silent = (
        np.isin(calls.kind, (_KERNEL_LAUNCH, _GRAPH))
        & (calls.device_events == 0)
        & (calls.capture < 0)
    )
    kt = _sum(launches.dkt) if measured.launches else None
    with_op = known(launches.t_dispatch)
    bases = np.unique(launches.t_base)
    t_py = _sum(launches.t_py[with_op]) if measured.launches else None
    t_dispatch = _sum(launches.t_dispatch[with_op]) if measured.launches else None
    orchestration = None if kt is None else (t_py or 0) + (t_dispatch or 0) + kt
    # Replays recorded as one block hide their kernels.
    is_opaque = bool(kind[DEVICE_KINDS.index("graph")].any())
    knows_kernels = measured.kernels and not is_opaque
    active = int(duration[kind[0]].sum()) if knows_kernels else None
    busy = _busy(device) if measured.device else None
    outside = device.step < 0
    whole = is_whole and measured.device
    matched = known(launches.dkt_fw)
    kt_fw_low = kt_fw_high = kt_fw = None
    if measured.replays and kt is not None:
        kt_fw_low = int(launches.dkt_fw[matched].sum())
        rest = ~matched & ~launches.is_graph & known(launches.t_launch)
        kt_fw_high = kt_fw_low + int(np.maximum(launches.t_launch - launches.dkt, 0)[rest].sum())
        kt_fw = kt_fw_low if not (~matched & ~launches.is_graph).any() else None
    t_launch = launches.t_launch[known(launches.t_launch)]
    return Totals(
        kernels=None if is_opaque else int(kind[0].sum()),
        memcpys=int(kind[1].sum()),
        memsets=int(kind[2].sum()),
        launches=len(launches.call),
        graph_launches=int(launches.is_graph.sum()),
        launches_without_op=int((~with_op).sum()),
        orphan_device_events=int(orphan.sum()),
        launches_without_device_event=int(silent.sum()),
        negative_gaps=int((t_launch < 0).sum()),
        clean_launches=int(launches.is_clean.sum()),
        bad_time_events=int(device.bad.sum() + calls.bad.sum() + ops.bad.sum()),
        wall_ns=wall_ns,
        device_active_ns=active,
        device_busy_ns=busy,
        device_event_sum_ns=int(duration.sum()) if measured.device else None,
        orphan_device_ns=int(duration[orphan].sum()),
        active_outside_steps_ns=(
            int(duration[kind[0] & outside].sum()) if whole and knows_kernels else None
        ),
        event_sum_outside_steps_ns=int(duration[outside].sum()) if whole else None,
        busy_in_window_ns=window.busy_ns,
        device_idle_ns=window.idle_ns,
        t_py_ns=t_py,
        t_dispatch_ns=t_dispatch,
        t_base_ns=int(bases[0]) if len(bases) == 1 and bases[0] != UNKNOWN else None,
        ft_ns=_sum(launches.dft[with_op]) if measured.launches else None,
        ct_ns=_sum(launches.dct[with_op]) if measured.launches else None,
        kt_ns=kt,
        kt_fw_ns=kt_fw,
        kt_fw_low_ns=kt_fw_low,
        kt_fw_high_ns=kt_fw_high,
        ct_paper_ns=_sum(launches.dct_paper[with_op]) if measured.launches else None,
        orchestration_ns=orchestration,
        tklqt_ns=int(t_launch.sum()) if measured.launches and measured.device else None,
        hdbi=hdbi(active, orchestration),
        hdbi_busy=hdbi(busy, orchestration),
        launch_floor_ns=None if floor.ns == UNKNOWN else floor.ns,
        floor_source=floor.source,
    )


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


def _sum(values: Ints) -> int | None:
    return int(values.sum()) if known(values).all() else None


def _busy(device: DeviceEvents) -> int:
    total = 0
    for one in np.unique(device.device[~device.bad]).tolist():
        at = ~device.bad & (device.device == one)
        total += length(*union(device.start[at], device.end[at]))
    return total
