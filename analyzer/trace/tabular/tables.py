"""The tables of a profiler's export as columns, from a SQLite file or a folder of Parquet files.

Which tables and columns there are differs between versions: a reader asks first, and a column that
is not there reads as MISSING. Rows come in pieces, in no promised order. What an error says names
no content of the file.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from analyzer.trace.stream import TraceError

Ints = npt.NDArray[np.int64]

MISSING = int(np.iinfo(np.int64).min)
PIECE_ROWS = 1 << 16
_BETWEEN, _NULL = b"\x1e", b"\x1d"  # in no text of a report: what has one reads as a blank or NULL
SQLITE_MAGIC = b"SQLite format 3\x00"


@dataclass(frozen=True)
class Piece:
    """Some rows of a table.

    Attributes:
        numbers: By column; MISSING where the value is NULL or the column is not there.
        texts: Of the column that was asked for as text; None where it is NULL or not there.
    """

    numbers: dict[str, Ints]
    texts: Sequence[bytes | None]

    def __len__(self) -> int:
        return len(self.texts)


class Tables(Protocol):
    """An export: its tables by name."""

    def columns(self, table: str) -> frozenset[str]:
        """The columns of a table; none if there is no such table."""
        ...

    def pieces(self, table: str, numbers: Sequence[str], text: str = "") -> Iterator[Piece]:
        """Read some columns of a table as integers, and at most one as text.

        Raises:
            TraceError: The table is damaged.
        """
        ...

    def close(self) -> None: ...


def open_tables(path: Path, progress: Callable[[int], None] | None = None) -> Tables:
    """Open an export of either kind.

    Args:
        progress: Called with the bytes of the export read so far, as estimated from the rows.

    Raises:
        TraceError: It cannot be opened.
    """
    return ParquetTables(path) if path.is_dir() else SqliteTables(path, progress)


def _damaged(path: Path) -> TraceError:
    return TraceError(f"{path} is damaged and cannot be read; export or copy it again.")


class SqliteTables:
    """The tables of `nsys export --type sqlite`; the file is never written to."""

    def __init__(self, path: Path, progress: Callable[[int], None] | None = None) -> None:
        self._path = path
        self._progress = progress
        try:
            self._bytes = path.stat().st_size
            with path.open("rb") as file:
                file.read(1)
        except OSError as error:
            raise TraceError(f"{path} cannot be read: {error.strerror}.") from error
        try:
            # Immutable: no lock is taken and no file is made beside it.
            uri = f"{path.resolve().as_uri()}?mode=ro&immutable=1"
            self._connection = sqlite3.connect(uri, uri=True, check_same_thread=False)
            self._connection.text_factory = bytes
            self._connection.execute("PRAGMA trusted_schema = OFF")
            self._connection.execute("PRAGMA cell_size_check = ON")
            # Views and virtual tables are no tables: what they would run is not ours to run.
            names = self._connection.execute(
                "SELECT name FROM sqlite_master WHERE type = 'table' AND rootpage > 0"
            ).fetchall()
        except (sqlite3.Error, UnicodeError) as error:  # its message may quote what is no text
            raise _damaged(path) from error
        self._columns = {_text(name): self._columns_of(_text(name)) for (name,) in names}
        self._rows_read = 0
        self._rows = self._rows_about()

    def names(self) -> list[str]:
        """The tables that there are."""
        return list(self._columns)

    def columns(self, table: str) -> frozenset[str]:
        return self._columns.get(table, frozenset())

    def pieces(self, table: str, numbers: Sequence[str], text: str = "") -> Iterator[Piece]:
        has = self.columns(table)
        if not has:
            return
        present = [column for column in numbers if column in has]
        query = _piece_query(table, present, text if text in has else "")
        # SQLite makes a piece in one call, without the interpreter lock: the other core is free for
        # the piece before.
        with ThreadPoolExecutor(1, "nsys") as ahead:
            following = ahead.submit(self._fetch, query, MISSING)
            while (fetched := following.result()).rows:
                following = ahead.submit(self._fetch, query, fetched.last)
                self._count(fetched.rows)
                yield self._piece(fetched, numbers, present)

    def _fetch(self, query: str, after: int) -> _Fetched:
        """The piece of rows whose ids come after one."""
        try:
            with closing(self._connection.execute(query, [after])) as cursor:
                joined, texts, rows, last = cursor.fetchone()
        except (sqlite3.Error, ValueError, OverflowError) as error:
            raise _damaged(self._path) from error
        if rows and last <= after:
            raise _damaged(self._path)
        return _Fetched(rows, last, joined, texts)

    def _piece(self, fetched: _Fetched, wanted: Sequence[str], present: Sequence[str]) -> Piece:
        absent = np.full(fetched.rows, MISSING, np.int64)
        result = dict.fromkeys(wanted, absent)
        if present:
            # With a separator the text form is read; the typing of numpy knows the binary one only.
            flat = np.fromstring(fetched.numbers, np.int64, sep=" ")  # pyright: ignore[reportArgumentType]
            if len(flat) != fetched.rows * len(present):
                raise _damaged(self._path)
            by_row = flat.reshape(fetched.rows, len(present))
            result |= {column: by_row[:, i] for i, column in enumerate(present)}
        texts = fetched.texts.split(_BETWEEN)
        return Piece(result, [None if text == _NULL else text for text in texts])

    def close(self) -> None:
        self._connection.close()

    def _columns_of(self, table: str) -> frozenset[str]:
        try:
            rows = self._connection.execute(f"PRAGMA table_info({_quoted(table)})").fetchall()
        except (sqlite3.Error, UnicodeError):
            return frozenset()  # it cannot be read, so it has nothing to offer
        return frozenset(_text(row[1]) for row in rows)

    def _rows_about(self) -> int:
        """About how many rows there are in tables of events, for progress."""
        total = 0
        for table, columns in self._columns.items():
            if {"start", "end"} <= columns:
                try:
                    query = f"SELECT max(rowid) FROM {_quoted(table)}"
                    last: Any = self._connection.execute(query).fetchone()[0]
                except (sqlite3.Error, UnicodeError):
                    continue
                total += last if isinstance(last, int) and last > 0 else 0
        return max(total, 1)

    def _count(self, rows: int) -> None:
        self._rows_read += rows
        if self._rows_read > self._bytes:
            raise _damaged(self._path)  # no row takes less than a byte: a page refers to itself
        if self._progress:
            self._progress(self._bytes * min(self._rows_read, self._rows) // self._rows)


@dataclass(frozen=True)
class _Fetched:
    """A piece as SQLite joins it.

    Attributes:
        last: The id of its last row.
        numbers: All numbers, row by row, with spaces between; empty without a column.
        texts: All texts, with `_BETWEEN` between.
    """

    rows: int
    last: int
    numbers: bytes
    texts: bytes


def _piece_query(table: str, numbers: Sequence[str], text: str) -> str:
    """A query of one row for the piece after the row id `?`.

    Joined, because a Python object a value costs more than to print and to parse a number.
    """
    joined = " || ' ' || ".join(
        f"ifnull(CAST(\"{column}\" AS INTEGER), '{MISSING}')" for column in numbers
    )
    between, null = f"char({_BETWEEN[0]})", f"char({_NULL[0]})"
    as_text = f"ifnull(replace(CAST(\"{text}\" AS TEXT), {between}, ' '), {null})" if text else null
    return (
        f"SELECT group_concat(number, ' '), group_concat(text, {between}), count(*), max(id) FROM ("
        f"SELECT CAST({joined or 'NULL'} AS TEXT) AS number, {as_text} AS text, rowid AS id "
        f"FROM {_quoted(table)} WHERE rowid > ? ORDER BY rowid LIMIT {PIECE_ROWS})"
    )


class ParquetTables:
    """The tables of `nsys export --type parquetdir`: a file each."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._files = {file.stem: file for file in path.glob("*.parquet")}
        except OSError as error:
            raise TraceError(f"{path} cannot be read: {error.strerror}.") from error

    def columns(self, table: str) -> frozenset[str]:
        file = self._files.get(table)
        if file is None:
            return frozenset()
        try:
            return frozenset(pq.read_schema(file).names)  # pyright: ignore[reportUnknownMemberType] its stub is partial
        except (pa.ArrowException, OSError) as error:
            raise _damaged(file) from error

    def pieces(self, table: str, numbers: Sequence[str], text: str = "") -> Iterator[Piece]:
        has = self.columns(table)
        wanted = list(dict.fromkeys(c for c in (*numbers, text) if c in has))
        if not wanted:
            return
        file = self._files[table]
        try:
            with pq.ParquetFile(file) as parquet:
                batches: Iterator[Any] = parquet.iter_batches(PIECE_ROWS, columns=wanted)  # pyright: ignore[reportUnknownMemberType] its stub is partial
                for batch in batches:
                    texts: list[bytes | None] = [None] * len(batch)
                    if text in has:
                        texts = batch.column(text).cast(pa.binary()).to_pylist()
                    absent = np.full(len(batch), MISSING, np.int64)
                    values = {
                        column: _integers(batch.column(column)) if column in has else absent
                        for column in numbers
                    }
                    yield Piece(values, texts)
        except (pa.ArrowException, OSError, ValueError) as error:
            raise _damaged(file) from error

    def close(self) -> None:
        pass


def _integers(column: Any) -> Ints:
    """An Arrow column as integers."""
    return column.cast(pa.int64()).fill_null(MISSING).to_numpy(zero_copy_only=False)


def _text(value: bytes) -> str:
    return value.decode("utf-8", "backslashreplace")


def _quoted(table: str) -> str:
    return '"' + table.replace('"', '""') + '"'
