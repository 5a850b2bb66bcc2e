"""The database in PostgreSQL: several servers at once, broken sessions, servers that are gone."""

from __future__ import annotations

import itertools
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest
from sqlalchemy import Connection, func, literal, select, text

from analyzer.errors import AnalyzerError, Unreachable
from analyzer.server.auth.tokens import Tokens
from analyzer.server.db.database import Database, open_postgres
from analyzer.server.db.liveness import GRACE_S, Liveness
from analyzer.server.db.tables import jobs as jobs_table
from analyzer.server.jobs import queue as queue_module
from analyzer.server.jobs.queue import Jobs
from fleet.services import Postgres
from support.team_server import PATIENCE_S, wait_for

pytest.importorskip("psycopg")


_schemas = itertools.count()
ONE = select(literal(1))


@pytest.fixture
def schema() -> str:
    return f"shared_{next(_schemas)}"


@pytest.fixture
def open_database(postgres: Postgres, schema: str) -> Iterator[Callable[..., Database]]:
    """Opens the same database again and again, as servers on one lake do."""
    opened: list[Database] = []

    def open_one(patience_s: float = 10.0, watch: bool = True) -> Database:
        database = open_postgres(postgres.catalog, schema, "lake.toml", patience_s=patience_s)
        opened.append(database)
        if watch:
            database.watch(lambda servers: None)
        return database

    yield open_one
    for database in opened:
        database.close()


def queue(database: Database, count: int) -> None:
    with database.transaction() as connection:
        for _ in range(count):
            queue_module.insert(connection, "default", "0" * 64, None, {}, 0.0)


def end_sessions(postgres: Postgres, name: str = "hostbound server") -> int:
    """End sessions as a restart or a lost network would; how many."""
    sql = (
        "SELECT count(pg_terminate_backend(pid, 5000)) FROM pg_stat_activity "
        f"WHERE application_name = '{name}'"
    )
    return int(postgres.psql(sql))


def test_servers_that_claim_at_once_get_each_job_once(
    open_database: Callable[..., Database],
) -> None:
    databases = [open_database() for _ in range(3)]
    queue(databases[0], 60)

    def claim_all(database: Database) -> list[str]:
        jobs = Jobs(database)
        return [job.id for job in iter(jobs.claim, None) if job]

    with ThreadPoolExecutor(9) as pool:
        claimed = list(itertools.chain(*pool.map(claim_all, databases * 3)))

    assert len(claimed) == 60
    assert set(Counter(claimed).values()) == {1}
    numbers = databases[0].rows(select(jobs_table.c.claim, jobs_table.c.server))
    assert len({row.claim for row in numbers}) == 60
    assert len({row.server for row in numbers}) <= 3


def test_a_new_schema_is_made_once_however_many_would(
    postgres: Postgres,
) -> None:
    for _ in range(5):
        schema = f"shared_{next(_schemas)}"

        def open_one(_: int, schema: str = schema) -> str:
            database = open_postgres(postgres.catalog, schema, "lake.toml")
            text, _row = Tokens(database).create("default", ["read"])
            database.close()
            return text

        with ThreadPoolExecutor(8) as pool:
            assert len(set(pool.map(open_one, range(8)))) == 8
        assert postgres.psql(f"SELECT count(*) FROM {schema}.tokens") == "8"
        assert postgres.psql(f"SELECT count(*) FROM {schema}.info") == "1"


def test_more_threads_than_sessions_wait_for_one_another(
    open_database: Callable[..., Database], postgres: Postgres
) -> None:
    tokens = Tokens(open_database(watch=False))
    text, _ = tokens.create("default", ["read"])
    with ThreadPoolExecutor(40) as pool:
        found = list(pool.map(lambda _: tokens.find(text), range(400)))

    assert all(principal is not None for principal in found)
    sql = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'hostbound server'"
    assert 0 < int(postgres.psql(sql)) <= 8


def test_a_session_that_was_ended_is_replaced_unseen(
    open_database: Callable[..., Database], postgres: Postgres
) -> None:
    database = open_database(watch=False)
    tokens = Tokens(database)
    text, row = tokens.create("default", ["read"])

    assert end_sessions(postgres) >= 1
    assert tokens.find(text) is not None
    end_sessions(postgres)
    assert tokens.revoke(row.id)


def test_a_transaction_that_loses_its_session_is_said_and_leaves_nothing(
    open_database: Callable[..., Database], postgres: Postgres
) -> None:
    database = open_database(watch=False)

    def interrupted() -> None:
        with database.transaction() as connection:
            queue_module.insert(connection, "default", "0" * 64, None, {}, 0.0)
            end_sessions(postgres)
            queue_module.insert(connection, "default", "1" * 64, None, {}, 0.0)

    with pytest.raises(Unreachable, match="does not answer") as caught:
        interrupted()

    assert "\n" not in str(caught.value)
    assert Jobs(database).list() == []
    queue(database, 1)
    assert len(Jobs(database).list()) == 1


def test_what_a_transaction_wrote_is_read_within_it(
    open_database: Callable[..., Database],
) -> None:
    database = open_database(watch=False)
    with database.transaction() as connection:
        queue_module.insert(connection, "default", "0" * 64, None, {}, 0.0)
        assert database.row(select(func.count()).select_from(jobs_table)) == (1,)


def test_postgresql_that_is_away_is_waited_for_and_then_said(
    open_database: Callable[..., Database], postgres: Postgres
) -> None:
    patient, brief = open_database(PATIENCE_S, watch=False), open_database(0.3, watch=False)
    asked: list[object] = []
    postgres.stop("immediate")
    try:
        with pytest.raises(Unreachable, match="does not answer"):
            brief.row(ONE)
        assert not brief.answers()
        waiting = threading.Thread(target=lambda: asked.append(patient.row(ONE)))
        waiting.start()
    finally:
        postgres.start()
    waiting.join(PATIENCE_S)
    assert asked == [(1,)]
    assert brief.answers()
    assert brief.row(ONE) == (1,)


def test_text_that_postgresql_cannot_hold_is_no_reason_to_fail(
    open_database: Callable[..., Database],
) -> None:
    database = open_database()
    queue(database, 1)
    jobs = Jobs(database)
    job = jobs.claim()
    assert job is not None
    assert jobs.finish(job, [], [], "a name with \x00 in it, 100 % of it, why?")
    assert jobs.list()[0].error == "a name with \ufffd in it, 100 % of it, why?"


def test_a_schema_that_may_not_be_made_is_said_in_one_line(postgres: Postgres) -> None:
    postgres.psql("CREATE ROLE poor LOGIN")
    catalog = postgres.catalog.replace("user=hostbound", "user=poor")
    with pytest.raises(AnalyzerError, match="refused the schema") as caught:
        open_postgres(catalog, "poor_schema", "lake.toml")
    assert "\n" not in str(caught.value)


def test_a_role_that_owns_its_database_and_nothing_more_is_enough(postgres: Postgres) -> None:
    postgres.psql("CREATE ROLE plain LOGIN")
    postgres.psql("CREATE DATABASE plain OWNER plain")
    catalog = postgres.catalog.replace("user=hostbound", "user=plain")
    catalog = catalog.replace("dbname=postgres", "dbname=plain")
    database = open_postgres(catalog, "plain_server", "lake.toml")
    other = open_postgres(catalog, "plain_server", "lake.toml")
    try:
        database.watch(lambda servers: None)
        number = running(database)
        watcher = Watcher(other)
        watcher.liveness.take_number()
        assert watcher.look() == watcher.look(2 * GRACE_S) == []
        database.close()
        wait_for_locks(other, 0)
        watcher.look()
        assert watcher.look(GRACE_S) == [number]
        watcher.close()
    finally:
        database.close()
        other.close()


# -- who lives


class Watcher:
    """A server that looks when it is told to, by a clock that somebody sets."""

    def __init__(self, database: Database) -> None:
        self.now = 1000.0
        self.gone: list[int] = []
        self.liveness = Liveness(database, self._requeue, lambda: self.now)
        self._session: Connection = database.engines.reading.connect()

    def _requeue(self, servers: Sequence[int] | None) -> None:
        self.gone.extend(servers or ())

    def look(self, after_s: float = 0.0) -> list[int]:
        """What it says is gone, looking after so long."""
        self.now += after_s
        self.gone.clear()
        self.liveness.look(self._session)
        return list(self.gone)

    def close(self) -> None:
        self._session.close()


@pytest.fixture
def watcher(open_database: Callable[..., Database]) -> Iterator[Watcher]:
    found = Watcher(open_database(watch=False))
    # Its key, without a thread that looks by itself.
    found.liveness.take_number()
    yield found
    found.close()


def wait_for_locks(database: Database, count: int) -> None:
    """PostgreSQL ends a session a moment after it was closed."""
    held = text(
        "SELECT count(*) AS n FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 2 "
        "AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
    )
    wait_for(lambda: database.row(held) == (count,), "locks")


def running(database: Database) -> int:
    """Let a server have a running job; the server's number."""
    queue(database, 1)
    job = Jobs(database).claim()
    assert job is not None
    return job.server


def test_a_server_is_gone_when_its_lock_was_missing_for_a_while(
    open_database: Callable[..., Database], watcher: Watcher
) -> None:
    one, two = open_database(), open_database()
    number = running(one)
    running(two)
    assert watcher.look() == watcher.look(100 * GRACE_S) == []

    one.close()
    wait_for_locks(two, 1)

    assert watcher.look() == []
    assert watcher.look(0.75 * GRACE_S) == []
    assert watcher.look(0.25 * GRACE_S) == [number]
    assert Jobs(two).requeue_lost(watcher.gone) == 1
    assert watcher.look(GRACE_S) == []
    again = Jobs(two).claim()
    assert again is not None
    assert again.server != number


def test_a_server_that_loses_its_session_shows_itself_again_and_takes_no_job_meanwhile(
    open_database: Callable[..., Database], watcher: Watcher, postgres: Postgres
) -> None:
    database = open_database()
    running(database)
    before = database.server()
    assert watcher.look() == []

    assert end_sessions(postgres, "hostbound liveness") == 1
    watcher.look()
    wait_for_locks(database, 1)  # its thread looks twice a second

    with suppress(Unreachable):  # the lock is held a moment before it is known to be
        assert database.server() == before
    assert watcher.look(GRACE_S / 2) == []
    assert watcher.look(GRACE_S) == []


def test_a_server_is_not_gone_because_the_observer_was_away(
    open_database: Callable[..., Database], watcher: Watcher
) -> None:
    """All locks go when PostgreSQL restarts; whoever is back first gives the others their time."""
    database = open_database()
    running(database)
    other = open_database()
    database.close()
    wait_for_locks(other, 1)
    assert watcher.look() == []
    watcher.liveness.forget()

    assert watcher.look(GRACE_S) == []
    assert watcher.look(GRACE_S) != []
