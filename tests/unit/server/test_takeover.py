"""What a server kept beside its lake goes into its PostgreSQL once, whatever ends a start."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from analyzer.errors import AnalyzerError, Unreachable
from analyzer.server import jobs as jobs_module
from analyzer.server.blobs import open_blobs
from analyzer.server.jobs import Jobs
from analyzer.server.layout import Layout
from analyzer.server.state import State, open_state
from analyzer.server.state_sqlite import SqliteState
from analyzer.server.takeover import take_over
from analyzer.server.tokens import Tokens
from fleet.services import Postgres

pytest.importorskip("psycopg")

SHA256 = "0" * 64
_schemas = itertools.count()


class Upgrade:
    """A lake file with an older server's folder beside it."""

    def __init__(self, folder: Path, catalog: str, schema: str) -> None:
        lake = folder / "lake.toml"
        lake.write_text(f'catalog = "{catalog}"\ndata = "data"\nschema = "{schema}"\n')
        self.layout = Layout.of_store(lake)
        self.layout.make()
        self.layout.make_team("default")
        self.layout.blob("default", SHA256).write_bytes(b"content")
        books = SqliteState(self.layout.state)
        self.token, _ = Tokens(books).create("default", ["read"])
        principal = Tokens(books).find(self.token)
        assert principal is not None
        self.session = Tokens(books).begin_session(principal)
        with books.transaction() as connection:
            connection.execute(
                "INSERT INTO uploads VALUES ('u', 'default', ?, 7, NULL, 'name', NULL, '{}', NULL, "
                "'stored', 1.0)",
                (SHA256,),
            )
            for name in ("first", "second"):
                jobs_module.insert(connection, "default", SHA256, name, {}, 1.0)
        running = Jobs(books).claim()
        assert running is not None
        books.close()
        self.state = open_state(self.layout)
        self.blobs = open_blobs(self.layout)
        self.told: list[dict[str, Any]] = []

    def take_over(self, state: State | None = None) -> None:
        take_over(
            self.layout,
            state or self.state,
            self.blobs,
            lambda event, **said: self.told.append(said),
        )

    def assert_taken_over(self) -> None:
        tokens = Tokens(self.state)
        assert tokens.find(self.token) is not None
        assert tokens.session(self.session) is not None
        jobs = Jobs(self.state).list()
        assert [job["name"] for job in jobs] == ["second", "first"], "in their order, each once"
        assert {job["state"] for job in jobs} == {"queued"}
        assert self.blobs.size("default", SHA256) == 7
        assert not self.layout.blob("default", SHA256).exists()
        assert not self.layout.state.exists()


@pytest.fixture
def upgrade(tmp_path: Path, postgres: Postgres) -> Iterator[Upgrade]:
    found = Upgrade(tmp_path, postgres.catalog, f"upgrade_{next(_schemas)}")
    yield found
    found.state.close()


def test_all_of_it_is_there_afterwards(upgrade: Upgrade) -> None:
    upgrade.take_over()

    upgrade.assert_taken_over()
    assert upgrade.told == [{"tokens": 1, "sessions": 1, "uploads": 1, "jobs": 2}]
    upgrade.take_over()
    assert len(upgrade.told) == 1


def test_a_start_that_lost_postgresql_after_the_originals_begins_again(upgrade: Upgrade) -> None:
    class Away:
        def transaction(self) -> Any:
            raise Unreachable("PostgreSQL does not answer")

    with pytest.raises(Unreachable):
        upgrade.take_over(Away())  # pyright: ignore[reportArgumentType]
    assert upgrade.layout.state.is_file()

    upgrade.take_over()

    upgrade.assert_taken_over()


def test_a_start_that_ended_before_the_file_was_renamed_doubles_nothing(upgrade: Upgrade) -> None:
    in_the_way = upgrade.layout.data / "server.sqlite.taken-over"
    in_the_way.mkdir()
    with pytest.raises(OSError, match="directory"):
        upgrade.take_over()
    in_the_way.rmdir()

    upgrade.take_over()

    upgrade.assert_taken_over()


def test_a_damaged_file_is_refused_in_one_line(upgrade: Upgrade) -> None:
    for file in upgrade.layout.data.glob("server.sqlite*"):
        file.write_bytes(b"not a database, but long enough to be taken for one" * 100)

    with pytest.raises(AnalyzerError, match="cannot be taken over") as caught:
        upgrade.take_over()

    assert "\n" not in str(caught.value)
    assert Jobs(upgrade.state).list() == []
