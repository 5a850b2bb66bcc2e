"""Which traces of a run are on one clock, and what moves them there."""

from __future__ import annotations

import json
from typing import Any

from analyzer.queries.ranks import ranks
from analyzer.queries.rows import select_tuples
from analyzer.store import Connection


def clock_shifts(connection: Connection, run_id: str) -> dict[int, int] | None:
    """Return what to add to the times of each timed trace, in ns, so that all are on one clock.

    None if that is not known: two files have clocks of their own unless the collectives that they
    share were measured.
    """
    traces = select_tuples(
        connection,
        "SELECT trace_id, file, document, metadata FROM traces "
        "WHERE run_id = $run_id AND role = 'trace' ORDER BY trace_id",
        {"run_id": run_id},
    )
    if len({_recording(*trace[1:]) for trace in traces}) <= 1:
        return {trace[0]: 0 for trace in traces}
    # Each repetition has a first rank of its own, whose clock is that of its ranks.
    offsets = {
        rank.trace_id: rank.clock_offset_ns
        for rank in ranks(connection, run_id)
        if rank.repetition == 0
    }
    shifts = {trace_id: -offset for trace_id, offset in offsets.items() if offset is not None}
    return shifts if shifts.keys() == {trace[0] for trace in traces} else None


def _recording(file: str, document: int, metadata: str | None) -> tuple[str, int]:
    """What was recorded with one clock: the processes of a document, or of a whole report."""
    fields: Any = json.loads(metadata) if metadata else {}
    is_report = fields.get("format") == "Nsight Systems"
    return file, 0 if is_report else document
