"""The state of a server that has its folder to itself: one small SQLite file.

Each change is one transaction and on disk when it returns (WAL, synchronous FULL).
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from analyzer.errors import AnalyzerError
from analyzer.server.db.database import VERSION, Row, newer

_TABLES = """
CREATE TABLE tokens (
  id TEXT PRIMARY KEY, team TEXT NOT NULL, name TEXT NOT NULL, scopes TEXT NOT NULL,
  hash BLOB NOT NULL UNIQUE, created_at REAL NOT NULL, expires_at REAL, revoked_at REAL);
CREATE TABLE sessions (
  hash BLOB PRIMARY KEY, token_id TEXT NOT NULL, expires_at REAL NOT NULL);
CREATE TABLE uploads (
  id TEXT PRIMARY KEY, team TEXT NOT NULL, sha256 TEXT NOT NULL, size INTEGER NOT NULL,
  format TEXT, name TEXT, host TEXT, metadata TEXT NOT NULL, token_id TEXT,
  state TEXT NOT NULL, created_at REAL NOT NULL, UNIQUE (team, sha256));
CREATE TABLE jobs (
  seq INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, team TEXT NOT NULL,
  sha256 TEXT NOT NULL, name TEXT, metadata TEXT NOT NULL, state TEXT NOT NULL,
  attempts INTEGER NOT NULL DEFAULT 0, claim INTEGER NOT NULL DEFAULT 0,
  error TEXT, run_ids TEXT NOT NULL DEFAULT '[]', results TEXT NOT NULL DEFAULT '[]',
  queued_at REAL NOT NULL, started_at REAL, finished_at REAL);
CREATE INDEX jobs_by_state ON jobs (state, team, seq);
CREATE INDEX jobs_by_claim ON jobs (team, claim);
CREATE INDEX jobs_by_turn ON jobs (claim);
CREATE INDEX jobs_by_team ON jobs (team, seq);
CREATE INDEX jobs_by_sha256 ON jobs (team, sha256, seq);
"""


class SqliteState:
    """The file, from any thread: each has its own connection. `state.State` says what is what."""

    claiming = "claim = (SELECT max(claim) + 1 FROM jobs)"

    def __init__(self, path: Path) -> None:
        """Open the file, making it if it is not there.

        Raises:
            AnalyzerError: It cannot be opened, or is of a newer version.
        """
        self.path = path
        self._mine = threading.local()
        try:
            if not path.exists():
                os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
            with self.transaction() as connection:
                version = connection.execute("PRAGMA user_version").fetchone()[0]
                if version == 0:
                    for statement in _TABLES.split(";"):
                        connection.execute(statement)
                    connection.execute(f"PRAGMA user_version = {VERSION}")
        except (OSError, sqlite3.Error) as error:
            raise AnalyzerError(f"{path} cannot be opened: {error}.") from error
        if version > VERSION:
            raise newer(str(path), version)

    def _connection(self) -> sqlite3.Connection:
        connection: sqlite3.Connection | None = getattr(self._mine, "connection", None)
        if connection is None:
            connection = sqlite3.connect(self.path, timeout=30.0, isolation_level=None)
            connection.row_factory = sqlite3.Row
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = FULL")
            self._mine.connection = connection
        return connection

    @contextmanager
    def transaction(self) -> Generator[sqlite3.Connection, None, None]:
        """One writing transaction: all of it or nothing."""
        connection = self._connection()
        connection.execute("BEGIN IMMEDIATE")
        try:
            yield connection
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise

    def rows(self, sql: str, parameters: Sequence[Any] = ()) -> list[Row]:
        """Rows of a question."""
        return [dict(row) for row in self._connection().execute(sql, parameters).fetchall()]

    def row(self, sql: str, parameters: Sequence[Any] = ()) -> Row | None:
        """The first row, if there is one."""
        found = self.rows(sql, parameters)
        return found[0] if found else None

    def answers(self) -> bool:
        try:
            return self.row("SELECT 1") is not None
        except sqlite3.Error:
            return False

    def watch(self, requeue: Callable[[str], None]) -> None:
        requeue("1 = 1")  # no other server has this folder: what ran, ran in the last one

    def close(self) -> None:
        """Close this thread's connection; the others end with their threads."""
        connection: sqlite3.Connection | None = getattr(self._mine, "connection", None)
        self._mine.connection = None
        if connection is not None:
            connection.close()
