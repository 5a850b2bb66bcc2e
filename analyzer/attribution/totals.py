"""Sums over the launches and device events of a step, of a trace, of a run; HDBI from them.

Reads no table. Integer nanoseconds; None is unknown. A sum with an unknown part is unknown, unless
its definition says otherwise. Sources: TaxBreak (arXiv:2603.12465), SKIP (arXiv:2504.11750).
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from analyzer.attribution import classification
from analyzer.attribution.decomposition import UNKNOWN, Floor, Launches, known
from analyzer.attribution.events import DEVICE_KINDS, LinkedTrace
from analyzer.attribution.intervals import Bools, Ints, length, union
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
    calls, device, ops = a.calls, a.device, a.ops
    if number is None:
        here, event = np.ones(len(launches.call), bool), np.ones(len(device.start), bool)
        call, op = np.ones(len(calls.start), bool), np.ones(len(ops.start), bool)
    else:
        here, event = launches.step == number, device.step == number
        call, op = calls.step == number, ops.step == number
    duration = device.end - device.start
    kind = [event & (device.kind == i) for i in range(len(DEVICE_KINDS))]
    orphan = event & (device.call < 0)
    silent = (
        call
        & np.isin(calls.kind, (_KERNEL_LAUNCH, _GRAPH))
        & (calls.device_events == 0)
        & (calls.capture < 0)
    )
    has_launches = bool(np.isin(calls.kind, (_KERNEL_LAUNCH, _GRAPH)).any())
    has_device = bool(len(device.start))
    kt = _sum(launches.dkt[here]) if has_launches else None
    with_op = here & known(launches.t_dispatch)
    bases = np.unique(launches.t_base[here])
    t_py = _sum(launches.t_py[with_op]) if has_launches else None
    t_dispatch = _sum(launches.t_dispatch[with_op]) if has_launches else None
    orchestration = None if kt is None else (t_py or 0) + (t_dispatch or 0) + kt
    # Replays recorded as one block hide their kernels.
    is_opaque = bool(kind[DEVICE_KINDS.index("graph")].any())
    active = int(duration[kind[0]].sum()) if has_device and not is_opaque else None
    busy = _busy(a, event) if has_device else None
    outside = device.step < 0
    whole = number is None and has_device
    measured = here & known(launches.dkt_fw)
    kt_fw_low = kt_fw_high = kt_fw = None
    if known(launches.replay_launch).any() and kt is not None:
        kt_fw_low = int(launches.dkt_fw[measured].sum())
        rest = here & ~measured & ~launches.is_graph & known(launches.t_launch)
        kt_fw_high = kt_fw_low + int(np.maximum(launches.t_launch - launches.dkt, 0)[rest].sum())
        kt_fw = kt_fw_low if not (here & ~measured & ~launches.is_graph).any() else None
    return Totals(
        kernels=None if is_opaque else int(kind[0].sum()),
        memcpys=int(kind[1].sum()),
        memsets=int(kind[2].sum()),
        launches=int(here.sum()),
        graph_launches=int((here & launches.is_graph).sum()),
        launches_without_op=int((here & ~known(launches.t_dispatch)).sum()),
        orphan_device_events=int(orphan.sum()),
        launches_without_device_event=int(silent.sum()),
        negative_gaps=int((here & known(launches.t_launch) & (launches.t_launch < 0)).sum()),
        clean_launches=int((here & launches.is_clean).sum()),
        bad_time_events=int(device.bad[event].sum() + calls.bad[call].sum() + ops.bad[op].sum()),
        wall_ns=wall_ns,
        device_active_ns=active,
        device_busy_ns=busy,
        device_event_sum_ns=int(duration[event].sum()) if has_device else None,
        orphan_device_ns=int(duration[orphan].sum()),
        active_outside_steps_ns=(
            int(duration[kind[0] & outside].sum()) if whole and not is_opaque else None
        ),
        event_sum_outside_steps_ns=int(duration[outside].sum()) if whole else None,
        busy_in_window_ns=window.busy_ns,
        device_idle_ns=window.idle_ns,
        t_py_ns=t_py,
        t_dispatch_ns=t_dispatch,
        t_base_ns=int(bases[0]) if len(bases) == 1 and bases[0] != UNKNOWN else None,
        ft_ns=_sum(launches.dft[with_op]) if has_launches else None,
        ct_ns=_sum(launches.dct[with_op]) if has_launches else None,
        kt_ns=kt,
        kt_fw_ns=kt_fw,
        kt_fw_low_ns=kt_fw_low,
        kt_fw_high_ns=kt_fw_high,
        ct_paper_ns=_sum(launches.dct_paper[with_op]) if has_launches else None,
        orchestration_ns=orchestration,
        tklqt_ns=(
            int(launches.t_launch[here & known(launches.t_launch)].sum())
            if has_launches and has_device
            else None
        ),
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


def _busy(a: LinkedTrace, event: Bools) -> int:
    device = a.device
    good = event & ~device.bad
    total = 0
    for one in np.unique(device.device[good]).tolist():
        at = good & (device.device == one)
        total += length(*union(device.start[at], device.end[at]))
    return total
