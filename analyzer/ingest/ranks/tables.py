"""The rows of a run of several ranks, a function a table; `schemas/sql/tables.sql` says what the
columns are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from analyzer.attribution.intervals import Ints
from analyzer.attribution.ranks import JoinedRanks
from analyzer.ingest import arrow
from analyzer.ingest.analysis import AnalysedTrace
from analyzer.ingest.run_ids import Texts


def rank_tables(
    joined: Sequence[JoinedRanks], traces: Sequence[AnalysedTrace], names: Texts
) -> dict[str, pa.Table]:
    """Return the tables of ranks, collectives and waits, by name.

    Args:
        traces: The run's timed traces.
        names: The run's names; those that waits are charged to are added.
    """
    parts = {"ranks": ranks_table(joined), "waits": waits_table(joined, traces, names)}
    first = 0
    collectives: list[pa.Table] = []
    for one in joined:
        collectives.append(collectives_table(one, traces, first))
        first += int(one.collectives.instance.max(initial=-1)) + 1
    return parts | {"collectives": pa.concat_tables(collectives)} if joined else {}


def ranks_table(joined: Sequence[JoinedRanks]) -> pa.Table:
    return arrow.rows_table(
        [
            {
                "trace_id": rank.trace,
                "rank": rank.rank,
                "world_size": rank.world_size,
                "label": rank.label,
                "repetition": rank.repetition,
                "clock_offset_ns": clock.offset_ns,
                "clock_error_ns": clock.error_ns,
                "clock_trace_id": one.ranks[clock.reference].trace,
                "clock_pairs": clock.pairs,
                "clock_good_pairs": clock.good_pairs,
                "ahead_ns": ahead,
            }
            for one in joined
            for rank, clock, ahead in zip(one.ranks, one.aligned.clocks, one.ahead_ns, strict=True)
        ]
    )


def collectives_table(joined: JoinedRanks, traces: Sequence[AnalysedTrace], first: int) -> pa.Table:
    """The collectives of one set of ranks; their ids begin at `first`."""
    found, aligned, waits = joined.collectives, joined.aligned, joined.waits
    own = [traces[rank.trace] for rank in joined.ranks]
    trace_id = np.array([rank.trace for rank in joined.ranks], np.int64)
    event_id, step_id = np.array(found.event), np.full(len(found.event), -1, np.int64)
    for member, trace in enumerate(own):
        mine = found.member == member
        step = trace.linked.device.step[found.event[mine]]
        step_id[mine] = np.where(step >= 0, step + trace.first.step, -1)
        event_id[mine] += trace.first.device_event
    known = np.array([clock.offset_ns is not None for clock in aligned.clocks])[found.member]
    unknown = np.full(len(found.event), -1, np.int64)
    groups = [series.group for series in found.all_series]
    streams = [series.stream for series in found.all_series]
    judged = aligned.good & (waits is not None)
    late = unknown if waits is None else np.where(waits.late >= 0, trace_id[waits.late], -1)
    return arrow.table(
        collective_id=found.instance + first,
        trace_id=trace_id[found.member].astype(np.int32),
        device_event_id=event_id.astype(np.int32),
        step_id=arrow.ids(step_id),
        process_group=_texts(groups, found.series),
        stream=_texts(streams, found.series),
        number=found.number,
        collective=_texts(found.names, found.name),
        bytes=arrow.present(found.bytes >= 0, found.bytes),
        aligned_start_ns=arrow.present(known, aligned.start),
        dur_ns=found.end - found.start,
        is_pair=pa.array(aligned.good, mask=~aligned.shared),
        wait_ns=arrow.present(judged, unknown if waits is None else waits.wait),
        transfer_ns=arrow.present(judged, unknown if waits is None else waits.transfer),
        late_trace_id=arrow.ids(late),
    )


def _texts(texts: Sequence[str | None], which: Ints) -> arrow.Column:
    known: list[str | None] = [texts[i] for i in which.tolist()]
    return pa.array(known, pa.string())


def waits_table(
    joined: Sequence[JoinedRanks], traces: Sequence[AnalysedTrace], names: Texts
) -> pa.Table:
    rows: list[dict[str, Any]] = []
    for one in joined:
        for charge in one.charges:
            trace = one.ranks[charge.member].trace
            name = charge.name
            rows.append(
                {
                    "trace_id": trace,
                    "step_id": traces[trace].first.step + charge.step if charge.step >= 0 else None,
                    "late_trace_id": one.ranks[charge.late].trace,
                    "account": charge.account,
                    "name_id": None if name is None else names.id(name),
                    "is_before": charge.is_before,
                    "ns": charge.ns,
                }
            )
    return arrow.rows_table(rows)
