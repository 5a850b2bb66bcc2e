"""Opens the DuckDB store, creates its tables, checks their version; the only module that connects.

One process may write at a time; a second one waits for it. Works with DuckDB 1.5 and 2: the file is
made in the storage version that both read. Every question is in `queries.py`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Generator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import datetime, timezone
from importlib import resources
from pathlib import Path
from typing import Any

import duckdb

from analyzer import turns
from analyzer.errors import AnalyzerError

STORE_VERSION = 1
DEFAULT_STORE = Path("hostbound.duckdb")
LOCK_PATIENCE_S = 120.0
SANDBOX_MEMORY = "2GB"
_POLL_S = 0.1
# Statements that lead from a version to the next: {1: [...]} makes version 2 of version 1.
MIGRATIONS: dict[int, list[str]] = {}

Connection = duckdb.DuckDBPyConnection
StoreError = duckdb.Error


def schema_sql(name: str) -> str:
    """Text of a SQL file of the package `schemas`."""
    return (resources.files("schemas") / "sql" / name).read_text(encoding="utf-8")


def query_sql(name: str) -> str:
    """Text of `analyzer/sql/NAME.sql`."""
    return (resources.files("analyzer") / "sql" / f"{name}.sql").read_text(encoding="utf-8")


@contextmanager
def open_for_writing(
    path: Path, patience_s: float = LOCK_PATIENCE_S
) -> Generator[Connection, None, None]:
    """Open a store for writing, making it if it is not there; waits while another process writes.

    Raises:
        AnalyzerError: The path cannot be written, is no store, is of a newer version, stays locked.
    """
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
        raise AnalyzerError(
            f"there is no store at {path}; load a run first: `analyzer ingest PATH --db {path}`, "
            "or name the store with --db."
        )
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
    kept = turns.of(path)
    if kept is None:
        return nullcontext()
    return kept.reading(patience_s) if read_only else kept.writing(patience_s)


def _create(path: Path) -> None:
    """Make an empty store beside `path` and move it there whole: nobody sees half of one."""
    if not path.parent.is_dir():
        raise AnalyzerError(f"{path.parent} is no folder; make it or choose another --db.")
    temporary = path.with_name(f".{path.name}.{os.getpid()}.new")
    try:
        connection = duckdb.connect()
        try:
            quoted = str(temporary).replace("'", "''")
            connection.execute(f"ATTACH '{quoted}' AS store (STORAGE_VERSION 'v1.5.0')")
            connection.execute("USE store")
            connection.execute(schema_sql("tables.sql"))
            connection.execute(schema_sql("views.sql"))
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
        temporary.with_name(temporary.name + ".wal").unlink(missing_ok=True)


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


def _check_version(connection: Connection, path: Path, migrate: bool) -> None:
    try:
        rows = connection.execute("SELECT max(schema_version) FROM store_info").fetchall()
    except duckdb.CatalogException as error:
        raise AnalyzerError(
            f"{path} is a DuckDB file but no Hostbound store; name another with --db."
        ) from error
    except duckdb.Error as error:
        raise AnalyzerError(
            f"{path} is damaged: {_first_line(error)} Restore it from a copy."
        ) from error
    version = rows[0][0] if rows else None
    if version is None:
        raise AnalyzerError(f"{path} does not say its version; name another store with --db.")
    if version > STORE_VERSION:
        raise AnalyzerError(
            f"{path} is of store version {version}, this program knows {STORE_VERSION}: "
            "upgrade hostbound."
        )
    if version < STORE_VERSION:
        if not migrate:
            raise AnalyzerError(
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
