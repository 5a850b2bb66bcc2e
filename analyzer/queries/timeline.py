"""What a run did when, down-sampled to what a screen can show, and how its times are distributed.

Read-only, like `runs.py`: a connection in, frames and records out. Nothing here returns a row
an event: slices are bounded by lanes x pixel columns, account profiles by accounts x columns,
distributions by points.
Integer nanoseconds on the trace's clock; the SQL is in `analyzer/sql/timeline_*.sql`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import numpy as np
import numpy.typing as npt
import polars as pl

from analyzer.attribution import classification
from analyzer.attribution.accounts import ACCOUNT, LibraryLaunches, cut, give_library
from analyzer.attribution.intervals import Ints, Measure, union
from analyzer.errors import AnalyzerError
from analyzer.queries.rows import Parameters, frame, select, select_tuples
from analyzer.store import Connection
from analyzer.store.sql_text import named_sql

_Column = npt.NDArray[np.generic]


def _columns(connection: Connection, sql: str, parameters: Parameters) -> dict[str, _Column]:
    return cast("dict[str, _Column]", connection.execute(sql, parameters).fetchnumpy())


@dataclass(frozen=True)
class StepTime:
    """When a step was, on the trace's clock."""

    step_id: int  # ordinal in the run
    name: str  # of the annotation
    phase: str  # prefill | decode | capture | step | trace
    thread_id: int | None  # the thread with most launches
    start_ns: int  # its start on the host
    end_ns: int  # its end on the host
    elapsed_ns: int  # start to the later of end_ns and the end of its last device event


@dataclass(frozen=True)
class DeviceEvent:
    """A kernel, copy or memset with its launch, op and match."""

    device_event_id: int  # ordinal in the run
    kind: str  # kernel | memcpy | memset | mtia
    kernel: str  # raw name
    clean_name: str | None  # demangled; None for copies
    family: str | None  # gemm, attention, ...; None for copies
    grid: str | None  # text as in the trace
    block: str | None  # text as in the trace
    shared_memory: int | None  # bytes
    registers: int | None  # per thread
    device: str | None  # as in the trace
    stream: str | None  # as in the trace
    start_ns: int  # on the device
    dur_ns: int  # on the device
    bytes: int | None  # of a copy or memset
    correlation_id: int | None  # None if the trace has none
    graph_index: int | None  # place among the events of its graph launch
    kernel_id: int | None  # its identity; None for copies
    call_id: int | None  # that started it; None for an orphan
    call: str | None  # name of that call
    call_start_ns: int | None  # of that call
    call_dur_ns: int | None  # of that call
    op: str | None  # innermost op of that call
    op_from_capture: bool  # the op is known by the capture of the graph
    input_dims: str | None  # of the op
    input_types: str | None  # of the op
    t_py_ns: int | None  # of the launch
    t_dispatch_ns: int | None  # of the launch
    t_launch_ns: int | None  # of the launch: call start to kernel start
    is_clean: bool | None  # the stream was seen idle at the call
    dft_ns: int | None  # framework translation of the launch
    dct_ns: int | None  # CUDA-library translation of the launch
    dkt_ns: int | None  # launch path of the launch
    match_tier: str | None  # of the kernel replay
    match_reason: str | None  # why it is unmatched


@dataclass(frozen=True)
class HostCall:
    """An API call on the host, and what it started."""

    name: str  # e.g. cudaLaunchKernel
    account: str  # launch | graph_launch | memory | wait | other_call
    start_ns: int  # on the host
    dur_ns: int  # on the host
    thread_id: int | None  # its thread
    device_events: int  # that it started
    correlation_id: int | None  # None if the trace has none
    op: str | None  # innermost op around it


@dataclass(frozen=True)
class HostOp:
    """An operator or region on the host."""

    name: str  # e.g. aten::mm
    start_ns: int  # on the host
    dur_ns: int  # on the host
    thread_id: int | None  # its thread
    input_dims: str | None  # text as in the trace
    input_types: str | None  # text as in the trace


# -- slices


def slices(
    connection: Connection,
    run_id: str,
    trace_id: int,
    start_ns: int,
    end_ns: int,
    columns: int = 800,
) -> pl.DataFrame:
    """What ran in a window, at most one row for each lane and pixel column beside the long events.

    Raises:
        AnalyzerError: The window is empty, or no column was asked for.
    """
    if end_ns <= start_ns or columns < 1:
        raise AnalyzerError("a timeline needs a window with an end after its start.")
    return frame(
        connection,
        named_sql("timeline_slices"),
        {
            "run_id": run_id,
            "trace_id": trace_id,
            "start_ns": start_ns,
            "end_ns": end_ns,
            "pixel_ns": max(1, (end_ns - start_ns) // columns),
        },
    )


def step_times(connection: Connection, run_id: str, trace_id: int) -> list[StepTime]:
    """When the steps of a trace were, in order."""
    return select(
        connection,
        StepTime,
        "SELECT step_id, name, phase, thread_id, start_ns, end_ns, elapsed_ns FROM steps "
        "WHERE run_id = $run_id AND trace_id = $trace_id ORDER BY start_ns, step_id",
        {"run_id": run_id, "trace_id": trace_id},
    )


def threads(connection: Connection, run_id: str) -> dict[int, str]:
    """Name of each thread, else its pid and tid."""
    return {
        thread_id: name or f"pid {pid} tid {tid}"
        for thread_id, pid, tid, name in select_tuples(
            connection,
            "SELECT thread_id, pid, tid, thread_name FROM threads WHERE run_id = $run_id",
            {"run_id": run_id},
        )
    }


def device_event(connection: Connection, run_id: str, device_event_id: int) -> DeviceEvent:
    """One kernel, copy or memset with its launch, op and match.

    Raises:
        AnalyzerError: The run has no such event.
    """
    found = select(
        connection,
        DeviceEvent,
        named_sql("timeline_device_event"),
        {"run_id": run_id, "id": device_event_id},
    )
    if not found:
        raise AnalyzerError(f"this run has no device event {device_event_id}.")
    return found[0]


def op_places(connection: Connection, run_id: str) -> dict[str, tuple[int, str]]:
    """By operator the launch that cost the host most: its trace, and the event, e.g. "op:12"."""
    return {
        op: (trace_id, f"call:{call_id}" if op_id is None else f"op:{op_id}")
        for op, trace_id, op_id, call_id in select_tuples(
            connection, named_sql("op_places"), {"run_id": run_id}
        )
    }


def host_event(connection: Connection, run_id: str, kind: str, event_id: int) -> HostCall | HostOp:
    """One op, region or call: name, thread, times, and what it started.

    Raises:
        AnalyzerError: The run has no such event.
    """
    if kind == "call":
        sql = (
            "SELECT names.name, calls.account, calls.start_ns, calls.dur_ns, calls.thread_id, "
            "calls.device_events, calls.correlation_id, op_name.name AS op FROM calls "
            "LEFT JOIN names ON names.run_id = $run_id AND names.name_id = calls.name_id "
            "LEFT JOIN ops ON ops.run_id = $run_id AND ops.op_id = calls.op_id "
            "LEFT JOIN names AS op_name "
            "ON op_name.run_id = $run_id AND op_name.name_id = ops.name_id "
            "WHERE calls.run_id = $run_id AND calls.call_id = $id"
        )
    else:
        sql = (
            "SELECT names.name, ops.start_ns, ops.dur_ns, ops.thread_id, shapes.input_dims, "
            "shapes.input_types FROM ops "
            "LEFT JOIN names ON names.run_id = $run_id AND names.name_id = ops.name_id "
            "LEFT JOIN shapes ON shapes.run_id = $run_id AND shapes.shape_id = ops.shape_id "
            "WHERE ops.run_id = $run_id AND ops.op_id = $id"
        )
    record: type[HostCall] | type[HostOp] = HostCall if kind == "call" else HostOp
    found = select(connection, record, sql, {"run_id": run_id, "id": event_id})
    if not found:
        raise AnalyzerError(f"this run has no {kind} {event_id}.")
    return found[0]


# -- the ledger along time


class Part:
    """One account's stretches, disjoint and sorted, and how long the device was busy in them."""

    def __init__(self, start: Ints, end: Ints, busy_ns: Ints, busy: Measure) -> None:
        self._start, self._end, self._busy = start, end, busy
        self.time = Measure(start, end)
        self._before = np.concatenate((np.zeros(1, np.int64), np.cumsum(busy_ns)))

    def busy_up_to(self, time: Ints) -> Ints:
        """How long the device was busy during these stretches, up to each time."""
        i = np.searchsorted(self._start, time, "right") - 1
        at = np.maximum(i, 0)
        start = self._start[at]
        last = self._busy.within(start, np.minimum(np.maximum(time, start), self._end[at]))
        return np.where(i < 0, 0, self._before[at] + last)


@dataclass(frozen=True)
class Stretches:
    """Stretches of one thread's time by account, and the device's busy time.

    As the ledger has it: summed over a step, each account is the ledger's figure, to the
    nanosecond. Sums are kept, so that a window costs the same whatever the trace holds.
    """

    thread_id: int
    start: Ints
    parts: dict[str, Part]
    busy_start: Ints
    busy_end: Ints

    def profile(self, start_ns: int, end_ns: int, columns: int = 400) -> pl.DataFrame:
        """Time of each account in each column of a window, and how much of it left the device idle.

        Columns are of equal width; a window with few changes has a column from each to the next,
        which is then of one account, and idle or busy as a whole.

        Returns:
            column, start_ns, end_ns, account, ns, exposed_ns (null in a trace without device
            events); accounts without time are left out.
        """
        columns = max(1, min(columns, end_ns - start_ns))
        edges = np.linspace(start_ns, end_ns, columns + 1).astype(np.int64)
        own = [_between(t, start_ns, end_ns) for t in (self.start, self.busy_start, self.busy_end)]
        if sum(map(len, own)) <= 3 * columns:
            edges = np.unique(np.concatenate((edges[[0, -1]], *own)))
        found: list[pl.DataFrame] = []
        for name, part in self.parts.items():
            ns = np.diff(part.time.up_to(edges))
            some = np.flatnonzero(ns)
            exposed = (ns - np.diff(part.busy_up_to(edges)))[some]
            found.append(
                pl.DataFrame(
                    {
                        "column": some,
                        "start_ns": edges[:-1][some],
                        "end_ns": edges[1:][some],
                        "account": pl.Series([name] * len(some), dtype=pl.String),
                        "ns": ns[some],
                        "exposed_ns": pl.Series(
                            exposed if len(self.busy_start) else [None] * len(some), dtype=pl.Int64
                        ),
                    }
                )
            )
        return pl.concat(found).sort("column", maintain_order=True) if found else pl.DataFrame()


def _between(time: Ints, start_ns: int, end_ns: int) -> Ints:
    low, high = np.searchsorted(time, (start_ns, end_ns))
    return time[low:high]


def stretches(connection: Connection, run_id: str, trace_id: int) -> Stretches | None:
    """The main thread's time by account, over the whole trace; None if no thread has any."""
    main = select_tuples(
        connection,
        "SELECT thread_id FROM ledger WHERE run_id = $run_id AND trace_id = $trace_id AND is_main "
        "ORDER BY step_id NULLS FIRST LIMIT 1",
        {"run_id": run_id, "trace_id": trace_id},
    )
    if not main:
        return None
    thread_id: int = main[0][0]
    where = {"run_id": run_id, "trace_id": trace_id, "thread_id": thread_id}
    here = "run_id = $run_id AND trace_id = $trace_id AND NOT bad_time"
    span = "start_ns, start_ns + dur_ns AS end_ns"
    calls = _columns(
        connection,
        f"SELECT {span}, is_launch, copy_wait_ns, "
        f"list_position({list(classification.ACCOUNTS)!r}, account)::BIGINT - 1 AS account "
        f"FROM calls WHERE {here} AND thread_id = $thread_id",
        where,
    )
    ops = _columns(
        connection,
        f"SELECT {span}, is_region FROM ops WHERE {here} AND thread_id = $thread_id",
        where,
    )
    library = _columns(
        connection,
        "SELECT calls.start_ns, launches.dct_ns, coalesce(steps.start_ns, 0)::BIGINT AS step_ns "
        "FROM launches JOIN calls ON calls.run_id = $run_id AND calls.call_id = launches.call_id "
        "LEFT JOIN steps ON steps.run_id = $run_id AND steps.step_id = launches.step_id "
        "WHERE launches.run_id = $run_id AND launches.trace_id = $trace_id AND launches.dct_ns > 0 "
        "AND calls.thread_id = $thread_id",
        where,
    )
    device = _columns(
        connection,
        f"SELECT {span} FROM device_events WHERE {here}",
        {"run_id": run_id, "trace_id": trace_id},
    )
    in_op = ~ops["is_region"].astype(bool)
    busy_start, busy_end = union(_ints(device["start_ns"]), _ints(device["end_ns"]))
    edges = [
        edge
        for window in select_tuples(
            connection,
            "SELECT start_ns, end_ns FROM steps WHERE run_id = $run_id AND trace_id = $trace_id",
            {"run_id": run_id, "trace_id": trace_id},
        )
        for edge in window
    ]
    edges += [edge for array in (busy_start[:1], busy_end[-1:]) for edge in array.tolist()]
    launching = calls["is_launch"].astype(bool)
    owned = give_library(
        cut(
            (
                _ints(calls["start_ns"]),
                _ints(calls["end_ns"]),
                _ints(calls["account"]),
                _ints(calls["copy_wait_ns"]),
            ),
            (_ints(ops["start_ns"][in_op]), _ints(ops["end_ns"][in_op])),
            (_ints(ops["start_ns"][~in_op]), _ints(ops["end_ns"][~in_op])),
            np.array(edges, np.int64),
        ),
        LibraryLaunches(
            _ints(library["start_ns"]), _ints(library["dct_ns"]), _ints(library["step_ns"])
        ),
        (_ints(calls["start_ns"][launching]), _ints(calls["end_ns"][launching])),
    )
    busy = Measure(busy_start, busy_end)
    # One stretch ends where the next begins, so the device's time at each start tells all.
    busy_ns = np.diff(busy.up_to(np.concatenate((owned.start, owned.end[-1:]))))
    parts = {
        name: Part(owned.start[mine], owned.end[mine], busy_ns[mine], busy)
        for name, code in ACCOUNT.items()
        if (mine := owned.account == code).any()
    }
    return Stretches(thread_id, owned.start, parts, busy_start, busy_end)


def _ints(values: _Column) -> Ints:
    return np.ma.getdata(values).astype(np.int64, copy=False)


# -- distributions and per-run figures

DISTRIBUTIONS = {
    "launch": "SELECT t_launch_ns AS v FROM launches WHERE run_id = $run_id AND is_clean",
    "launch_all": "SELECT t_launch_ns AS v FROM launches WHERE run_id = $run_id",
    "dispatch": "SELECT t_dispatch_ns AS v FROM launches WHERE run_id = $run_id",
    "duration": "SELECT dur_ns AS v FROM device_events "
    "WHERE run_id = $run_id AND kind = 'kernel' AND NOT bad_time",
    "ttft": "SELECT ttft_ns AS v FROM latency WHERE run_id = $run_id",
    "tpot": "SELECT tpot_ns AS v FROM latency WHERE run_id = $run_id",
    "itl": "SELECT unnest(itl_ns) AS v FROM latency WHERE run_id = $run_id",
}


def distribution(
    connection: Connection,
    run_id: str,
    quantity: str,
    *,
    kernel_id: int | None = None,
    points: int = 200,
) -> pl.DataFrame:
    """Quantiles of a quantity: columns share (0 to 1) and ns; empty if nothing was measured.

    Args:
        quantity: A key of DISTRIBUTIONS; "launch" is T_launch of clean launches only.
        kernel_id: One kernel's launches or durations only.
    """
    source = DISTRIBUTIONS[quantity]
    parameters: dict[str, object] = {"run_id": run_id}
    if kernel_id is not None:
        source += " AND kernel_id = $kernel_id"
        parameters["kernel_id"] = kernel_id
    shares = [i / points for i in range(points + 1)]
    ((values,),) = select_tuples(
        connection, f"SELECT quantile_disc(v, {shares}) AS ns FROM ({source})", parameters
    )
    if not values:
        return pl.DataFrame(schema={"share": pl.Float64, "ns": pl.Int64})
    return pl.DataFrame({"share": shares, "ns": values}, schema_overrides={"ns": pl.Int64})


def launches_of(
    connection: Connection, run_id: str, kernel_id: int, limit: int = 100_000
) -> pl.DataFrame:
    """Every launch of one kernel, in order of time."""
    return frame(
        connection,
        named_sql("timeline_launches"),
        {"run_id": run_id, "kernel_id": kernel_id, "row_limit": limit},
    )


def latency_by_run(connection: Connection) -> pl.DataFrame:
    """Each run's un-profiled TTFT and TPOT (medians), kernels per token and TKLQT."""
    return frame(connection, named_sql("timeline_latency_by_run"), {})
