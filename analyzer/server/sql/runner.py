"""SQL of strangers: each statement in a child process, on a snapshot, within time and memory.

A statement can at worst lose its own process. Snapshots are copies of stores (`snapshots.py`).
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import msgspec
import pyarrow as pa

from analyzer.errors import AnalyzerError
from analyzer.server.jobs.workers import resident_bytes
from analyzer.server.layout import Layout
from analyzer.server.limits import Limits
from analyzer.server.metrics import Metrics
from analyzer.server.sql import child as sql_child
from analyzer.server.sql.snapshots import Crowded, Snapshots
from analyzer.store import open_store
from analyzer.store.sandbox import Cancelled

_LOOK_S = 0.02
_OWN_BYTES = 400 << 20  # Python, Arrow and DuckDB themselves
_THREADS = 2
_PIECE = 1 << 20
_ROOT = Path(__file__).resolve().parents[3]


@dataclass(frozen=True)
class Answer:
    """Rows, and whether there were more than asked for."""

    rows: pa.Table
    truncated: bool


class Sql:
    """Answers statements for all teams."""

    def __init__(self, layout: Layout, limits: Limits, metrics: Metrics) -> None:
        self._layout = layout
        self._limits = limits
        self._metrics = metrics
        self._places = threading.BoundedSemaphore(limits.sql_at_once)
        self._snapshots = Snapshots(layout, limits)
        self._spare = _Spare()

    def close(self) -> None:
        """End the child that waits."""
        self._spare.close()

    def run(
        self,
        team: str,
        sql: str,
        limit: int,
        time_limit_s: float | None = None,
        cancel: threading.Event | None = None,
    ) -> Answer:
        """Answer one SELECT from a team's store.

        Raises:
            Crowded: Too many statements run already.
            DiskFull: There is no room for a copy of the store.
            Cancelled: `cancel` was set.
            AnalyzerError: The statement is refused, wrong, or took too much.
        """
        if not self._places.acquire(blocking=False):
            raise Crowded("as many statements run as this server allows; try again soon.")
        self._metrics.sql_running.inc()
        outcome = "failed"
        try:
            seconds = min(time_limit_s or self._limits.sql_seconds, self._limits.sql_seconds)
            rows_wanted = min(limit, self._limits.sql_rows)
            with self._snapshots.of(team) as snapshot:
                request = sql_child.Request(
                    path=str(snapshot.absolute()),  # the child works elsewhere
                    sql=sql,
                    limit=rows_wanted,
                    seconds=seconds,
                    memory_bytes=self._limits.sql_memory_bytes,
                    threads=_THREADS,
                )
                rows = self._asked(request, cancel)
            outcome = "answered"
            return Answer(rows.slice(0, rows_wanted), rows.num_rows > rows_wanted)
        finally:
            self._metrics.sql_running.dec()
            self._metrics.sql.labels(outcome).inc()
            self._places.release()

    def _asked(self, request: sql_child.Request, cancel: threading.Event | None) -> pa.Table:
        environment = open_store(request.path).child_environment()
        child = _child(environment) if environment else self._spare.take()
        assert child.stdin is not None
        assert child.stdout is not None
        try:
            with contextlib.suppress(BrokenPipeError):
                child.stdin.write(msgspec.json.encode(request))
                child.stdin.close()
            answer = self._read(child, child.stdout, request, cancel)
        finally:
            child.kill()
            child.wait()
            child.stdout.close()
            self._spare.refill()
        if answer[:1] == sql_child.ROWS:
            with pa.ipc.open_stream(pa.py_buffer(answer)[1:]) as reader:
                return reader.read_all()
        if answer[:1] == sql_child.ERROR:
            raise AnalyzerError(answer[1:].decode("utf-8", "replace"))
        raise AnalyzerError(
            "the statement ended its process: it needed too much memory or time, or met a fault in "
            "the engine; narrow it."
        )

    def _read(
        self,
        child: subprocess.Popen[bytes],
        stream: IO[bytes],
        request: sql_child.Request,
        cancel: threading.Event | None,
    ) -> bytes:
        """What the child answers, while its time, memory and size are watched."""
        pieces: list[bytes] = []
        ended = threading.Event()
        most = self._limits.sql_answer_bytes
        too_much = threading.Event()

        def read() -> None:
            left = most
            with contextlib.suppress(OSError, ValueError):
                while piece := os.read(stream.fileno(), _PIECE):
                    left -= len(piece)
                    if left < 0:
                        too_much.set()
                        break
                    pieces.append(piece)
            ended.set()

        reader = threading.Thread(target=read, daemon=True)
        reader.start()
        # The child stops itself at its time; this is for one that cannot. Starting takes a moment.
        deadline = time.monotonic() + request.seconds + 10.0
        most_memory = request.memory_bytes + _OWN_BYTES
        trouble: AnalyzerError | None = None
        while not ended.wait(_LOOK_S):
            if cancel is not None and cancel.is_set():
                trouble = Cancelled("the statement was cancelled.")
            elif time.monotonic() > deadline:
                trouble = AnalyzerError(
                    f"the statement was stopped after {request.seconds:g} s; narrow it."
                )
            elif resident_bytes(child.pid) > most_memory:
                trouble = AnalyzerError(
                    f"the statement needed more than {request.memory_bytes >> 20} MiB of memory "
                    "and was stopped; narrow it."
                )
            if trouble is not None:
                break
        if too_much.is_set():
            trouble = AnalyzerError(
                f"the answer is larger than {most >> 20} MiB; ask for fewer rows or columns."
            )
        child.kill()
        reader.join(5.0)
        if trouble is not None:
            raise trouble
        return b"".join(pieces)


def _child(environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """A process that loads what it needs, then waits for a statement."""
    return subprocess.Popen(
        [sys.executable, "-m", sql_child.__name__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd="/",
        env={
            **environment,
            **{"PYTHONPATH": str(_ROOT), "PYTHONDONTWRITEBYTECODE": "1", "LC_ALL": "C.UTF-8"},
        },
        start_new_session=True,
    )


class _Spare:
    """One child that is ready, from the first statement on: starting one takes half a second. Each
    answers one statement only.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ready: subprocess.Popen[bytes] | None = None
        self._closed = False

    def take(self) -> subprocess.Popen[bytes]:
        """The ready child, or a new one."""
        with self._lock:
            child, self._ready = self._ready, None
        if child is not None and child.poll() is None:
            return child
        return _child({})

    def refill(self) -> None:
        """Have a child ready again."""
        with self._lock:
            if self._ready is None and not self._closed:
                self._ready = _child({})

    def close(self) -> None:
        """End it; there will be none any more."""
        with self._lock:
            self._closed = True
            child, self._ready = self._ready, None
        if child is not None:
            child.kill()
            child.wait()
