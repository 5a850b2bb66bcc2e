"""The rows of one trace, a function a table; `schemas/sql/tables.sql` says what the columns are.

Ids go on from the traces before; -1 becomes NULL, and so does an unknown duration.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from operator import attrgetter

import numpy as np
import pyarrow as pa

from analyzer.attribution import classification, ledger, steps
from analyzer.attribution.events import DEVICE_KINDS, LinkedTrace
from analyzer.attribution.intervals import Ints
from analyzer.attribution.step_dialects import COUNTS
from analyzer.attribution.totals import Totals
from analyzer.ingest import arrow
from analyzer.ingest.analysis import AnalysedTrace
from analyzer.ingest.arrow import Column


def trace_tables(trace: AnalysedTrace) -> dict[str, pa.Table]:
    """Return the tables of a trace's events, steps and figures, by name."""
    tables: dict[str, Callable[[AnalysedTrace], pa.Table]] = {
        "ops": ops_table,
        "calls": calls_table,
        "device_events": device_events_table,
        "launches": launches_table,
        "python_functions": python_functions_table,
        "steps": steps_table,
        "ledger": ledger_table,
        "totals": totals_table,
    }
    return {name: make(trace) for name, make in tables.items()}


def ops_table(trace: AnalysedTrace) -> pa.Table:
    ops, first = trace.linked.ops, trace.first
    return arrow.table(
        op_id=np.arange(len(ops.start)) + first.op,
        event_index=ops.index,
        thread_id=trace.thread_ids[ops.thread],
        name_id=trace.name_ids[ops.name],
        start_ns=ops.start,
        dur_ns=ops.dur,
        is_region=ops.region,
        bad_time=ops.bad,
        external_id=arrow.present(ops.has_external, ops.external),
        shape_id=arrow.ids(trace.shape_ids[ops.shape]),
        parent_op_id=arrow.ids(ops.parent, first.op),
        outermost_op_id=arrow.ids(ops.outermost, first.op),
        step_id=arrow.ids(ops.step, first.step),
        trace_id=_trace_id(trace, ops.start),
    )


def calls_table(trace: AnalysedTrace) -> pa.Table:
    calls, first = trace.linked.calls, trace.first
    return arrow.table(
        call_id=np.arange(len(calls.start)) + first.call,
        event_index=calls.index,
        thread_id=trace.thread_ids[calls.thread],
        name_id=trace.name_ids[calls.name],
        account=arrow.words(calls.account, classification.ACCOUNTS),
        copy_wait_ns=calls.copy_wait,
        is_launch=calls.kind > 0,
        start_ns=calls.start,
        dur_ns=calls.dur,
        bad_time=calls.bad,
        correlation_id=arrow.present(calls.correlation > 0, calls.correlation),
        external_id=arrow.present(calls.has_external, calls.external),
        op_id=arrow.ids(calls.op, first.op),
        outermost_op_id=arrow.ids(calls.outermost, first.op),
        step_id=arrow.ids(calls.step, first.step),
        device_events=calls.device_events,
        in_capture=calls.capture >= 0,
        trace_id=_trace_id(trace, calls.start),
    )


def device_events_table(trace: AnalysedTrace) -> pa.Table:
    device, first = trace.linked.device, trace.first
    strings = trace.linked.trace.strings
    return arrow.table(
        device_event_id=np.arange(len(device.start)) + first.device_event,
        event_index=device.index,
        kind=arrow.words(device.kind, DEVICE_KINDS),
        name_id=trace.name_ids[device.name],
        kernel_id=arrow.ids(trace.kernel_ids),
        device=arrow.json_ids(device.device, strings),
        stream=arrow.json_ids(device.stream, strings),
        start_ns=device.start,
        dur_ns=device.dur,
        bad_time=device.bad,
        correlation_id=arrow.present(device.correlation > 0, device.correlation),
        external_id=arrow.present(device.has_external, device.external),
        bytes=arrow.present(device.has_bytes, device.bytes),
        call_id=arrow.ids(device.call, first.call),
        op_id=arrow.ids(device.op, first.op),
        captured_op_name_id=arrow.ids(trace.name_ids[device.replay_op]),
        step_id=arrow.ids(device.step, first.step),
        graph_index=arrow.ids(device.graph_index),
        trace_id=_trace_id(trace, device.start),
    )


def launches_table(trace: AnalysedTrace) -> pa.Table:
    launches, first = trace.launches, trace.first
    return arrow.table(
        call_id=launches.call + first.call,
        step_id=arrow.ids(launches.step, first.step),
        kernel_id=arrow.ids(trace.launch_kernel_ids),
        kernels=arrow.durations(launches.kernels),
        is_graph=launches.is_graph,
        t_py_ns=arrow.durations(launches.t_py),
        t_dispatch_ns=arrow.durations(launches.t_dispatch),
        t_dispatch_raw_ns=arrow.durations(launches.t_dispatch_raw),
        t_dispatch_inner_ns=arrow.durations(launches.t_dispatch_inner),
        t_launch_ns=arrow.durations(launches.t_launch),
        is_clean=launches.is_clean,
        t_exec_ns=arrow.durations(launches.t_exec),
        is_library=launches.is_library,
        dct_ns=arrow.durations(launches.dct),
        dft_ns=arrow.durations(launches.dft),
        dkt_ns=arrow.durations(launches.dkt),
        dkt_fw_ns=arrow.durations(launches.dkt_fw),
        dct_paper_ns=arrow.durations(launches.dct_paper),
        match_tier=_match_tiers(trace),
        replay_dispatch_ns=arrow.durations(launches.replay_dispatch),
        replay_launch_ns=arrow.durations(launches.replay_launch),
        trace_id=_trace_id(trace, launches.call),
    )


def _match_tiers(trace: AnalysedTrace) -> Column:
    """The tier of each launch; NULL for graph launches, and where nothing was replayed."""
    if trace.match_tiers is None:
        return pa.nulls(len(trace.launches.call), pa.string())
    graph = trace.launches.is_graph.tolist()
    return arrow.column(
        [
            None if is_graph else tier
            for tier, is_graph in zip(trace.match_tiers, graph, strict=True)
        ]
    )


def python_functions_table(trace: AnalysedTrace) -> pa.Table:
    python = trace.linked.python
    return arrow.table(
        event_index=python.index,
        thread_id=trace.thread_ids[python.thread],
        name_id=trace.name_ids[python.name],
        start_ns=python.start,
        dur_ns=python.dur,
        trace_id=_trace_id(trace, python.start),
    )


def steps_table(trace: AnalysedTrace) -> pa.Table:
    ranges = _device_ranges(trace.linked)
    gaps = steps.between_steps(trace.linked, ledger.busy_measure(trace.linked))
    return arrow.rows_table(
        [
            {
                "step_id": trace.first.step + i,
                "trace_id": trace.first.trace,
                "name": step.name,
                "phase": step.phase,
                "step_index": step.index,
                "thread_id": int(trace.thread_ids[step.thread]) if step.thread >= 0 else None,
                "start_ns": step.start,
                "end_ns": step.end,
                "elapsed_ns": max(step.end, ran[1] if ran else step.end) - step.start,
                "device_start_ns": ran[0] if ran else None,
                "device_end_ns": ran[1] if ran else None,
                "period_ns": gap.period_ns if gap else None,
                "between_ns": gap.ns if gap else None,
                "between_exposed_ns": gap.exposed_ns if gap else None,
                "is_warm_up": step.is_warm_up,
                "outer_name": step.outer,
                "engine": step.mark.engine if step.mark else None,
                **{name: getattr(step.mark, name, None) for name in COUNTS},
            }
            for i, (step, ran, gap) in enumerate(zip(trace.linked.steps, ranges, gaps, strict=True))
        ]
    )


def _device_ranges(linked: LinkedTrace) -> list[tuple[int, int] | None]:
    """First start and last end of what each step launched; None for a step without device event."""
    number, device = len(linked.steps), linked.device
    first = np.full(number, np.iinfo(np.int64).max, np.int64)
    last = np.full(number, np.iinfo(np.int64).min, np.int64)
    good = (device.step >= 0) & ~device.bad
    np.minimum.at(first, device.step[good], device.start[good])
    np.maximum.at(last, device.step[good], device.end[good])
    pairs = zip(first.tolist(), last.tolist(), strict=True)
    return [pair if pair[0] <= pair[1] else None for pair in pairs]


def ledger_table(trace: AnalysedTrace) -> pa.Table:
    entries = trace.ledger
    rows = len(entries.ns)
    exposed = pa.nulls(rows, pa.int64()) if entries.exposed_ns is None else entries.exposed_ns
    return arrow.table(
        trace_id=_trace_id(trace, entries.ns),
        step_id=arrow.ids(entries.step, trace.first.step),
        thread_id=trace.thread_ids[entries.thread],
        is_main=entries.is_main,
        account=arrow.words(entries.account, classification.ACCOUNTS),
        ns=entries.ns,
        exposed_ns=exposed,
    )


def totals_table(trace: AnalysedTrace) -> pa.Table:
    """The whole trace first, with no step; then its steps."""
    rows = [trace.whole, *trace.steps]
    step = np.arange(-1, len(trace.steps))
    names = [field.name for field in fields(Totals)]
    columns = zip(*map(attrgetter(*names), rows), strict=True)
    return arrow.table(
        trace_id=_trace_id(trace, step),
        step_id=arrow.ids(step, trace.first.step),
        **{name: arrow.column(values) for name, values in zip(names, columns, strict=True)},
    )


def _trace_id(trace: AnalysedTrace, rows: Ints) -> Column:
    return np.full(len(rows), trace.first.trace, np.int32)
