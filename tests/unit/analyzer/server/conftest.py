"""Fixtures: the parts of a server that keep what must not be lost, on both kinds."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path

import pytest

from conftest import missing, running
from fleet.services import Absent, Postgres
from support.server_parts import Clock, PostgresDatabases, ServerParts, SqliteDatabases


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    if importlib.util.find_spec("psycopg") is None:
        missing("no psycopg here: make setup")
    yield from running(Postgres, Absent)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(params=["sqlite", "postgres"])
def databases(request: pytest.FixtureRequest) -> Iterator[SqliteDatabases]:
    if request.param == "sqlite":
        found = SqliteDatabases()
    else:
        found = PostgresDatabases(request.getfixturevalue("postgres"))
    yield found
    found.close()


@pytest.fixture
def parts(tmp_path: Path, databases: SqliteDatabases, clock: Clock) -> ServerParts:
    return ServerParts(tmp_path / "data", databases, clock)
