"""Fixtures of the fleet tests: PostgreSQL, S3, lakes. `make test-fleet` runs them."""

from __future__ import annotations

import importlib.util
import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from conftest import running
from fleet.services import Absent, ObjectStore, Postgres

HERE = Path(__file__).parent
_numbers = itertools.count()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """In an environment that is not the fleet's, skip; DuckDB's extensions fit one version only."""
    ours = [item for item in items if HERE in item.path.parents]
    # `make test-fleet` says that this is the fleet's environment: there nothing may be missing.
    elsewhere = "HOSTBOUND_FLEET" not in os.environ and not all(
        map(importlib.util.find_spec, ("duckdb_extension_ducklake", "ray"))
    )
    for item in ours:
        item.add_marker(pytest.mark.fleet)
        if elsewhere:
            item.add_marker(pytest.mark.skip(reason="fleet tests have their own: make test-fleet"))


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    yield from running(Postgres, Absent)


@pytest.fixture(scope="session")
def object_store() -> Iterator[ObjectStore]:
    yield from running(ObjectStore, Absent)


@pytest.fixture
def make_lake(tmp_path: Path, postgres: Postgres) -> Callable[..., Path]:
    """Makes lake files, each with a catalog schema of its own."""

    def make(data: str = "", more: str = "") -> Path:
        number = next(_numbers)
        lake = tmp_path / f"lake{number}.toml"
        lake.write_text(
            f'catalog = "{postgres.catalog}"\ndata = "{data or f"data{number}"}"\n'
            f'schema = "test_{number}"\n{more}'
        )
        return lake

    return make


@pytest.fixture
def lake(make_lake: Callable[..., Path]) -> Path:
    return make_lake()


@pytest.fixture
def s3_lake(
    make_lake: Callable[..., Path], object_store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """A lake whose data are in the bucket, with the keys to it in the environment."""
    for name, value in object_store.environment().items():
        monkeypatch.setenv(name, value)
    return make_lake(
        f"s3://{object_store.bucket}/lake",
        f'[s3]\nendpoint = "{object_store.endpoint}"\nuse_ssl = false\n',
    )
