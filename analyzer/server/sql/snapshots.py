"""Copies of teams' stores for SQL, so that a long statement holds up no commit.

There is one copy a team, made anew when the store has changed, and older ones only as long as a
statement reads them. Where files can share blocks a copy takes no room; elsewhere one is made at a
time, and only if it leaves the room that uploads are to leave.
"""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import shutil
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

from analyzer import numbers
from analyzer.errors import AnalyzerError
from analyzer.server.layout import Layout
from analyzer.server.limits import Limits
from analyzer.server.uploads.uploads import DiskFull, disk_errors
from analyzer.store import open_store, rwlock

_PIECE = 1 << 20
_SHARE_BLOCKS = 0x40049409  # FICLONE of Linux


class Crowded(AnalyzerError):
    """As many statements run, or wait for a copy, as may."""


def _free_bytes(folder: Path) -> int:
    return shutil.disk_usage(folder).free


class Snapshots:
    """The copies of all teams' stores."""

    def __init__(
        self, layout: Layout, limits: Limits, free_bytes: Callable[[Path], int] = _free_bytes
    ) -> None:
        self._layout = layout
        self._limits = limits
        self._free_bytes = free_bytes
        self._lock = threading.Lock()
        self._copying = threading.Lock()
        self._making: dict[str, threading.Lock] = {}
        self._current: dict[str, tuple[object, Path]] = {}
        self._readers: dict[Path, int] = {}

    @contextmanager
    def of(self, team: str) -> Generator[Path, None, None]:
        """A copy of the team's store as it is now; a lake itself, which no reader holds up.

        Raises:
            Crowded: Other copies took all the time that a read may wait.
            DiskFull: There is no room for it.
            AnalyzerError: There is no store, or it stays locked.
        """
        if open_store(self._layout.store(team)).has_many_writers:
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
        store = open_store(self._layout.store(team))
        with self._lock:
            known = self._current.get(team)
            if known is not None:
                if known[0] == store.stamp() and known[1].exists():
                    return known[1]
                del self._current[team]  # its room may be needed
                self._drop_old(known[1])
        patience = self._limits.read_patience_seconds
        if not self._copying.acquire(timeout=patience):
            raise Crowded("other statements wait for copies of their stores; try again soon.")
        try:
            # An open connection keeps every writer away while the file is copied. The page that
            # asks may hold a turn of its own.
            with (
                rwlock.keep_lock(store.path).reading(patience, urgent=True),
                store.reading(patience),
            ):
                stamp = store.stamp()
                path = self._copied(store.path, self._layout.snapshots(team))
        finally:
            self._copying.release()
        with self._lock:
            self._current[team] = (stamp, path)
        return path

    def _copied(self, store: Path, folder: Path) -> Path:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = folder / f"{secrets.token_hex(8)}.duckdb"
        try:
            with disk_errors():
                for source, target in ((store, path), (_wal(store), _wal(path))):
                    if source.exists() and not _shared(source, target):
                        self._check_room(source, folder)
                        _copy(source, target)
        except BaseException:
            _unlink(path)
            raise
        return path

    def _check_room(self, source: Path, folder: Path) -> None:
        size, free = source.stat().st_size, self._free_bytes(folder)
        if size > free - self._limits.reserve_bytes:
            raise DiskFull(
                f"SQL needs a copy of the store, {numbers.size(size)}, and the server's disk has "
                f"{numbers.size(free)} free, of which it keeps "
                f"{numbers.size(self._limits.reserve_bytes)}: make room, then ask again."
            )

    def _drop_old(self, path: Path) -> None:
        if self._readers.get(path, 0) == 0 and all(p != path for _, p in self._current.values()):
            self._readers.pop(path, None)
            _unlink(path)


def _unlink(path: Path) -> None:
    path.unlink(missing_ok=True)
    _wal(path).unlink(missing_ok=True)


def _wal(path: Path) -> Path:
    return path.with_name(path.name + ".wal")


def _shared(source: Path, target: Path) -> bool:
    """Make a file of another one's blocks, where the file system can; nothing is made elsewhere."""
    with source.open("rb") as read, target.open("xb") as write:
        try:
            fcntl.ioctl(write.fileno(), _SHARE_BLOCKS, read.fileno())
        except OSError:
            target.unlink()
            return False
    return True


def _copy(source: Path, target: Path) -> None:
    with source.open("rb") as read, target.open("xb") as write:
        left = os.fstat(read.fileno()).st_size
        try:
            while left > 0 and (done := os.copy_file_range(read.fileno(), write.fileno(), left)):
                left -= done
        except OSError as error:
            if error.errno not in (errno.EXDEV, errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP):
                raise
            shutil.copyfileobj(read, write, _PIECE)  # goes on where the other stopped
