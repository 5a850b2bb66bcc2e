"""What the server must not forget: tokens, sessions, uploads, jobs; and how one speaks with it.

Beside a file store it is one SQLite file (`state_sqlite.py`), beside a lake a schema of the lake's
PostgreSQL (`state_postgres.py`), which several servers share. One text of SQL serves both: `?` for
parameters, `CAST(? AS TEXT) IS NULL` where one may be None; what differs is in those two modules.

A change is on disk when its transaction ends: an upload is acknowledged only after its job is in
here. Times are Unix seconds by the host's clock and only shown or compared with an expiry; order is
by numbers, so a clock that jumps changes no order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from analyzer.errors import AnalyzerError
from analyzer.server.layout import Layout
from analyzer.store.lake_file import read_lake_file
from schemas.extras import require

VERSION = 1
Row = dict[str, Any]


class Answer(Protocol):
    """What a statement gave."""

    @property
    def rowcount(self) -> int: ...
    def fetchone(self) -> Any: ...
    def fetchall(self) -> list[Any]: ...


class Connection(Protocol):
    """Within a transaction; a row is read by the names of its columns."""

    def execute(self, sql: str, parameters: Sequence[Any] = ..., /) -> Answer: ...


class State(Protocol):
    """Safe to use from any thread."""

    @property
    def claiming(self) -> str:
        """Assignments that make a job this server's, with a `claim` greater than any before.

        Raises:
            Unreachable: This server cannot show now that it lives: it takes no job.
        """
        ...

    def transaction(self) -> AbstractContextManager[Connection]:
        """One writing transaction: all of it or nothing. No other within it.

        Raises:
            Unreachable: PostgreSQL did not answer for some seconds. If it went away at the very
                end, all of it may be there.
        """
        ...

    def rows(self, sql: str, parameters: Sequence[Any] = ()) -> list[Row]:
        """Rows of a question; raises Unreachable."""
        ...

    def row(self, sql: str, parameters: Sequence[Any] = ()) -> Row | None:
        """The first row, if there is one; raises Unreachable."""
        ...

    def answers(self) -> bool:
        """Whether it can be read now; asked once."""
        ...

    def watch(self, requeue: Callable[[str], None]) -> None:
        """Begin to be a server: `requeue` is called with an SQL condition on jobs that run.

        Those are the jobs of servers that are gone: of the last one on this folder, at once; of any
        other one on this lake, whenever it is found gone.
        """
        ...

    def close(self) -> None:
        """Stop being a server, let go of connections."""
        ...


def open_state(layout: Layout, make: bool = True) -> State:
    """The state that belongs to a server's folder or lake.

    Args:
        make: Make it if it is not there.

    Raises:
        AnalyzerError: It is not there, cannot be opened, or is of a newer version.
    """
    if layout.lake is None:
        from analyzer.server.db.sqlite import SqliteState

        if not make:
            layout.check()
        return SqliteState(layout.state)
    require("fleet", "psycopg")
    from analyzer.server.db.postgres import PostgresState

    found = read_lake_file(layout.lake)
    return PostgresState(found.catalog, f"{found.schema}_server", str(layout.lake), make)


def newer(place: str, version: int) -> AnalyzerError:
    """What is said of a state that a later program has written."""
    return AnalyzerError(
        f"{place} is of version {version}, this program knows {VERSION}: upgrade hostbound."
    )
