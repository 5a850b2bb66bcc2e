"""SQL that a person typed, against a store: one SELECT, read-only, no files or settings, timed, and
stopped when its owner says so.

Writes the answer as text for people, CSV, JSON or Parquet. All of it holds for DuckDB 1.5 and 2.
"""

from __future__ import annotations

import csv
import math
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from typing import IO, Any, Literal, cast

import duckdb
import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from analyzer.errors import AnalyzerError
from analyzer.store import open_store, sql_policy
from analyzer.store.sql_policy import Reach
from analyzer.store.store import SANDBOX_MEMORY, Connection, Store

Format = Literal["table", "csv", "json", "parquet"]

WIDEST_CELL = 80
_BATCH_ROWS, _BATCH_CELLS = 8_192, 100_000
_NUMBERS = ("int", "uint", "double", "float", "decimal")
_LOOK_S = 0.05


class Cancelled(AnalyzerError):
    """The one who asked did not want to wait any longer."""


def run_sql(
    db: Store | Path | str,
    sql: str,
    *,
    limit: int | None = None,
    time_limit_s: float = 60.0,
    memory_limit: str = SANDBOX_MEMORY,
    threads: int | None = None,
    cancel: threading.Event | None = None,
    shared: bool = False,
) -> pa.Table:
    """Answer one SELECT (or EXPLAIN, DESCRIBE, SHOW, SUMMARIZE) from a store.

    Args:
        limit: At most so many rows; None: all.
        time_limit_s: Seconds after which the statement is stopped.
        memory_limit: As DuckDB writes it, e.g. "500MB"; a statement that needs more fails.
        cancel: Set by another thread to stop the statement.
        shared: An untrusted client asks: settings, catalog and environment are refused as well.

    Returns:
        The rows. Columns of the same name get `_2`, `_3`, ... so that each can be addressed.

    Raises:
        Cancelled: `cancel` was set before the answer was there.
        AnalyzerError: The store cannot be opened, or the statement is refused, wrong or too slow.
    """
    if not time_limit_s > 0:
        raise AnalyzerError(f"a time limit of {time_limit_s:g} s leaves no time; give more than 0.")
    store = open_store(db)
    reach = (store.reach, *((Reach.SHARED,) if shared else ()))
    with store.sandboxed(memory_limit, threads) as connection:
        began = time.monotonic()
        stop = threading.Event()
        cancelled = cancel or threading.Event()
        try:
            sql_policy.check(connection, sql, *reach)
            with _watched(connection, cancelled, stop, time_limit_s):
                relation = connection.sql(sql)
                table = (relation if limit is None else relation.limit(limit)).to_arrow_table()
        except duckdb.Error as error:
            if not stop.is_set():
                raise AnalyzerError(_one_line(error)) from error
            if cancelled.is_set():
                raise Cancelled(
                    f"the statement was cancelled after {time.monotonic() - began:.1f} s."
                ) from error
            raise AnalyzerError(
                f"the statement was stopped after {time_limit_s:g} s; narrow it (one run_id, a "
                "LIMIT, fewer joins) or raise --time-limit."
            ) from error
    return table.rename_columns(_distinct(table.column_names))


@contextmanager
def _watched(
    connection: Connection,
    cancelled: threading.Event,
    stop: threading.Event,
    time_limit_s: float,
) -> Generator[None, None, None]:
    """Interrupt what runs inside once it is cancelled or its time is over; then `stop` is set."""
    finished = threading.Event()
    deadline = time.monotonic() + time_limit_s

    def watch() -> None:
        while not finished.wait(_LOOK_S):
            if cancelled.is_set() or time.monotonic() > deadline:
                stop.set()
                # Again and again: one that comes just before the statement begins is lost.
                connection.interrupt()

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        finished.set()
        watcher.join()


def _one_line(error: duckdb.Error) -> str:
    """DuckDB's message with its hint ("Did you mean ..."), without the picture of the line."""
    text = str(error).split("\nLINE ", 1)[0]
    line = " ".join(part.strip() for part in text.splitlines() if part.strip())
    if isinstance(error, duckdb.PermissionException):
        line += " SQL here reads the store's tables only."
    elif isinstance(error, duckdb.OutOfMemoryException):
        line = line.split(" Possible solutions", 1)[0] + " Narrow the statement."
    return f"the SQL failed: {line}"


def _distinct(names: Sequence[str]) -> list[str]:
    taken: set[str] = set()
    result: list[str] = []
    for name in names:
        candidate, number = name, 1
        while candidate in taken or (number > 1 and candidate in names):
            number += 1
            candidate = f"{name}_{number}"
        taken.add(candidate)
        result.append(candidate)
    return result


def write_table(table: pa.Table, form: Format, stream: IO[Any]) -> None:
    """Write rows to a stream.

    Args:
        form: "table": aligned text, NULL as `-`, long cells cut; "csv": with a header, NULL empty;
            "json": a list of objects; "parquet": zstd.
        stream: Of text; of bytes for "parquet".

    Raises:
        AnalyzerError: Parquet would go to a terminal.
    """
    if form == "parquet":
        if stream.isatty():
            raise AnalyzerError(
                "parquet is no text: send it to a file, e.g. `... > answer.parquet`."
            )
        pq.write_table(table, stream, compression="zstd")  # pyright: ignore[reportUnknownMemberType]
        return
    writers: dict[str, Callable[[pa.Table, IO[str]], None]] = {
        "table": _write_text,
        "csv": _write_csv,
        "json": _write_json,
    }
    writers[form](table, stream)


def rows(table: pa.Table) -> Iterator[tuple[Any, ...]]:
    """Rows as plain values: whole numbers as int, bytes as hex text."""
    most = max(1, min(_BATCH_ROWS, _BATCH_CELLS // max(1, table.num_columns)))
    for batch in table.to_batches(max_chunksize=most):
        columns = cast("list[pa.Array[Any]]", batch.columns)  # pyright: ignore[reportUnknownMemberType]
        yield from zip(
            *([_value(v) for v in column.to_pylist()] for column in columns), strict=True
        )


def _value(value: Any) -> Any:
    """Whole numbers as int (a SUM comes as a decimal), no NaN in JSON."""
    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() else float(value)
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, list):
        return [_value(item) for item in cast("list[Any]", value)]
    return value


def _write_json(table: pa.Table, stream: IO[str]) -> None:
    names = table.column_names
    separator = "["
    for row in rows(table):
        record = dict(zip(names, row, strict=True))
        stream.write(f"{separator}\n{_json(record)}")
        separator = ","
    stream.write("[]\n" if separator == "[" else "\n]\n")


def write_answer(table: pa.Table, truncated: bool, stream: IO[str]) -> None:
    """Write rows as the API answers: columns, types, rows as lists, whether there were more."""
    names, kinds = _json(table.column_names), _json(_types(table))
    stream.write(f'{{"columns":{names},"types":{kinds},"rows":')
    separator = "["
    for row in rows(table):
        stream.write(separator + _json(list(row)))
        separator = ","
    stream.write("[" if separator == "[" else "")
    stream.write(f'],"truncated":{_json(truncated)}}}')


def _json(value: Any) -> str:
    try:
        return orjson.dumps(value, default=str, option=orjson.OPT_NON_STR_KEYS).decode()
    except orjson.JSONEncodeError:  # an integer beyond 64 bits
        return orjson.dumps(wide_as_text(value), default=str).decode()


def wide_as_text(value: Any) -> Any:
    """A value with its integers beyond 64 bits as text, which JSON here cannot write."""
    if isinstance(value, dict):
        return {str(k): wide_as_text(v) for k, v in cast("dict[Any, Any]", value).items()}
    if isinstance(value, list):
        return [wide_as_text(item) for item in cast("list[Any]", value)]
    return str(value) if isinstance(value, int) and value.bit_length() > 63 else value


def _write_csv(table: pa.Table, stream: IO[str]) -> None:
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(table.column_names)
    for row in rows(table):
        writer.writerow([_json(v) if isinstance(v, (list, dict)) else v for v in row])


def _write_text(table: pa.Table, stream: IO[str]) -> None:
    head = table.column_names
    cells = [[_cell(value) for value in row] for row in rows(table)]
    right = [kind.startswith(_NUMBERS) for kind in _types(table)]
    widths = [max([len(name), *(len(row[i]) for row in cells)]) for i, name in enumerate(head)]

    def line(cells: Sequence[str]) -> str:
        padded = [
            cell.rjust(width) if to_right else cell.ljust(width)
            for cell, width, to_right in zip(cells, widths, right, strict=True)
        ]
        return "  ".join(padded).rstrip() + "\n"

    stream.write(line(head))
    stream.write("  ".join("-" * width for width in widths) + "\n")
    for row in cells:
        stream.write(line(row))
    stream.write(f"({len(cells):,} row{'s' * (len(cells) != 1)})\n")


def _types(table: pa.Table) -> list[str]:
    return [str(field.type) for field in table.schema]  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType, reportUnknownArgumentType]


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return f"{value:.6g}" if math.isfinite(value) else str(value)
    text = _json(value) if isinstance(value, (list, dict)) else str(value)
    # A name from a trace must not move the cursor of somebody's terminal.
    text = "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
    return text if len(text) <= WIDEST_CELL else text[: WIDEST_CELL - 1] + "…"
