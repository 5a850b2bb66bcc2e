"""One process at a time does a thing in a lake: a lock of PostgreSQL, freed if its holder dies."""

from __future__ import annotations

import time
from collections.abc import Generator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import duckdb

from analyzer.errors import AnalyzerError
from analyzer.store.lake_connection import load_extensions
from analyzer.store.lake_file import read_lake_file
from analyzer.store.sql_policy import quoted

# How long a writer waits for another one of the same run.
CLAIM_PATIENCE_S = 120.0


@contextmanager
def claim(db: Path, what: str, patience_s: float = CLAIM_PATIENCE_S) -> Generator[str, None, None]:
    """Wait until no other process does `what` in this lake; yields a session name for doing it.

    A lake has no unique keys: two writers of one run would both insert it. So a writer holds a lock
    of PostgreSQL, which a process that dies gives back. A commit that the dead process had sent may
    still be under way then: it is waited for by the name of its session.

    Raises:
        AnalyzerError: Another process still does it after `patience_s`.
        duckdb.Error: The catalog cannot be reached.
    """
    lake = read_lake_file(db)
    deadline = time.monotonic() + patience_s
    busy = AnalyzerError(
        f"another process writes {what} to {db} and did so for {patience_s:.0f} s; if none does, "
        "its host is gone and PostgreSQL has not noticed yet (tcp_keepalives_idle): try later."
    )
    session = f"hostbound {what}"
    with closing(duckdb.connect(config={"autoinstall_known_extensions": "false"})) as connection:
        load_extensions(connection, ("postgres_scanner",))
        catalog = f"{lake.catalog} application_name='hostbound claim'"
        connection.execute(f"ATTACH {quoted(catalog)} AS claims (TYPE postgres)")

        def ask(sql: str) -> Any:
            return connection.execute(
                f"SELECT * FROM postgres_query('claims', {quoted(sql)})"
            ).fetchall()[0][0]

        connection.execute("BEGIN")
        key = quoted(f"{lake.schema} {what}")
        ask(f"SELECT set_config('lock_timeout', '{patience_s:.3f}s', true) AS set")
        try:
            ask(f"SELECT pg_advisory_xact_lock(hashtextextended({key}, 0))::text AS locked")
        except duckdb.Error as error:
            if "lock timeout" in str(error):
                raise busy from error
            raise
        while ask(
            "SELECT count(*) FROM pg_stat_clear_snapshot(), pg_stat_activity "
            f"WHERE application_name = {quoted(session)} AND state <> 'idle'"
        ):
            if time.monotonic() > deadline:
                raise busy
            time.sleep(0.05)
        try:
            yield session
        finally:
            with suppress(duckdb.Error):  # a lost connection has given the lock back
                connection.execute("ROLLBACK")
