"""The process in which one SQL statement of an untrusted client runs, on a copy of a team's store.

Takes a request as JSON, answers with one byte and the rest: `A` and Arrow rows, or `E` and a line.
Its environment is empty, it may write no file, and `runner.py` kills it when it takes too long or
too much memory. DuckDB itself refuses files, ATTACH, extensions and settings; what reads settings
or the environment is refused by name (`store.sql_policy`).
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa

from analyzer.errors import AnalyzerError
from analyzer.server import supervise
from analyzer.store import open_store, sandbox

ROWS, ERROR = b"A", b"E"


class Request(msgspec.Struct):
    """What the server asks."""

    path: str
    sql: str
    limit: int
    seconds: float
    memory_bytes: int
    threads: int


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


def _answered(request: Request) -> tuple[bytes, Any]:
    try:
        table = answer(request)
        rows = pa.BufferOutputStream()
        with pa.ipc.new_stream(rows, table.schema) as writer:
            writer.write_table(table)
        return ROWS, memoryview(rows.getvalue())
    except AnalyzerError as error:
        text = str(error).replace(f"{Path(request.path)}", "the store")
        return ERROR, text.encode("utf-8", "replace")
    except MemoryError:
        return ERROR, b"the statement needs more memory than it may have; narrow it."


if __name__ == "__main__":
    main()
