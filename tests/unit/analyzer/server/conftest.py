"""Fixtures: a PostgreSQL for the state that servers on a lake share."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator

import pytest

from conftest import missing, running
from fleet.services import Absent, Postgres


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    if importlib.util.find_spec("psycopg") is None:
        missing("no psycopg here: make setup")
    yield from running(Postgres, Absent)
