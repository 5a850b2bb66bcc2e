"""Opens a store, creates its tables, checks their version: the one door to both kinds.

A store is a DuckDB file, or a lake (`ducklake.py`) if its name ends in .toml; both hold the same
tables and answer the same SQL. A file takes one writing process at a time; a second one waits.
Works with DuckDB 1.5 and 2: the file is made in the storage version that both read. Every question
is in `analyzer.queries`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Generator
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import duckdb

from analyzer.errors import AnalyzerError, Unreachable
from analyzer.store import ducklake, rwlock
from analyzer.store.sql_text import schema_sql

STORE_VERSION = 2
DEFAULT_STORE = Path("hostbound.duckdb")
LOCK_PATIENCE_S = 120.0
SANDBOX_MEMORY = "2GB"
_POLL_S = 0.1
# Statements that lead from a version to the next: {1: [...]} makes version 2 of version 1.
MIGRATIONS: dict[int, list[str]] = {
    1: [
        "ALTER TABLE steps ADD COLUMN elapsed_ns BIGINT",
        "UPDATE steps SET elapsed_ns = greatest(end_ns, coalesce(("
        "SELECT max(d.start_ns + d.dur_ns) FROM device_events AS d WHERE d.run_id = steps.run_id "
        "AND d.step_id = steps.step_id AND NOT d.bad_time), end_ns)) - start_ns",
    ]
}

Connection = duckdb.DuckDBPyConnection
StoreError = duckdb.Error


class OlderStore(AnalyzerError):
    """The store's tables are of an earlier version; `update` changes that."""


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


@contextmanager
def open_for_writing(
    path: Path, patience_s: float = LOCK_PATIENCE_S, claim: str | None = None
) -> Generator[Connection, None, None]:
    """Open a store for writing, making it if it is not there; waits while another process writes.

    Args:
        claim: What will be written ("run ID"). Many processes write to a lake at once, but only one
            at a time with the same claim; without one, nobody else may write these rows.

    Raises:
        AnalyzerError: The path cannot be written, is no store, is of a newer version, stays locked.
        Unreachable: A lake's PostgreSQL or data went away; nothing was written, or all of it.
    """
    if ducklake.is_lake(path):
        alone = ducklake.claim(path, claim) if claim else nullcontext("hostbound")
        with _lake_errors(path), alone as session, closing(_writable_lake(path, session)) as opened:
            yield opened
        return
    if not path.exists():
        _create(path)
    with _turn(path, read_only=False, patience_s=patience_s):
        connection = _connect(path, read_only=False, patience_s=patience_s)
        try:
            _check_version(connection, path, migrate=True)
            yield connection
        except (duckdb.IOException, duckdb.TransactionException) as error:
            raise AnalyzerError(
                f"{path} could not be written: {_first_line(error)} The store is as it was before; "
                "free some space or check the disk, then run the command again."
            ) from error
        finally:
            connection.close()


def update(path: Path, patience_s: float = LOCK_PATIENCE_S) -> None:
    """Bring an older store up to date; nothing happens to one of this version.

    Raises:
        AnalyzerError: As of `open_for_writing`.
    """
    try:
        with open_for_reading(path, patience_s=patience_s):
            pass
    except OlderStore:
        with open_for_writing(path, patience_s=patience_s):
            pass


@contextmanager
def open_for_reading(
    path: Path | str,
    patience_s: float = 10.0,
    sandbox: bool = False,
    memory_limit: str = SANDBOX_MEMORY,
    threads: int | None = None,
) -> Generator[Connection, None, None]:
    """Open a store read-only.

    Args:
        sandbox: No file access, no settings, limited memory: for SQL that a user typed.
        memory_limit: Of a sandbox, as DuckDB writes it ("2GB").
        threads: Of a sandbox; None: as many as DuckDB takes.

    Raises:
        AnalyzerError: There is no store, it is damaged, of another version, or stays locked.
    """
    path = Path(path)
    if not path.exists():
        raise _no_store(path)
    config: dict[str, Any] = {}
    if sandbox:
        config = {
            "enable_external_access": "false",
            "allow_community_extensions": "false",
            "autoinstall_known_extensions": "false",
            "autoload_known_extensions": "false",
            "memory_limit": memory_limit,
            "lock_configuration": "true",
        }
        if threads:
            config["threads"] = str(threads)
    if ducklake.is_lake(path):
        try:
            with (
                _lake_errors(path),
                closing(ducklake.connect(path, read_only=True, config=config))
                if sandbox
                else ducklake.reader(path) as connection,
            ):
                _check_version(connection, path, migrate=False)
                yield connection
        except ducklake.NoCatalog as error:
            raise _no_store(path) from error
        return
    with _turn(path, read_only=True, patience_s=patience_s):
        connection = _connect(path, read_only=True, patience_s=patience_s, config=config)
        try:
            _check_version(connection, path, migrate=False)
            yield connection
        except duckdb.IOException as error:
            raise AnalyzerError(
                f"{path} is damaged: {_first_line(error)} Restore it from a copy."
            ) from error
        finally:
            connection.close()


def _turn(path: Path, read_only: bool, patience_s: float) -> AbstractContextManager[None]:
    """A turn at the store, where this process keeps turns (a server does)."""
    kept = rwlock.of(path)
    if kept is None:
        return nullcontext()
    return kept.reading(patience_s) if read_only else kept.writing(patience_s)


def exists(path: Path) -> bool:
    """Is there a store with tables, or anything else that only opening can tell?"""
    if not path.exists() or not ducklake.is_lake(path):
        return path.exists()
    try:
        with _lake_errors(path), ducklake.reader(path) as connection:
            return ducklake.has_tables(connection)
    except ducklake.NoCatalog:
        return False


def stamp(path: Path) -> tuple[tuple[int, int], ...]:
    """What changes when the store does; empty if there is none.

    Raises:
        AnalyzerError: A lake does not answer.
    """
    if ducklake.is_lake(path) and path.exists():
        try:
            with _lake_errors(path), ducklake.reader(path) as connection:
                return ((ducklake.snapshot(connection), 0),)
        except ducklake.NoCatalog:
            return ()
    found: list[tuple[int, int]] = []
    for part in (path, path.with_name(path.name + ".wal")):
        try:
            status = part.stat()
        except OSError:
            continue
        found.append((status.st_mtime_ns, status.st_size))
    return tuple(found)


def maintain(path: Path, keep_days: float) -> dict[str, int]:
    """Tidy a lake: merge small files, forget commits older than `keep_days`, delete their files.

    Raises:
        AnalyzerError: It is no lake, or does not answer.
    """
    if not ducklake.is_lake(path):
        raise AnalyzerError(f"{path} is one file, which needs no upkeep; name a lake (*.toml).")
    try:
        with _lake_errors(path):
            return ducklake.maintain(path, keep_days)
    except ducklake.NoCatalog as error:
        raise _no_store(path) from error


def cursor(connection: Connection) -> Connection:
    """Another connection to the same store, for a second answer while the first is read."""
    database = connection.execute("SELECT current_database()").fetchall()[0][0]
    second = connection.cursor()
    second.execute(f'USE "{database}"')
    return second


def _no_store(path: Path) -> AnalyzerError:
    return AnalyzerError(
        f"there is no store at {path}; load a run first: `analyzer ingest PATH --db {path}`, "
        "or name the store with --db."
    )


@contextmanager
def _lake_errors(path: Path) -> Generator[None, None, None]:
    """What PostgreSQL, S3 and the disk say, as one line; mistakes in SQL stay what they are."""
    try:
        yield
    except duckdb.Error as error:
        text = _first_line(error)
        if isinstance(error, _MISTAKES) and not any(said in str(error) for said in _OUTAGES):
            raise
        if "No space left" in text or "disk full" in text.lower():
            raise AnalyzerError(
                f"{path} could not be written: {text} The store is as it was before; free some "
                "space, then run the command again."
            ) from error
        raise Unreachable(
            f"{path} did not answer: {text} Check PostgreSQL and the data it names, then run the "
            "command again."
        ) from error


def _writable_lake(path: Path, session: str) -> Connection:
    try:
        connection = ducklake.connect(path, read_only=False, session=session)
        if ducklake.has_tables(connection):
            if _version(connection, path) == STORE_VERSION:
                return connection
            with ducklake.claim(path, "schema"):  # one process changes tables, others wait
                _check_version(connection, path, migrate=True)
            return connection
        connection.close()
    except ducklake.NoCatalog:
        pass
    ducklake.create(path, schema_sql("tables"), schema_sql("views"), STORE_VERSION)
    return ducklake.connect(path, read_only=False, session=session)


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
            quoted = str(temporary).replace("'", "''")
            connection.execute(f"ATTACH '{quoted}' AS store (STORAGE_VERSION 'v1.5.0')")
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
        raise AnalyzerError(f"{path} cannot be made: {_first_line(error)}") from error
    finally:
        temporary.unlink(missing_ok=True)
        log.unlink(missing_ok=True)


def _connect(
    path: Path, read_only: bool, patience_s: float, config: dict[str, Any] | None = None
) -> Connection:
    deadline = time.monotonic() + patience_s
    while True:
        try:
            if config:
                return _sandboxed(path, config)
            return duckdb.connect(str(path), read_only=read_only)
        except duckdb.IOException as error:
            text = str(error)
            if "lock" in text.lower():
                if time.monotonic() < deadline:
                    time.sleep(_POLL_S)
                    continue
                raise AnalyzerError(
                    f"{path} is in use by another process ({_first_line(error)}) and stayed so for "
                    f"{patience_s:.0f} s; try again when it has finished."
                ) from error
            raise AnalyzerError(
                f"{path} cannot be opened as a store: {_first_line(error)} "
                "Name another file with --db, or restore it from a copy."
            ) from error
        except duckdb.Error as error:
            raise AnalyzerError(
                f"{path} cannot be opened as a store: {_first_line(error)} "
                "Name another file with --db, or restore it from a copy."
            ) from error


def _sandboxed(path: Path, config: dict[str, Any]) -> Connection:
    """The store read-only in a DuckDB of its own, with these settings.

    Of one DuckDB all connections have the same settings: a statement that somebody typed must not
    keep the rest of the process (a server's other visitors) from the store while it runs.
    """
    # Once set, these two would forbid to attach the store.
    last = ("enable_external_access", "lock_configuration")
    connection = duckdb.connect(config={k: v for k, v in config.items() if k not in last})
    try:
        quoted = str(path).replace("'", "''")
        connection.execute(f"ATTACH '{quoted}' AS store (READ_ONLY)")
        connection.execute("USE store")
        # Without a folder to spill to, the memory limit is the limit.
        connection.execute("SET temp_directory = ''")
        for name in last:
            if name in config:
                connection.execute(f"SET {name} = {config[name]}")
    except duckdb.Error:
        connection.close()
        raise
    return connection


def _version(connection: Connection, path: Path) -> int:
    try:
        rows = connection.execute("SELECT max(schema_version) FROM store_info").fetchall()
    except duckdb.CatalogException as error:
        raise AnalyzerError(
            f"{path} is a DuckDB file but no Hostbound store; name another with --db."
        ) from error
    except duckdb.Error as error:
        if ducklake.is_lake(path):  # PostgreSQL is away, most likely
            raise
        raise AnalyzerError(
            f"{path} is damaged: {_first_line(error)} Restore it from a copy."
        ) from error
    version = rows[0][0] if rows else None
    if version is None:
        raise AnalyzerError(f"{path} does not say its version; name another store with --db.")
    return version


def _check_version(connection: Connection, path: Path, migrate: bool) -> None:
    version = _version(connection, path)
    if version > STORE_VERSION:
        raise AnalyzerError(
            f"{path} is of store version {version}, this program knows {STORE_VERSION}: "
            "upgrade hostbound."
        )
    if version < STORE_VERSION:
        if not migrate:
            raise OlderStore(
                f"{path} is of store version {version}, this program reads {STORE_VERSION}: any "
                "`analyzer ingest` on it brings it up to date."
            )
        connection.execute("BEGIN")
        for step in range(version, STORE_VERSION):
            for statement in MIGRATIONS[step]:
                connection.execute(statement)
        connection.execute("UPDATE store_info SET schema_version = ?", [STORE_VERSION])
        connection.execute("COMMIT")


def _first_line(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}."
    text = str(error).strip().splitlines()
    line = text[0] if text else type(error).__name__
    return line if line.endswith(".") else line + "."
