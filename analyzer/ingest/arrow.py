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


# Nothing here calls `pyarrow.array`: it imports pandas, which takes longer than a small run, only
# to ask whether it was given a series.


def table(**columns: Column) -> pa.Table:
    """A table of columns, each an Arrow array or a NumPy one."""
    arrays: dict[str, Column] = {
        name: value if isinstance(value, pa.Array) else _array(value)
        for name, value in columns.items()
    }
    return pa.table(arrays)


def rows_table(rows: Sequence[dict[str, Any]], kinds: Mapping[str, Any] | None = None) -> pa.Table:
    """A table of rows, all of the same keys; `kinds`: Arrow types by column, where given."""
    names = kinds or (rows or [{}])[0]
    return table(
        **{name: column([row[name] for row in rows], (kinds or {}).get(name)) for name in names}
    )


def column(values: Sequence[Any], kind: Any = None) -> Column:
    """Texts, numbers, or lists of them, of one type; None is NULL.

    Args:
        kind: Its Arrow type; None: told by the values, of lists integers.
    """
    has = np.array([value is not None for value in values], bool)
    valid = None if has.all() else has
    some = [value for value in values if value is not None]
    if not some:
        return pa.nulls(len(values), kind or pa.null())
    if isinstance(some[0], str):
        texts = [b"" if value is None else value.encode() for value in values]
        buffers = [_bits(valid), _offsets(texts), pa.py_buffer(b"".join(texts))]
        return pa.Array.from_buffers(pa.string(), len(values), buffers)
    if isinstance(some[0], list | tuple):
        kind = kind or pa.list_(pa.int64())
        items = column([item for value in some for item in value], kind.value_type)
        lengths = [value or () for value in values]
        return pa.Array.from_buffers(
            kind, len(values), [_bits(valid), _offsets(lengths)], children=[items]
        )
    given = np.array(some)
    every = np.zeros(len(values), given.dtype)
    every[has] = given
    return _array(every, valid)


def _offsets(values: Sequence[Sequence[Any]]) -> Any:
    """Where each of some texts or lists begins, and the last one ends."""
    offsets = np.zeros(len(values) + 1, np.int32)
    np.cumsum([len(value) for value in values], out=offsets[1:])
    return _buffer(offsets)


def _array(values: npt.NDArray[Any], has: Bools | None = None) -> Column:
    """A NumPy array as an Arrow one that shares its memory; NULL where it is not `has`."""
    if values.dtype == np.bool_:
        return pa.Array.from_buffers(pa.bool_(), len(values), [_bits(has), _bits(values)])
    kind = pa.from_numpy_dtype(values.dtype)
    return pa.Array.from_buffers(kind, len(values), [_bits(has), _buffer(values)])


def _buffer(values: npt.NDArray[Any]) -> Any:
    contiguous: Any = np.ascontiguousarray(values)
    return pa.py_buffer(contiguous)


def _bits(values: Bools | None) -> Any:
    return None if values is None else _buffer(np.packbits(values, bitorder="little"))


def ids(values: Ints, offset: int = 0) -> Column:
    """Ids that begin at `offset`; -1 is NULL."""
    return _array((values + offset).astype(np.int32), values >= 0)


def present(has: Bools, values: Ints) -> Column:
    """Values where `has`, else NULL."""
    return _array(values, has)


def durations(values: Ints) -> Column:
    """Nanoseconds; UNKNOWN is NULL."""
    return present(known(values), values)


def words(codes: Ints, vocabulary: Sequence[str]) -> Column:
    """The word of each code, by a dictionary."""
    return _dictionary(codes.astype(np.int8), column(vocabulary))


def constant(text: str, n: int) -> Column:
    """The same text n times, by a dictionary."""
    return _dictionary(np.zeros(n, np.int8), column([text]))


def json_ids(string_ids: Ints, strings: Sequence[str]) -> Column:
    """The id of each string id as a person writes it, by a dictionary; -1 is NULL."""
    used, inverse = ordinals(string_ids)
    at: list[int] = used.tolist()
    found = [plain_id(strings[i]) if i >= 0 else None for i in at]
    if all(text is None for text in found):
        return pa.nulls(len(string_ids))  # of no type, so that another trace may have ids
    return _dictionary(inverse.astype(np.int32), column(found))


def plain_id(text: str) -> str:
    """An id as a person writes it: the JSON text of a string without its quotes."""
    if text.startswith('"'):
        try:
            return str(json.loads(text))
        except ValueError:
            return text.strip('"')
    return text


def _dictionary(codes: npt.NDArray[np.integer[Any]], vocabulary: Column) -> Column:
    return pa.DictionaryArray.from_arrays(_array(codes), vocabulary)  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]


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
