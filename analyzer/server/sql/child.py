"""The process in which one SQL statement of an untrusted client runs, on a copy of a team's store.

Takes a request as JSON, answers with one byte and the rest: `E` and a line, `T` and rows that were
cut at the limit, `A` and all rows; in the form that was asked for, and never more than was allowed.
Its environment is empty, it may write no file, and `runner.py` kills it when it takes too long or
too much memory. DuckDB itself refuses files, ATTACH, extensions and settings; what reads settings
or the environment is refused by name (`store.sql_policy`).
"""

from __future__ import annotations

import contextlib
import io
import os
import resource
import signal
from pathlib import Path
from typing import Any, Literal

import msgspec
import pyarrow as pa

from analyzer.errors import AnalyzerError
from analyzer.server import supervise
from analyzer.store import open_store, sandbox

ROWS, CUT_ROWS, ERROR = b"A", b"T", b"E"
Form = Literal["json", "csv", "arrow"]


class Request(msgspec.Struct):
    """What the server asks."""

    path: str
    sql: str
    limit: int
    seconds: float
    memory_bytes: int
    answer_bytes: int
    threads: int
    form: Form


def answer(request: Request) -> pa.Table:
    """The rows of a statement; one more than asked for if there are more."""
    return sandbox.run_sql(
        Path(request.path),
        request.sql,
        limit=request.limit + 1,
        time_limit_s=request.seconds,
        memory_limit=f"{max(32, request.memory_bytes >> 20)}MiB",
        threads=request.threads,
        shared=True,
    )


def _confine(request: Request) -> None:
    """What the system can hold back, beside what DuckDB does."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    seconds = int(request.seconds * max(1, request.threads)) + 10
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    # What a lake needs stays: its keys, which no statement can read.
    if not open_store(request.path).child_environment():
        os.environ.clear()


def main() -> None:
    """Answer one request."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's ^C goes to the server alone
    server = supervise.channel()
    with contextlib.suppress(EOFError):  # the server has no use for it any more
        request = msgspec.json.decode(server.receive(), type=Request)
        _confine(request)
        with contextlib.suppress(OSError):
            server.send(*_answered(request))


class _TooLarge(Exception):
    """An answer would be larger than it may."""


class _Answer(io.RawIOBase):
    """What is written of an answer, of so many bytes at most."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self.pieces: list[bytes] = []
        self._left = most

    def writable(self) -> bool:
        return True

    def write(self, piece: Any, /) -> int:
        found = piece.encode() if isinstance(piece, str) else bytes(piece)
        self._left -= len(found)
        if self._left < 0:
            raise _TooLarge
        self.pieces.append(found)
        return len(found)


def _answered(request: Request) -> tuple[bytes, ...]:
    try:
        found = answer(request)
        truncated = found.num_rows > request.limit
        content = _Answer(request.answer_bytes)
        _write(found.slice(0, request.limit), truncated, request.form, content)
        return CUT_ROWS if truncated else ROWS, b"".join(content.pieces)
    except AnalyzerError as error:
        text = str(error).replace(f"{Path(request.path)}", "the store")
        return ERROR, text.encode("utf-8", "replace")
    except MemoryError:
        return ERROR, b"the statement needs more memory than it may have; narrow it."
    except _TooLarge:
        return ERROR, (
            f"the answer is larger than {request.answer_bytes >> 20} MiB; ask for fewer rows or "
            "columns."
        ).encode()


def _write(rows: pa.Table, truncated: bool, form: Form, content: Any) -> None:
    if form == "arrow":
        with pa.ipc.new_stream(content, rows.schema) as writer:
            writer.write_table(rows)
    elif form == "csv":
        sandbox.write_table(rows, "csv", content)
    else:
        sandbox.write_answer(rows, truncated, content)


if __name__ == "__main__":
    main()
