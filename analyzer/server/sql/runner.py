"""SQL of untrusted clients: each statement in a child process, on a snapshot, within limits.

A statement can at worst lose its own process. Snapshots are copies of stores (`snapshots.py`).
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from analyzer.errors import AnalyzerError
from analyzer.server.layout import Layout
from analyzer.server.limits import Limits
from analyzer.server.metrics import Metrics
from analyzer.server.sql import child as sql_child
from analyzer.server.sql.snapshots import Crowded, Snapshots
from analyzer.server.supervise import Child, Stopped
from analyzer.store import open_store
from analyzer.store.sandbox import Cancelled

_OWN_BYTES = 400 << 20  # Python, Arrow and DuckDB themselves
_THREADS = 2
_ENVIRONMENT = {"PYTHONDONTWRITEBYTECODE": "1", "LC_ALL": "C.UTF-8"}


@dataclass(frozen=True)
class Answered:
    """Rows in the form that was asked for, and whether there were more than asked for."""

    content: bytes
    truncated: bool


class SqlRunner:
    """Answers statements for all teams."""

    def __init__(self, layout: Layout, limits: Limits, metrics: Metrics) -> None:
        self._layout = layout
        self._limits = limits
        self._metrics = metrics
        self._lock = threading.Lock()
        self._running: Counter[str] = Counter()
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
        form: sql_child.Form = "json",
    ) -> Answered:
        """Answer one SELECT from a team's store.

        Raises:
            Crowded: Too many statements run already, or too many of the team.
            DiskFull: There is no room for a copy of the store.
            Cancelled: `cancel` was set.
            AnalyzerError: The statement is refused, wrong, or took too much.
        """
        self._take_place(team)
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
                    answer_bytes=self._limits.sql_answer_bytes,
                    threads=_THREADS,
                    form=form,
                )
                answer = self._asked(request, cancel)
            outcome = "answered"
            return answer
        finally:
            self._metrics.sql_running.dec()
            self._metrics.sql.labels(outcome).inc()
            with self._lock:
                self._running[team] -= 1
                self._running += Counter()  # without teams that have none

    def _take_place(self, team: str) -> None:
        """Count a statement. The last place is for a team that has none yet."""
        most = self._limits.sql_at_once
        with self._lock:
            mine, all_of_them = self._running[team], self._running.total()
            if all_of_them >= most or (mine and mine >= most - 1):
                raise Crowded("as many statements run as this server allows; try again soon.")
            self._running[team] += 1

    def _asked(self, request: sql_child.Request, cancel: threading.Event | None) -> Answered:
        environment = open_store(request.path).child_environment()
        child = _started(environment) if environment else self._spare.take()
        try:
            child.send(msgspec.json.encode(request))
            answer = child.receive(
                # It stops itself at its time; this is for one that cannot. Starting takes a moment.
                time.monotonic() + request.seconds + 10.0,
                request.memory_bytes + _OWN_BYTES,
                request.answer_bytes + 1,
                lambda: cancel is not None and cancel.is_set(),
            )
        except Stopped as stopped:
            raise self._why(stopped, request) from None
        finally:
            child.end()
            self._spare.refill()
        if answer[:1] in (sql_child.ROWS, sql_child.CUT_ROWS):
            return Answered(answer[1:], answer[:1] == sql_child.CUT_ROWS)
        raise AnalyzerError(answer[1:].decode("utf-8", "replace"))

    def _why(self, stopped: Stopped, request: sql_child.Request) -> AnalyzerError:
        if stopped.reason == "asked":
            return Cancelled("the statement was cancelled.")
        return AnalyzerError(
            {
                "ended": "the statement ended its process: it needed too much memory or time, or "
                "met a fault in the engine; narrow it.",
                "time": f"the statement was stopped after {request.seconds:g} s; narrow it.",
                "memory": f"the statement needed more than {request.memory_bytes >> 20} MiB of "
                "memory and was stopped; narrow it.",
                "size": f"the answer is larger than {self._limits.sql_answer_bytes >> 20} MiB; ask "
                "for fewer rows or columns.",
            }[stopped.reason]
        )


def _started(environment: Mapping[str, str]) -> Child:
    """A process that loads what it needs, then waits for a statement."""
    return Child(sql_child.__name__, {**environment, **_ENVIRONMENT}, is_confined=True)


class _Spare:
    """One child that is ready, from the first statement on: starting one takes half a second. Each
    answers one statement only.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ready: Child | None = None
        self._closed = False

    def take(self) -> Child:
        """The ready child, or a new one."""
        with self._lock:
            child, self._ready = self._ready, None
        if child is not None and child.is_alive():
            return child
        return _started({})

    def refill(self) -> None:
        """Have a child ready again."""
        with self._lock:
            if self._ready is None and not self._closed:
                self._ready = _started({})

    def close(self) -> None:
        """End it; there will be none any more."""
        with self._lock:
            self._closed = True
            child, self._ready = self._ready, None
        if child is not None:
            child.end()
