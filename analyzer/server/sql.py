"""SQL of strangers: each statement in a child process, on a snapshot, within time and memory.

A statement can at worst lose its own process. The snapshot is a copy of the team's store, made anew
when the store has changed, so that a long statement holds up no commit.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import msgspec
import pyarrow as pa

from analyzer import database, lake, turns
from analyzer.errors import AnalyzerError
from analyzer.sandbox import Cancelled
from analyzer.server import sql_child
from analyzer.server.layout import Layout
from analyzer.server.limits import Limits
from analyzer.server.metrics import Metrics
from analyzer.server.pool import resident_bytes
from analyzer.server.uploads import disk_errors

_LOOK_S = 0.02
_OWN_BYTES = 400 << 20  # Python, Arrow and DuckDB themselves
_THREADS = 2
_PIECE = 1 << 20
_ROOT = Path(__file__).resolve().parent.parent.parent


class Crowded(AnalyzerError):
    """As many statements run as may."""


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
        self._snapshots = _Snapshots(layout, limits)
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
        if lake.is_lake(Path(request.path)):
            child = _child(lake.environment())
        else:
            child = self._spare.take()
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


class _Snapshots:
    """Copies of stores, one a team, each until it is old and nobody reads it."""

    def __init__(self, layout: Layout, limits: Limits) -> None:
        self._layout = layout
        self._limits = limits
        self._lock = threading.Lock()
        self._making: dict[str, threading.Lock] = {}
        self._current: dict[str, tuple[object, Path]] = {}
        self._readers: dict[Path, int] = {}

    @contextmanager
    def of(self, team: str) -> Generator[Path, None, None]:
        """A copy of the team's store as it is now; a lake itself, which no reader holds up."""
        if lake.is_lake(self._layout.store(team)):
            yield self._layout.store(team)
            return
        with self._lock:
            making = self._making.setdefault(team, threading.Lock())
        with making:
            path = self._fresh(team)
            with self._lock:
                self._readers[path] = self._readers.get(path, 0) + 1
        try:
            yield path
        finally:
            with self._lock:
                self._readers[path] -= 1
                self._drop_old(path)

    def _fresh(self, team: str) -> Path:
        store = self._layout.store(team)
        patience = self._limits.read_patience_seconds
        # An open connection keeps every writer away while the file is copied. The page that asks
        # may hold a turn of its own.
        with (
            turns.arrange(store).reading(patience, urgent=True),
            database.open_for_reading(store, patience_s=patience),
        ):
            stamp = database.stamp(store)
            known = self._current.get(team)
            if known is not None and known[0] == stamp and known[1].exists():
                return known[1]
            folder = self._layout.snapshots(team)
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            path = folder / f"{secrets.token_hex(8)}.duckdb"
            try:
                with disk_errors():
                    _copy(store, path)
                    wal = store.with_name(store.name + ".wal")
                    if wal.exists():
                        _copy(wal, path.with_name(path.name + ".wal"))
            except BaseException:
                _unlink(path)
                raise
        with self._lock:
            self._current[team] = (stamp, path)
            if known is not None:
                self._drop_old(known[1])
        return path

    def _drop_old(self, path: Path) -> None:
        if self._readers.get(path, 0) == 0 and all(p != path for _, p in self._current.values()):
            self._readers.pop(path, None)
            _unlink(path)


def _unlink(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.with_name(path.name + ".wal").unlink(missing_ok=True)


def _copy(source: Path, target: Path) -> None:
    """Copy a file; where the file system can, by sharing its blocks."""
    with source.open("rb") as read, target.open("xb") as write:
        left = os.fstat(read.fileno()).st_size
        try:
            while left > 0 and (done := os.copy_file_range(read.fileno(), write.fileno(), left)):
                left -= done
        except OSError as error:
            if error.errno not in (errno.EXDEV, errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP):
                raise
            shutil.copyfileobj(read, write, _PIECE)  # goes on where the other stopped
