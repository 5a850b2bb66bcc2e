"""What everybody who reads or writes a store asks of it, wherever it is kept.

`open_store` in `analyzer.store` gives one for a path: a DuckDB file (`file.py`) or a lake of many
writers (`lake.py`). Both hold the same tables, of one version, and answer the same SQL.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

import duckdb

from analyzer.errors import AnalyzerError
from analyzer.store.sql_policy import Reach

STORE_VERSION = 4
DEFAULT_STORE = Path("hostbound.duckdb")
LOCK_PATIENCE_S = 120.0
READ_PATIENCE_S = 10.0
SANDBOX_MEMORY = "2GB"

Connection = duckdb.DuckDBPyConnection
Stamp = tuple[tuple[int, int], ...]


class Store(Protocol):
    """Tables of runs, and the originals that were kept of them.

    Attributes:
        path: What names the store: the DuckDB file, or the lake's TOML file.
        has_many_writers: Processes may write different runs at the same time. If not, one writes
            and the others wait.
        reach: What SQL that a person typed could reach here beside the tables.
    """

    @property
    def path(self) -> Path: ...

    @property
    def has_many_writers(self) -> bool: ...

    @property
    def reach(self) -> Reach: ...

    @property
    def originals(self) -> Path:
        """The folder of the files that runs were loaded from."""
        ...

    def exists(self) -> bool:
        """Is there a store with tables, or anything else that only opening can tell?"""
        ...

    def make(self) -> None:
        """Make the tables if there are none; check the version of those that are there.

        Raises:
            AnalyzerError: As of `writing`.
        """
        ...

    def reading(self, patience_s: float = READ_PATIENCE_S) -> AbstractContextManager[Connection]:
        """A read-only connection.

        Raises:
            AnalyzerError: There is no store, it is damaged, of another version, or stays locked.
        """
        ...

    def writing(
        self, claim: str | None = None, patience_s: float = LOCK_PATIENCE_S
    ) -> AbstractContextManager[Connection]:
        """A connection that writes; the tables are made if they are not there.

        Args:
            claim: What will be written ("run ID"). Where many write, only one at a time has the
                same claim; without one, nobody else may write these rows.

        Raises:
            AnalyzerError: The path cannot be written, is no store, of another version, or locked.
            Unreachable: What the store rests on went away; nothing was written, or all of it.
        """
        ...

    def sandboxed(
        self, memory_limit: str = SANDBOX_MEMORY, threads: int | None = None
    ) -> AbstractContextManager[Connection]:
        """A read-only connection for SQL that a person typed: no files, no settings.

        Args:
            memory_limit: As DuckDB writes it ("2GB").
            threads: None: as many as DuckDB takes.

        Raises:
            AnalyzerError: As of `reading`.
        """
        ...

    def stamp(self) -> Stamp:
        """What changes when the store does; empty if there is none.

        Raises:
            AnalyzerError: The store does not answer.
        """
        ...

    def maintain(self, keep_days: float) -> dict[str, int]:
        """Merge small files, forget commits older than `keep_days`; counts of what was done.

        Raises:
            AnalyzerError: The store needs no upkeep, or does not answer.
        """
        ...

    def child_environment(self) -> dict[str, str]:
        """Variables of this process that another process needs to open the store."""
        ...


def sandbox_settings(memory_limit: str, threads: int | None) -> dict[str, str]:
    """DuckDB's settings for SQL that a person typed."""
    settings = {
        "enable_external_access": "false",
        "allow_community_extensions": "false",
        "autoinstall_known_extensions": "false",
        "autoload_known_extensions": "false",
        "memory_limit": memory_limit,
        "lock_configuration": "true",
    }
    return settings | ({"threads": str(threads)} if threads else {})


def check_version(connection: Connection, path: Path) -> None:
    """Refuse tables that are none of ours, or of another version.

    Raises:
        AnalyzerError: They are.
        duckdb.Error: They cannot be read.
    """
    try:
        rows = connection.execute("SELECT max(schema_version) FROM store_info").fetchall()
    except duckdb.CatalogException as error:
        raise AnalyzerError(
            f"{path} is a DuckDB file but no Hostbound store; name another with --db."
        ) from error
    version = rows[0][0] if rows else None
    if version is None:
        raise AnalyzerError(f"{path} does not say its version; name another store with --db.")
    if version != STORE_VERSION:
        help_ = (
            "upgrade hostbound."
            if version > STORE_VERSION
            else "load its runs into a new store, from the files that they came from."
        )
        raise AnalyzerError(
            f"{path} is of store version {version}, this program knows {STORE_VERSION}: {help_}"
        )


def no_store(path: Path) -> AnalyzerError:
    """The error that there is nothing at a path."""
    return AnalyzerError(
        f"there is no store at {path}; load a run first: `analyzer ingest PATH --db {path}`, "
        "or name the store with --db."
    )


def second_connection(connection: Connection) -> Connection:
    """Another connection to the same store, for a second answer while the first is read."""
    database = connection.execute("SELECT current_database()").fetchall()[0][0]
    second = connection.cursor()
    second.execute(f'USE "{database}"')
    return second
