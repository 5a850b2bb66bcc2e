"""Spans that a trace writes as two events, begin (`B`) and end (`E`): each pair becomes one row."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from analyzer.trace.columns import HAS_DUR, HAS_TS, IS_BEGIN, IS_END, Rows


def with_pairs(rows: Rows, left_out: Collection[str], strings: Sequence[str]) -> tuple[Rows, int]:
    """The rows with each begin as a span to its end, and how many have no partner: left out.

    Spans nest on a thread: an end is that of the last begin before it that is still open. The row
    of a span has what its begin says.

    Args:
        left_out: Categories whose spans are not kept.
        strings: Texts by id.
    """
    both = np.flatnonzero((rows["flags"] & (IS_BEGIN | IS_END)) != 0)
    if not len(both):
        return rows, 0
    timed = both[(rows["flags"][both] & HAS_TS) != 0]
    pid, tid, ts, index = (rows[name][timed] for name in ("pid", "tid", "ts", "index"))
    order = timed[np.lexsort((index, ts, tid, pid))]
    begins = (rows["flags"][order] & IS_BEGIN) != 0
    # How deep each stands: a begin and its end at the same depth, one right after the other.
    depth = np.cumsum(np.where(begins, 1, -1)) + ~begins
    thread = (rows["pid"][order].astype(np.int64) << 32) | (
        rows["tid"][order].astype(np.int64) & 0xFFFFFFFF
    )
    by_depth = np.lexsort((np.arange(len(order)), depth, thread))
    first, second = by_depth[:-1], by_depth[1:]
    is_pair = (
        begins[first]
        & ~begins[second]
        & (depth[first] == depth[second])
        & (thread[first] == thread[second])
    )
    opened, closed = order[first[is_pair]], order[second[is_pair]]
    rows = rows.copy()
    rows["dur"][opened] = rows["ts"][closed] - rows["ts"][opened]
    rows["flags"][opened] = (rows["flags"][opened] & ~IS_BEGIN) | HAS_DUR
    unwanted = [i for i, text in enumerate(strings) if text in left_out]
    keep = ((rows["flags"] & (IS_BEGIN | IS_END)) == 0) & ~np.isin(rows["category"], unwanted)
    return rows[keep], len(both) - 2 * len(opened)
