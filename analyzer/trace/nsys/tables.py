"""The tables of an Nsight Systems export as columns, from a SQLite file or a folder of Parquet
files.

Which tables and columns there are differs between versions: a reader asks first, and a column that
is not there reads as MISSING. Rows come in pieces, in no promised order. What an error says names
no content of the file.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Sequence
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
    return TraceError(f"{path} is damaged and cannot be read; export the report again.")


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
            self._connection = sqlite3.connect(uri, uri=True)
            self._connection.text_factory = bytes
            self._connection.execute("PRAGMA trusted_schema = OFF")
            self._connection.execute("PRAGMA cell_size_check = ON")
            # Views and virtual tables are no tables: what they would run is not ours to run.
            names = self._connection.execute(
                "SELECT name FROM sqlite_master WHERE type = 'table' AND rootpage > 0"
            ).fetchall()
        except sqlite3.Error as error:
            raise _damaged(path) from error
        self._columns = {_text(name): self._columns_of(_text(name)) for (name,) in names}
        self._rows_read = 0
        self._rows = self._rows_about()

    def columns(self, table: str) -> frozenset[str]:
        return self._columns.get(table, frozenset())

    def pieces(self, table: str, numbers: Sequence[str], text: str = "") -> Iterator[Piece]:
        has = self.columns(table)
        present = [column for column in numbers if column in has]
        if not has:
            return
        # One text a row is parsed faster than a Python object a value is made.
        joined = " || ' ' || ".join(
            f"ifnull(CAST(\"{column}\" AS INTEGER), '{MISSING}')" for column in present
        )
        as_text = f'CAST("{text}" AS TEXT)' if text in has else "NULL"
        query = f'SELECT CAST({joined or "NULL"} AS TEXT), {as_text} FROM "{table}"'
        try:
            with closing(self._connection.execute(query)) as cursor:
                while rows := cursor.fetchmany(PIECE_ROWS):
                    self._count(len(rows))
                    joins, texts = zip(*rows, strict=True)
                    yield Piece(self._numbers(numbers, present, joins), texts)
        except (sqlite3.Error, ValueError, OverflowError) as error:
            raise _damaged(self._path) from error

    def close(self) -> None:
        self._connection.close()

    def _numbers(
        self, wanted: Sequence[str], present: Sequence[str], joins: Sequence[bytes]
    ) -> dict[str, Ints]:
        """The columns of a piece, from its joined texts."""
        absent = np.full(len(joins), MISSING, np.int64)
        result = dict.fromkeys(wanted, absent)
        if present:
            # With a separator the text form is read; the typing of numpy knows the binary one only.
            flat = np.fromstring(b" ".join(joins), np.int64, sep=" ")  # pyright: ignore[reportArgumentType]
            by_row = flat.reshape(len(joins), len(present))
            result |= {column: by_row[:, i] for i, column in enumerate(present)}
        return result

    def _columns_of(self, table: str) -> frozenset[str]:
        try:
            quoted = table.replace('"', '""')
            rows = self._connection.execute(f'PRAGMA table_info("{quoted}")').fetchall()
        except sqlite3.Error:
            return frozenset()  # it cannot be read, so it has nothing to offer
        return frozenset(_text(row[1]) for row in rows)

    def _rows_about(self) -> int:
        """About how many rows there are in tables of events, for progress."""
        total = 0
        for table in ("CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_RUNTIME", "NVTX_EVENTS"):
            if self.columns(table):
                try:
                    query = f'SELECT max(rowid) FROM "{table}"'
                    last: Any = self._connection.execute(query).fetchone()[0]
                except sqlite3.Error:
                    continue
                total += last if isinstance(last, int) and last > 0 else 0
        return max(total, 1)

    def _count(self, rows: int) -> None:
        self._rows_read += rows
        if self._rows_read > self._bytes:
            raise _damaged(self._path)  # no row takes less than a byte: a page refers to itself
        if self._progress:
            self._progress(self._bytes * min(self._rows_read, self._rows) // self._rows)


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
