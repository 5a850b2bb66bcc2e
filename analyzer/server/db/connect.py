"""How one connects: to a server's own SQLite file, or to a schema of a lake's PostgreSQL.

All that differs between the two is here and in `liveness.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, NullPool, create_engine, event
from sqlalchemy.engine import URL

_MOST_CONNECTIONS = 8
_SQLITE_LOCK_S = 30.0
# Both sides of a connection learn within some 10 s that the other's host is gone.
_CONNECTION: dict[str, Any] = {
    "connect_timeout": 3,
    "tcp_user_timeout": 10_000,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
}
_SETTINGS = (
    "SET tcp_keepalives_idle = 5",
    "SET tcp_keepalives_interval = 2",
    "SET tcp_keepalives_count = 3",
    "SET lock_timeout = '10s'",
    "SET client_min_messages = 'warning'",
)


@dataclass(frozen=True)
class Engines:
    """Ways to one database.

    Attributes:
        reading: Each statement by itself.
        writing: Transactions, of which SQLite does one at a time.
        alone: A new connection each time, beside the pool.
        schema: Where the tables are, in PostgreSQL; None in SQLite.
    """

    reading: Engine
    writing: Engine
    alone: Engine
    schema: str | None = None


def sqlite(path: Path) -> Engines:
    """A file: each change is on disk when its transaction ends (WAL, synchronous FULL)."""
    engine = create_engine(
        URL.create("sqlite", database=str(path)),
        connect_args={"timeout": _SQLITE_LOCK_S, "check_same_thread": False},
        max_overflow=-1,  # threads are few, and each holds a connection for a moment
        hide_parameters=True,
    )

    def set_up(connection: Any, _: object) -> None:
        connection.isolation_level = None  # no transaction begins by itself
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")

    def begin(connection: Connection) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    event.listen(engine, "connect", set_up)
    writing = engine.execution_options()
    event.listen(writing, "begin", begin)
    return Engines(engine, writing, engine)


def postgres(catalog: str, schema: str, patience_s: float) -> Engines:
    """A schema of a PostgreSQL.

    Args:
        catalog: Connection string, without password.
        patience_s: How long a thread waits for a connection that others use.
    """
    # Deferred: servers on a file do without it.
    import psycopg
    from psycopg import sql
    from psycopg.conninfo import make_conninfo

    def connector(name: str) -> Any:
        conninfo = make_conninfo(catalog, application_name=name, **_CONNECTION)

        def connect() -> psycopg.Connection:
            session = psycopg.connect(conninfo, autocommit=True, prepare_threshold=None)
            try:
                for setting in _SETTINGS:
                    session.execute(setting)
                session.execute(sql.SQL("SET search_path = {}").format(sql.Identifier(schema)))
                session.autocommit = False
            except BaseException:
                session.close()
                raise
            return session

        return connect

    kind: dict[str, Any] = {"hide_parameters": True, "use_native_hstore": False}
    engine = create_engine(
        "postgresql+psycopg://",
        creator=connector("hostbound server"),
        pool_size=_MOST_CONNECTIONS,
        max_overflow=0,
        pool_timeout=patience_s,
        pool_pre_ping=True,
        **kind,
    )
    alone = create_engine(
        "postgresql+psycopg://",
        creator=connector("hostbound liveness"),
        poolclass=NullPool,
        isolation_level="AUTOCOMMIT",
        **kind,
    )
    return Engines(engine.execution_options(isolation_level="AUTOCOMMIT"), engine, alone, schema)
