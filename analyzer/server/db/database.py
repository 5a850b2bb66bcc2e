"""What the server must not forget: tokens, sessions, uploads, jobs; and how one speaks with it.

Beside a file store it is one SQLite file, beside a lake a schema of the lake's PostgreSQL, which
several servers share. A change is on disk when its transaction ends: an upload is acknowledged only
after its job is in here. A PostgreSQL that went away is asked again for some seconds, then it is
said. Callers see the driver's own errors, or Unreachable.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, TypeVar, cast

from sqlalchemy import Connection, Executable, Row, Select, func, inspect, select
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.schema import CreateSchema

from analyzer.errors import AnalyzerError, Unreachable, first_line
from analyzer.server.db import connect, tables
from analyzer.server.db.connect import Engines
from analyzer.server.db.liveness import Liveness, Requeue
from analyzer.server.db.reader import Reader
from analyzer.server.layout import Layout
from analyzer.store.lake_file import read_lake_file
from schemas.extras import require

PATIENCE_S = 10.0
_LOST = (
    "If there were some, put them back from a backup; else make a token first: `analyzer token "
    "create`."
)
_AGAIN_S = 0.2
_T = TypeVar("_T")


class Database:
    """Safe to use from any thread."""

    def __init__(self, engines: Engines, place: str, patience_s: float = PATIENCE_S) -> None:
        """Prepare; connects to nothing yet. `open_sqlite` and `open_postgres` do.

        Args:
            place: What errors call it: the file, or the lake file.
            patience_s: How long a PostgreSQL that is away is asked again.
        """
        self.engines = engines
        self._place = place
        self._patience_s = patience_s
        self._mine = threading.local()
        # Who waits for SQLite itself looks again after longer and longer pauses, in no order.
        self._turn = nullcontext() if engines.schema else threading.Lock()
        self._reader = None if engines.schema else Reader(engines.reading)
        self._liveness: Liveness | None = None

    # -- statements

    @contextmanager
    def transaction(self) -> Generator[Connection, None, None]:
        """One writing transaction: all of it or nothing. No other within it.

        Raises:
            Unreachable: PostgreSQL did not answer for some seconds. If it went away at the very
                end, all of it may be there.
        """
        with (
            self._errors(),
            self._turn,
            self._again(self.engines.writing.connect) as connection,
            connection.begin(),
        ):
            self._mine.connection = connection
            try:
                yield connection
            finally:
                self._mine.connection = None

    def rows(self, statement: Executable, **values: Any) -> Sequence[Row[Any]]:
        """Rows of a question; within a transaction of this thread, as that sees it.

        Args:
            values: Of the statement's bindparams. One that is asked often is made once and has
                these: making it anew costs more than asking it.

        Raises:
            Unreachable: PostgreSQL did not answer for some seconds.
        """
        current: Connection | None = getattr(self._mine, "connection", None)
        if current is not None:
            return current.execute(statement, values).all()
        if values and self._reader is not None and isinstance(statement, Select):
            return self._reader.rows(cast("Select[Any]", statement), values)

        def ask() -> Sequence[Row[Any]]:
            with self.engines.reading.connect() as connection:
                return connection.execute(statement, values).all()

        with self._errors():
            return self._again(ask)

    def write(self, statement: Executable) -> None:
        """Execute a change within the transaction of this thread."""
        connection: Connection = self._mine.connection
        connection.execute(statement)

    def row(self, statement: Executable, **values: Any) -> Row[Any] | None:
        """The first row, if there is one; raises Unreachable."""
        found = self.rows(statement, **values)
        return found[0] if found else None

    def answers(self) -> bool:
        """Whether it can be read now; asked once."""
        try:
            with self.engines.alone.connect() as connection:
                connection.execute(select(1))
        except DBAPIError:
            return False
        return True

    def _again(self, work: Callable[[], _T]) -> _T:
        """Do something; again as long as PostgreSQL is away, for some seconds."""
        deadline = time.monotonic() + self._patience_s
        while True:
            try:
                return work()
            except DBAPIError as error:
                if not self._is_lost(error) or time.monotonic() > deadline:
                    raise
            time.sleep(_AGAIN_S)

    def _is_lost(self, error: DBAPIError) -> bool:
        shared = self.engines.schema is not None
        return shared and isinstance(error, (OperationalError, InterfaceError))

    @contextmanager
    def _errors(self) -> Generator[None, None, None]:
        try:
            yield
        except PoolTimeout as error:
            raise Unreachable(
                f"{self._place}: PostgreSQL is too slow to answer all; try again."
            ) from error
        except DBAPIError as error:
            cause = error.orig or error
            if self._is_lost(error):
                said = first_line(cause)[:-1]
                raise Unreachable(
                    f"{self._place}: PostgreSQL does not answer: {said}; try again."
                ) from error
            raise cause from error

    # -- its tables

    def prepare(self, make: bool) -> None:
        """Look for the tables; make them if they are not there and `make` says so.

        Raises:
            AnalyzerError: They are not there, or of another version.
            Unreachable: PostgreSQL does not answer.
        """
        with self._errors():
            version = self._again(self._version)
            if version is None and make:
                version = self._again(self._make)
        if version is None:
            raise AnalyzerError(f"{self._place} has no server's tokens and jobs. {_LOST}")
        if version != tables.VERSION:
            schema = self.engines.schema
            what = f"the schema {schema} of {self._place}" if schema else self._place
            raise AnalyzerError(
                f"{what} is of version {version}, this program knows {tables.VERSION}: upgrade "
                "hostbound."
            )

    def _version(self) -> int | None:
        with self.engines.reading.connect() as connection:
            return self._version_by(connection)

    def _version_by(self, connection: Connection) -> int | None:
        if not inspect(connection).has_table(tables.info.name, schema=self.engines.schema):
            return None
        return connection.execute(select(func.max(tables.info.c.version))).scalar()

    def _make(self) -> int | None:
        """Make the tables in one transaction; several that would, do so one after the other."""
        schema = self.engines.schema
        with self.engines.writing.begin() as connection:
            if schema is not None:  # SQLite has one writer
                key = func.hashtextextended(schema, 0)
                connection.execute(select(func.pg_advisory_xact_lock(key)))
            if (version := self._version_by(connection)) is not None:
                return version
            if schema is not None:
                connection.execute(CreateSchema(schema, if_not_exists=True))
            tables.make(connection)
        return tables.VERSION

    # -- a server

    def server(self) -> int | None:
        """The number of this server among those that share the database; None where it is alone.

        Raises:
            Unreachable: This server cannot show now that it lives: it takes no job.
        """
        if self.engines.schema is None:
            return None
        if self._liveness is None or not self._liveness.is_shown:
            raise Unreachable(f"{self._place}: this server's session with PostgreSQL is lost.")
        return self._liveness.server

    def watch(self, requeue: Requeue) -> None:
        """Begin to be a server: `requeue` is called with the numbers of servers that are gone.

        Without a number for a server that has the database to itself: what ran, ran in the last
        one.

        Raises:
            Unreachable: PostgreSQL does not answer.
        """
        if self.engines.schema is None:
            requeue(None)
            return
        self._liveness = Liveness(self, requeue)
        with self._errors():
            self._liveness.start()

    def close(self) -> None:
        """Stop being a server, let go of connections."""
        if self._liveness is not None:
            self._liveness.stop()
        self.engines.writing.dispose()


def open_database(layout: Layout, make: bool = True) -> Database:
    """The database that belongs to a server's folder or lake.

    Args:
        make: Make it if it is not there.

    Raises:
        AnalyzerError: It is not there, cannot be opened, or is of another version.
    """
    if layout.lake is None:
        return open_sqlite(layout.database, make)
    require("fleet", "psycopg")
    found = read_lake_file(layout.lake)
    return open_postgres(found.catalog, f"{found.schema}_server", str(layout.lake), make)


def open_sqlite(path: Path, make: bool = True) -> Database:
    """The file.

    Args:
        make: Make it if it is not there, or has no tables.

    Raises:
        AnalyzerError: It is not there, cannot be opened, or is of another version.
    """
    if not path.exists() and not make:
        raise AnalyzerError(
            f"{path.parent} is no folder of a server: it has no {path.name}. {_LOST}"
        )
    database = Database(connect.sqlite(path), str(path))
    try:
        if not path.exists():
            os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
        database.prepare(make)
    except (OSError, sqlite3.Error) as error:
        raise AnalyzerError(f"{path} cannot be opened: {error}.") from error
    except AnalyzerError:
        database.close()
        raise
    return database


def open_postgres(
    catalog: str, schema: str, place: str, make: bool = True, patience_s: float = PATIENCE_S
) -> Database:
    """A schema of a PostgreSQL.

    Args:
        catalog: Connection string, without password.
        place: What errors call it: the lake file.
        make: Make the schema if it is not there.

    Raises:
        AnalyzerError: PostgreSQL does not answer or refuses, the schema is of another version.
    """
    import psycopg

    database = Database(connect.postgres(catalog, schema, patience_s), place, patience_s)
    try:
        database.prepare(make)
    except psycopg.Error as error:
        raise AnalyzerError(
            f"{place}: PostgreSQL refused the schema {schema} of tokens and jobs: "
            f"{first_line(error)}"
        ) from error
    return database
