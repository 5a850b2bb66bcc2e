"""Arrow columns and tables from arrays and records: ids, unknowns, words.

In arrays -1 is no id and `UNKNOWN` no duration; in Arrow both are NULL.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from analyzer.attribution.decomposition import known
from analyzer.attribution.intervals import Bools, Ints, ordinals

# An Arrow array: the library's stubs ask for the type of its scalars, which only its data know.
Column = Any

# Tables whose rows belong to no run.
SHARED_TABLES = ("hosts",)


def table(**columns: Column) -> pa.Table:
    """A table of columns, each an Arrow array or a NumPy one."""
    arrays: dict[str, Column] = {
        name: value if isinstance(value, pa.Array) else pa.array(value)
        for name, value in columns.items()
    }
    return pa.table(arrays)


def rows_table(rows: Sequence[dict[str, Any]]) -> pa.Table:
    """A table of rows, all of the same keys."""
    return pa.Table.from_pylist(list(rows))


def ids(values: Ints, offset: int = 0) -> Column:
    """Ids that begin at `offset`; -1 is NULL."""
    return pa.array((values + offset).astype(np.int32), mask=values < 0)


def present(has: Bools, values: Ints) -> Column:
    """Values where `has`, else NULL."""
    return pa.array(values, mask=~has)


def durations(values: Ints) -> Column:
    """Nanoseconds; UNKNOWN is NULL."""
    return present(known(values), values)


def words(codes: Ints, vocabulary: Sequence[str]) -> Column:
    """The word of each code, by a dictionary."""
    return _dictionary(codes.astype(np.int8), pa.array(vocabulary))


def constant(text: str, n: int) -> Column:
    """The same text n times, by a dictionary."""
    return _dictionary(np.zeros(n, np.int8), pa.array([text]))


def json_ids(string_ids: Ints, strings: Sequence[str]) -> Column:
    """The id of each string id as a person writes it, by a dictionary; -1 is NULL."""
    used, inverse = ordinals(string_ids)
    at: list[int] = used.tolist()
    found = [plain_id(strings[i]) if i >= 0 else None for i in at]
    if not found:
        return pa.nulls(0, pa.string())
    return _dictionary(inverse.astype(np.int32), pa.array(found, pa.string()))


def plain_id(text: str) -> str:
    """An id as a person writes it: the JSON text of a string without its quotes."""
    if text.startswith('"'):
        try:
            return str(json.loads(text))
        except ValueError:
            return text.strip('"')
    return text


def _dictionary(codes: npt.NDArray[np.integer[Any]], vocabulary: Column) -> Column:
    indices: Any = pa.array(codes)
    return pa.DictionaryArray.from_arrays(indices, vocabulary)  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]


class TableParts:
    """The tables of a run, part by part as its traces are analysed."""

    def __init__(self, run_id: str) -> None:
        self._run_id = run_id
        self._parts: dict[str, list[pa.Table]] = {}

    def add(self, tables: Mapping[str, pa.Table]) -> None:
        """Append the rows of tables by name, with the run's id; empty ones are left out."""
        for name, rows in tables.items():
            if not rows.num_rows:
                continue
            if name not in SHARED_TABLES:
                rows = rows.append_column("run_id", constant(self._run_id, rows.num_rows))
            self._parts.setdefault(name, []).append(rows)

    def whole(self) -> dict[str, pa.Table]:
        """Return each table with all its rows, in the order in which they were added."""
        return {
            name: pa.concat_tables(parts, promote_options="permissive")
            for name, parts in self._parts.items()
        }
