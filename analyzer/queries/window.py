"""What happened in a window of a trace: single events, in order of start."""

from __future__ import annotations

from dataclasses import dataclass

from analyzer.queries.rows import select
from analyzer.store import Connection
from analyzer.store.sql_text import named_sql


@dataclass(frozen=True)
class Event:
    """An op, a call or a device event."""

    kind: str  # op | call | kernel | memcpy | memset | mtia | graph
    id: int  # op_id, call_id or device_event_id
    name: str  # kernels' without arguments
    start_ns: int  # on the trace's clock
    dur_ns: int  # on the host, or on the device
    thread_id: int | None  # None for device events
    stream: str | None  # device/stream; None for ops and calls
    call_id: int | None  # of a device event: the call that started it


def window(
    connection: Connection,
    run_id: str,
    trace_id: int,
    start_ns: int,
    end_ns: int,
    *,
    least_ns: int = 0,
    first: int = 0,
    limit: int = 1_000,
) -> list[Event]:
    """The events that overlap [start_ns, end_ns) and last at least `least_ns`."""
    parameters = {
        "run_id": run_id,
        "trace_id": trace_id,
        "start_ns": start_ns,
        "end_ns": end_ns,
        "least_ns": least_ns,
        "first_row": first,
        "row_limit": limit,
    }
    return select(connection, Event, named_sql("window"), parameters)
