"""Who may have a store open within one process: many readers, or one writer and nobody else.

DuckDB refuses a second connection of another kind in a process, and a writer in another process
waits for every reader here. A server therefore keeps a `ReadWriteLock` for each of its stores: a
writer that waits goes before new readers, so neither starves. Knows nothing of DuckDB.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

from analyzer.errors import AnalyzerError


class ReadWriteLock:
    """The lock of one store. A thread that reads may read again; it may not write meanwhile."""

    def __init__(self) -> None:
        self._free = threading.Condition()
        self._readers = 0
        self._writing = False
        self._writers_waiting = 0
        self._mine = threading.local()

    @contextmanager
    def reading(self, patience_s: float, urgent: bool = False) -> Generator[None, None, None]:
        """Hold the lock as a reader.

        Args:
            urgent: Do not let a waiting writer go first: for a short look on behalf of a reader
                that holds the lock meanwhile and would wait for the writer that waits for it.

        Raises:
            AnalyzerError: A writer kept it for longer than `patience_s` seconds.
        """
        depth: int = getattr(self._mine, "depth", 0)
        if depth == 0:
            with self._free:
                self._wait(
                    lambda: not self._writing and (urgent or not self._writers_waiting), patience_s
                )
                self._readers += 1
        self._mine.depth = depth + 1
        try:
            yield
        finally:
            self._mine.depth -= 1
            if depth == 0:
                with self._free:
                    self._readers -= 1
                    self._free.notify_all()

    @contextmanager
    def writing(self, patience_s: float) -> Generator[None, None, None]:
        """Hold the lock alone.

        Raises:
            AnalyzerError: Others kept it for longer than `patience_s` seconds.
        """
        with self._free:
            self._writers_waiting += 1
            try:
                self._wait(lambda: not self._writing and not self._readers, patience_s)
            finally:
                self._writers_waiting -= 1
                self._free.notify_all()
            self._writing = True
        try:
            yield
        finally:
            with self._free:
                self._writing = False
                self._free.notify_all()

    def _wait(self, free: Callable[[], bool], patience_s: float) -> None:
        deadline = time.monotonic() + patience_s
        while not free():
            left = deadline - time.monotonic()
            if left <= 0:
                raise AnalyzerError(
                    f"the store is in use and stayed so for {patience_s:.0f} s; try again soon."
                )
            self._free.wait(left)


_kept: dict[Path, ReadWriteLock] = {}


def keep_lock(path: Path) -> ReadWriteLock:
    """Make this process keep a lock of a store; the same store has the same lock."""
    return _kept.setdefault(path.resolve(), ReadWriteLock())


def lock_of(path: Path) -> ReadWriteLock | None:
    """The lock of a store; None where this process keeps none."""
    return _kept.get(path.resolve()) if _kept else None
