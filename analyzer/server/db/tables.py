"""The tables of the server's database, each defined once for SQLite and PostgreSQL.

Times are Unix seconds by the host's clock and only shown or compared with an expiry; order is by
numbers (`seq`, `claim`), so a clock that jumps changes no order.
"""

from __future__ import annotations

import json
from functools import cache
from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Connection,
    Dialect,
    Double,
    Index,
    Insert,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    UniqueConstraint,
    bindparam,
    select,
)
from sqlalchemy.dialects import sqlite
from sqlalchemy.types import TypeDecorator

VERSION = 1
# SQLite counts a primary key up by itself only if its type is INTEGER.
_NUMBER = BigInteger().with_variant(Integer(), "sqlite")


class PlainText(TypeDecorator[str]):
    """Text. PostgreSQL's takes every character but NUL, which is replaced."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        if value is None or dialect.name != "postgresql":
            return value
        return value.replace("\x00", "\ufffd")


class JsonText(TypeDecorator[Any]):
    """A list or an object, kept as the text of its JSON."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: Dialect) -> str:
        return json.dumps(value, default=str)

    def process_result_value(self, value: str | None, dialect: Dialect) -> Any:
        return None if value is None else json.loads(value)


metadata = MetaData()

tokens = Table(
    "tokens",
    metadata,
    Column("seq", _NUMBER, primary_key=True),
    Column("id", PlainText, nullable=False, unique=True),
    Column("team", PlainText, nullable=False),
    Column("name", PlainText, nullable=False),
    Column("scopes", PlainText, nullable=False),  # with commas between
    Column("hash", LargeBinary, nullable=False, unique=True),  # SHA-256 of the token
    Column("created_at", Double, nullable=False),
    Column("expires_at", Double),
    Column("revoked_at", Double),
    sqlite_autoincrement=True,
)

sessions = Table(
    "sessions",
    metadata,
    Column("hash", LargeBinary, primary_key=True),  # SHA-256 of what the cookie holds
    Column("token_id", PlainText, nullable=False),
    Column("expires_at", Double, nullable=False),
)

uploads = Table(
    "uploads",
    metadata,
    Column("id", PlainText, primary_key=True),
    Column("team", PlainText, nullable=False),
    Column("sha256", PlainText, nullable=False),
    Column("size", BigInteger, nullable=False),  # bytes, as announced
    Column("format", PlainText),
    Column("name", PlainText),
    Column("host", PlainText),
    Column("metadata", JsonText, nullable=False),
    Column("token_id", PlainText),
    Column("state", PlainText, nullable=False),  # incomplete or stored
    Column("created_at", Double, nullable=False),
    UniqueConstraint("team", "sha256"),
    Index("uploads_by_state", "team", "state"),
)

jobs = Table(
    "jobs",
    metadata,
    Column("seq", _NUMBER, primary_key=True),
    Column("id", PlainText, nullable=False, unique=True),
    Column("team", PlainText, nullable=False),
    Column("sha256", PlainText, nullable=False),  # of the upload
    Column("name", PlainText),
    Column("metadata", JsonText, nullable=False),
    Column("state", PlainText, nullable=False),  # queued, running, done or failed
    Column("attempts", Integer, nullable=False, default=0),
    Column("claim", BigInteger, nullable=False, default=0),
    Column("error", PlainText),
    Column("run_ids", JsonText, nullable=False, default=list),
    Column("results", JsonText, nullable=False, default=list),
    Column("queued_at", Double, nullable=False),
    Column("started_at", Double),
    Column("finished_at", Double),
    Column("server", Integer),  # which one runs it, of those that share a database
    Column("interrupted", Integer, nullable=False, default=0),  # by the end of its server
    Index("jobs_by_state", "state", "team", "seq"),
    Index("jobs_by_claim", "team", "claim"),
    Index("jobs_by_team", "team", "seq"),
    Index("jobs_by_sha256", "team", "sha256", "seq"),
    sqlite_autoincrement=True,
)

run_labels = Table(
    "run_labels",
    metadata,
    Column("team", PlainText, primary_key=True),
    Column("run_id", PlainText, primary_key=True),
    Column("tags", JsonText, nullable=False),
    Column("note", PlainText),
    Column("owner", PlainText),
    Column("is_baseline", Boolean, nullable=False),
    Column("archived_at", Double),
)

audit = Table(
    "audit",
    metadata,
    Column("seq", _NUMBER, primary_key=True),
    Column("team", PlainText, nullable=False),
    Column("at", Double, nullable=False),
    Column("by", PlainText, nullable=False),  # a token's id
    Column("action", PlainText, nullable=False),
    Column("what", PlainText, nullable=False),  # the id of a run or token
    Column("detail", JsonText, nullable=False),
    Index("audit_by_team", "team", "seq"),
    sqlite_autoincrement=True,
)

counters = Table(
    "counters",
    metadata,
    Column("name", PlainText, primary_key=True),
    Column("value", BigInteger, nullable=False),
)
CLAIMS, SERVERS = "claims", "servers"

info = Table("info", metadata, Column("version", Integer, nullable=False))


def make(connection: Connection) -> None:
    """Make the tables where there are none."""
    metadata.create_all(connection, checkfirst=False)
    rows = [{"name": name, "value": 0} for name in (CLAIMS, SERVERS)]
    connection.execute(counters.insert(), rows)
    connection.execute(info.insert().values(version=VERSION))


_COUNTER = counters.c.name == bindparam("counter")
_COUNT = counters.update().where(_COUNTER).values(value=counters.c.value + 1)
_COUNTED = select(counters.c.value).where(_COUNTER)


def next_number(connection: Connection, name: str) -> int:
    """A number greater than any before; no other transaction gets one until this ends."""
    # No RETURNING, which is younger than the SQLite of systems in use.
    connection.execute(_COUNT, {"counter": name})
    return connection.execute(_COUNTED, {"counter": name}).scalar_one()


def insert_new(connection: Connection, table: Table, **values: Any) -> bool:
    """Insert a row, within a transaction; False if one with the same key is there already."""
    insert = _insert_new(table, connection.dialect.name)
    return connection.execute(insert, values).rowcount == 1


@cache
def _insert_new(table: Table, dialect: str) -> Insert:
    """INSERT ... ON CONFLICT DO NOTHING, which each dialect of SQLAlchemy's has for itself."""
    if dialect == "postgresql":
        from sqlalchemy.dialects import postgresql  # deferred: servers on a file do without it

        insert = postgresql.insert(table).on_conflict_do_nothing()
    else:
        insert = sqlite.insert(table).on_conflict_do_nothing()
    return insert.inline().execution_options(preserve_rowcount=True)
