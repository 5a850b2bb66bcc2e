"""A store for a fleet: DuckLake, a catalog in PostgreSQL with Parquet files on disk or in S3.

Any number of processes may write at once, each its own run.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from datetime import datetime, timezone
from pathlib import Path

import duckdb

from analyzer.errors import AnalyzerError, Unreachable, first_line
from analyzer.store.lake_claim import claim as claim_in_lake
from analyzer.store.lake_connection import NoCatalog, connect, environment, reader, snapshot
from analyzer.store.sql_policy import Reach
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

# Big tables: a file a run, so that one run is read without the others and goes with its file. The
# others are small: their files hold many runs once `maintain` has merged them.
PARTITIONED = ("ops", "calls", "device_events", "launches", "python_functions")

# Errors that the asker made, not the store.
_MISTAKES = (
    duckdb.ProgrammingError,
    duckdb.PermissionException,
    duckdb.OutOfMemoryException,
    duckdb.InterruptException,
    duckdb.DataError,
    duckdb.NotSupportedError,
)
# What a lake says, as if of a mistake, when PostgreSQL goes while a statement is bound or fetched.
_OUTAGES = ("for DuckLake: Failed to", "fetch from an unsuccessful query result")


class LakeStore:
    """A lake, named by its TOML file; see `Store`."""

    has_many_writers = True
    reach = Reach.LAKE

    def __init__(self, path: Path) -> None:
        self.path = path
        self.originals = path.with_name(path.name + ".blobs")

    def exists(self) -> bool:
        if not self.path.exists():
            return False
        try:
            with self._errors(), reader(self.path) as connection:
                return _has_tables(connection)
        except NoCatalog:
            return False

    def make(self) -> None:
        with self.writing():
            pass

    @contextmanager
    def reading(self, patience_s: float = READ_PATIENCE_S) -> Generator[Connection, None, None]:
        with self._opened(lambda: reader(self.path)) as connection:
            yield connection

    @contextmanager
    def sandboxed(
        self, memory_limit: str = SANDBOX_MEMORY, threads: int | None = None
    ) -> Generator[Connection, None, None]:
        settings = sandbox_settings(memory_limit, threads)
        with self._opened(
            lambda: closing(connect(self.path, read_only=True, config=settings))
        ) as connection:
            yield connection

    @contextmanager
    def writing(
        self, claim: str | None = None, patience_s: float = LOCK_PATIENCE_S
    ) -> Generator[Connection, None, None]:
        alone = claim_in_lake(self.path, claim) if claim else nullcontext("hostbound")
        with self._errors(), alone as session, closing(self._writable(session)) as connection:
            yield connection

    def stamp(self) -> Stamp:
        if not self.path.exists():
            return ()
        try:
            with self._errors(), reader(self.path) as connection:
                return ((snapshot(connection), 0),)
        except NoCatalog:
            return ()

    def maintain(self, keep_days: float) -> dict[str, int]:
        try:
            with self._errors():
                return _tidy(self.path, keep_days)
        except NoCatalog as error:
            raise no_store(self.path) from error

    def child_environment(self) -> dict[str, str]:
        return environment()

    # -- opening

    @contextmanager
    def _opened(
        self, connecting: Callable[[], AbstractContextManager[Connection]]
    ) -> Generator[Connection, None, None]:
        if not self.path.exists():
            raise no_store(self.path)
        try:
            with self._errors(), connecting() as connection:
                check_version(connection, self.path)
                yield connection
        except NoCatalog as error:
            raise no_store(self.path) from error

    def _writable(self, session: str) -> Connection:
        try:
            connection = connect(self.path, read_only=False, session=session)
            if _has_tables(connection):
                check_version(connection, self.path)
                return connection
            connection.close()
        except NoCatalog:
            pass
        _create(self.path)
        return connect(self.path, read_only=False, session=session)

    @contextmanager
    def _errors(self) -> Generator[None, None, None]:
        """What PostgreSQL, S3 and the disk say, as one line; mistakes in SQL stay what they are."""
        try:
            yield
        except duckdb.Error as error:
            text = first_line(error)
            if isinstance(error, _MISTAKES) and not any(said in str(error) for said in _OUTAGES):
                raise
            if "No space left" in text or "disk full" in text.lower():
                raise AnalyzerError(
                    f"{self.path} could not be written: {text} The store is as it was before; "
                    "free some space, then run the command again."
                ) from error
            raise Unreachable(
                f"{self.path} did not answer: {text} Check PostgreSQL and the data it names, then "
                "run the command again."
            ) from error


def _create(path: Path) -> None:
    """Make the tables of an empty lake; one process does, others wait and find them there."""
    with (
        claim_in_lake(path, "schema") as session,
        closing(connect(path, read_only=False, create=True, session=session)) as connection,
    ):
        if _has_tables(connection):
            return
        connection.execute("CALL lake.set_option('parquet_compression', 'zstd')")
        connection.execute("BEGIN")
        connection.execute(schema_sql("tables"))
        for table in PARTITIONED:
            connection.execute(f"ALTER TABLE {table} SET PARTITIONED BY (run_id)")
        connection.execute(schema_sql("views"))
        connection.execute(
            "INSERT INTO store_info VALUES (?, ?, ?)",
            [STORE_VERSION, datetime.now(timezone.utc).isoformat(), "hostbound analyzer"],
        )
        connection.execute("COMMIT")


def _has_tables(connection: Connection) -> bool:
    return bool(
        connection.execute(
            "SELECT 1 FROM duckdb_tables() WHERE database_name = 'lake' "
            "AND table_name = 'store_info'"
        ).fetchall()
    )


def _tidy(path: Path, keep_days: float) -> dict[str, int]:
    """Merge small files, forget old commits, delete files that nothing needs any more."""
    older = f"now() - INTERVAL '{keep_days * 86400:.0f} seconds'"
    done: dict[str, int] = {}
    with (
        claim_in_lake(path, "upkeep") as session,
        closing(connect(path, read_only=False, session=session)) as connection,
    ):

        def call(key: str, sql: str) -> None:
            done[key] = len(connection.execute(f"SELECT 1 FROM {sql}").fetchall())

        call("tables flushed from the catalog", "ducklake_flush_inlined_data('lake')")
        call("files merged", "ducklake_merge_adjacent_files('lake')")
        call("files rewritten", "ducklake_rewrite_data_files('lake')")
        call("commits forgotten", f"ducklake_expire_snapshots('lake', older_than => {older})")
        call("files deleted", f"ducklake_cleanup_old_files('lake', older_than => {older})")
        # What killed writers left. A day: no writer that lives takes longer.
        call(
            "orphans deleted",
            "ducklake_delete_orphaned_files('lake', older_than => now() - INTERVAL '1 day')",
        )
    return done
