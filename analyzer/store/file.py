"""A store in one DuckDB file: one process writes at a time, a second one waits for it.

Works with DuckDB 1.5 and 2: the file is made in the storage version that both read.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import datetime, timezone
from pathlib import Path

import duckdb

from analyzer.errors import AnalyzerError, first_line
from analyzer.store import rwlock
from analyzer.store.sql_policy import Reach, quoted
from analyzer.store.sql_text import schema_sql
from analyzer.store.store import (
    LOCK_PATIENCE_S,
    READ_PATIENCE_S,
    SANDBOX_MEMORY,
    STORE_VERSION,
    Connection,
    Stamp,
    check_version,
    no_store,
    sandbox_settings,
)

_POLL_S = 0.1
# Where a DuckDB file says what it is.
_MAGIC_OFFSET, _MAGIC = 8, b"DUCK"

_HEAD_BYTES = 3 * 4096  # before the blocks
_BYTES = """
SELECT size.block_size * size.used_blocks
FROM pragma_database_size() AS size JOIN duckdb_databases() AS db USING (database_name)
WHERE db.path = $path
"""


class Damaged(AnalyzerError):
    """A store is not whole, or cannot be read."""


def _is_damage(error: duckdb.Error) -> bool:
    kinds = (duckdb.IOException, duckdb.FatalException, duckdb.SerializationException)
    return isinstance(error, kinds) or "orrupt" in str(error)


class FileStore:
    """A DuckDB file; see `Store`."""

    has_many_writers = False
    reach = Reach.TABLES

    def __init__(self, path: Path) -> None:
        self.path = path
        self.originals = path.with_name(path.name + ".blobs")

    def exists(self) -> bool:
        return self.path.exists()

    def make(self) -> None:
        if self.path.exists():
            with self.reading(LOCK_PATIENCE_S):
                return
        with self.writing():
            pass

    @contextmanager
    def reading(self, patience_s: float = READ_PATIENCE_S) -> Generator[Connection, None, None]:
        with self._opened(
            lambda: duckdb.connect(str(self.path), read_only=True), patience_s
        ) as connection:
            yield connection

    @contextmanager
    def sandboxed(
        self, memory_limit: str = SANDBOX_MEMORY, threads: int | None = None
    ) -> Generator[Connection, None, None]:
        settings = sandbox_settings(memory_limit, threads)
        with self._opened(lambda: _attached(self.path, settings), READ_PATIENCE_S) as connection:
            yield connection

    @contextmanager
    def writing(
        self, claim: str | None = None, patience_s: float = LOCK_PATIENCE_S
    ) -> Generator[Connection, None, None]:
        if not self.path.exists():
            _create(self.path)
        with self._lock(read_only=False, patience_s=patience_s):
            connection = self._connected(lambda: duckdb.connect(str(self.path)), patience_s)
            try:
                self._check(connection)
                yield connection
            except (duckdb.IOException, duckdb.TransactionException) as error:
                raise AnalyzerError(
                    f"{self.path} could not be written: {first_line(error)} The store is as it was "
                    "before; free some space or check the disk, then run the command again."
                ) from error
            finally:
                connection.close()

    def stamp(self) -> Stamp:
        found: list[tuple[int, int]] = []
        for part in (self.path, self.path.with_name(self.path.name + ".wal")):
            try:
                status = part.stat()
            except OSError:
                continue
            found.append((status.st_mtime_ns, status.st_size))
        return tuple(found)

    def maintain(self, keep_days: float) -> dict[str, int]:
        raise AnalyzerError(
            f"{self.path} is one file, which needs no upkeep; name a lake (*.toml)."
        )

    def child_environment(self) -> dict[str, str]:
        return {}

    # -- opening

    @contextmanager
    def _opened(
        self, connect: Callable[[], Connection], patience_s: float
    ) -> Generator[Connection, None, None]:
        if not self.path.exists():
            raise no_store(self.path)
        with self._lock(read_only=True, patience_s=patience_s):
            connection = self._connected(connect, patience_s)
            try:
                self._check(connection)
                yield connection
            except duckdb.Error as error:
                if not _is_damage(error):
                    raise
                raise self._damaged(error) from error
            finally:
                connection.close()

    def _lock(self, read_only: bool, patience_s: float) -> AbstractContextManager[None]:
        """The reader-writer lock of this store, where this process keeps one (a server does)."""
        lock = rwlock.lock_of(self.path)
        if lock is None:
            return nullcontext()
        return lock.reading(patience_s) if read_only else lock.writing(patience_s)

    def _check(self, connection: Connection) -> None:
        try:
            check_version(connection, self.path)
            wanted = connection.execute(_BYTES, {"path": str(self.path)}).fetchall()
        except duckdb.Error as error:
            raise self._damaged(error) from error
        # DuckDB itself sees that a part is missing only when somebody reads it. What is in the log
        # beside the file is counted too.
        if not wanted or self.path.with_name(self.path.name + ".wal").exists():
            return
        least, size = _HEAD_BYTES + wanted[0][0], self.path.stat().st_size
        if size < least:
            raise Damaged(
                f"{self.path} is cut off: it has {size} of {least} bytes. Restore it from a copy."
            )

    def _damaged(self, error: duckdb.Error) -> AnalyzerError:
        return Damaged(f"{self.path} is damaged: {first_line(error)} Restore it from a copy.")

    def _connected(self, connect: Callable[[], Connection], patience_s: float) -> Connection:
        self._refuse_other_files()
        deadline = time.monotonic() + patience_s
        while True:
            try:
                return connect()
            except duckdb.Error as error:
                if isinstance(error, duckdb.IOException) and "lock" in str(error).lower():
                    if time.monotonic() < deadline:
                        time.sleep(_POLL_S)
                        continue
                    raise AnalyzerError(
                        f"{self.path} is in use by another process ({first_line(error)}) and "
                        f"stayed so for {patience_s:.0f} s; try again when it has finished."
                    ) from error
                raise Damaged(
                    f"{self.path} cannot be opened as a store: {first_line(error)} "
                    "Name another file with --db, or restore it from a copy."
                ) from error

    def _refuse_other_files(self) -> None:
        """Before DuckDB looks: it would fetch an extension for a file of another kind."""
        try:
            with self.path.open("rb") as stream:
                head = stream.read(_MAGIC_OFFSET + len(_MAGIC))
        except OSError:
            return  # DuckDB says why
        if head and head[_MAGIC_OFFSET:] != _MAGIC:
            raise Damaged(
                f"{self.path} cannot be opened as a store: it is {_kind(head)}, no DuckDB file. "
                "Name another file with --db, or restore it from a copy."
            )


def _kind(head: bytes) -> str:
    """What a file is, by its first bytes, in words."""
    if head.startswith(b"SQLite forma"):
        return "an SQLite database"
    if head.startswith(b"\x1f\x8b"):
        return "a gzip file, as traces are"
    if head.lstrip()[:1] in (b"{", b"["):
        return "a JSON text, as traces are"
    return "a file of another kind"


def _attached(path: Path, settings: dict[str, str]) -> Connection:
    """The store read-only in a DuckDB of its own, with these settings.

    All connections of one DuckDB have the same settings: a statement that somebody typed must not
    keep the rest of the process (a server's other visitors) from the store while it runs.
    """
    # Once set, these two would forbid to attach the store.
    last = ("enable_external_access", "lock_configuration")
    connection = duckdb.connect(config={k: v for k, v in settings.items() if k not in last})
    try:
        connection.execute(f"ATTACH {quoted(str(path))} AS store (READ_ONLY)")
        connection.execute("USE store")
        # Without a folder to spill to, the memory limit is the limit.
        connection.execute("SET temp_directory = ''")
        for name in last:
            connection.execute(f"SET {name} = {settings[name]}")
    except duckdb.Error:
        connection.close()
        raise
    return connection


def _create(path: Path) -> None:
    """Make an empty store beside `path` and move it there whole: nobody sees half of one."""
    if not path.parent.is_dir():
        raise AnalyzerError(f"{path.parent} is no folder; make it or choose another --db.")
    temporary = path.with_name(f".{path.name}.{os.getpid()}.new")
    log = temporary.with_name(temporary.name + ".wal")
    try:
        # A process of the same number may have been killed in the middle of this; a container gives
        # the same numbers at every start.
        temporary.unlink(missing_ok=True)
        log.unlink(missing_ok=True)
        connection = duckdb.connect()
        try:
            connection.execute(
                f"ATTACH {quoted(str(temporary))} AS store (STORAGE_VERSION 'v1.5.0')"
            )
            connection.execute("USE store")
            connection.execute(schema_sql("tables"))
            connection.execute(schema_sql("views"))
            connection.execute(
                "INSERT INTO store_info VALUES (?, ?, ?)",
                [STORE_VERSION, datetime.now(timezone.utc).isoformat(), "hostbound analyzer"],
            )
            connection.execute("USE memory")
            connection.execute("DETACH store")
        finally:
            connection.close()
        try:
            os.link(temporary, path)  # never replaces a store that another process made meanwhile
        except FileExistsError:
            pass
        except OSError:  # a file system without hard links
            if not path.exists():
                os.replace(temporary, path)
    except (duckdb.IOException, OSError) as error:
        raise AnalyzerError(f"{path} cannot be made: {first_line(error)}") from error
    finally:
        temporary.unlink(missing_ok=True)
        log.unlink(missing_ok=True)
