"""Events that a trace holds twice, byte for byte: written twice, or put together from two files.

An event is the same if all its fields are. That alone is no proof: two operators without an id may
truly begin and end together. So only events with an id count, unless such ones show that the trace
was written twice.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from analyzer.trace.columns import HAS_BYTES, HAS_CORRELATION, HAS_DUR, HAS_EXTERNAL, HAS_TS, Rows

Bools = npt.NDArray[np.bool_]
Places = npt.NDArray[np.intp]

_ODD_FACTOR = 0x9E3779B97F4A7C15
_FIELDS = HAS_TS | HAS_DUR | HAS_CORRELATION | HAS_EXTERNAL | HAS_BYTES


def repeated(rows: Rows) -> Bools:
    """Which rows repeat an earlier one."""
    result = np.zeros(len(rows), bool)
    at = _of_one_time(rows)
    if not len(at):
        return result
    some = np.array(rows[at])
    some["flags"] &= _FIELDS
    fields = [name for name in some.dtype.names or () if name != "index"]
    # Equal events have equal sums of products; the stable order is that of the file.
    mixed = np.zeros(len(some), np.uint64)
    for i, name in enumerate(fields):
        mixed = (mixed ^ some[name].astype(np.uint64)) * np.uint64(_ODD_FACTOR + 2 * i)
        mixed ^= mixed >> np.uint64(29)
    order = np.argsort(mixed, kind="stable")
    same = np.ones(len(order) - 1, bool)
    for name in fields:
        column = some[name][order]
        same &= column[1:] == column[:-1]
    again = order[1:][same]
    has_id = (some["dur"] > 0) & ((some["correlation"] > 0) | (some["external"] > 0))
    if has_id[again].any():
        result[at[again]] = True
    return result


def _of_one_time(rows: Rows) -> Places:
    """The rows that begin when another one does, by their time."""
    time = rows["ts"]
    if (time[1:] > time[:-1]).all():
        return np.empty(0, np.intp)
    order = np.argsort(time, kind="stable")
    time = time[order]
    same = np.flatnonzero(time[1:] == time[:-1])
    chosen = np.zeros(len(order), bool)
    chosen[same] = chosen[same + 1] = True
    return order[chosen]
