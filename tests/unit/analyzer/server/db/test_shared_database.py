"""The state in PostgreSQL: several servers at once, sessions that break, servers that are gone."""

from __future__ import annotations

import itertools
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest

from analyzer.errors import AnalyzerError, Unreachable
from analyzer.server.auth.tokens import Tokens
from analyzer.server.jobs import queue as jobs_module
from analyzer.server.jobs.queue import Jobs
from fleet.services import Postgres

psycopg = pytest.importorskip("psycopg")

from analyzer.server.db.liveness import GRACE_S, Presence  # noqa: E402 (need psycopg)
from analyzer.server.db.postgres import PostgresState  # noqa: E402

_schemas = itertools.count()


@pytest.fixture
def schema() -> str:
    return f"shared_{next(_schemas)}"


@pytest.fixture
def open_state(postgres: Postgres, schema: str) -> Iterator[Callable[..., PostgresState]]:
    """Opens the same state again and again, as servers on one lake do."""
    opened: list[PostgresState] = []

    def open_one(patience_s: float = 10.0, watch: bool = True) -> PostgresState:
        state = PostgresState(postgres.catalog, schema, "lake.toml", patience_s=patience_s)
        opened.append(state)
        if watch:
            state.watch(lambda lost: None)
        return state

    yield open_one
    for state in opened:
        state.close()


def queue(state: PostgresState, count: int) -> None:
    with state.transaction() as connection:
        for _ in range(count):
            jobs_module.insert(connection, "default", "0" * 64, None, {}, 0.0)


def end_sessions(postgres: Postgres, name: str = "hostbound server") -> int:
    """End sessions as a restart or a lost network would; how many."""
    sql = (
        "SELECT count(pg_terminate_backend(pid, 5000)) FROM pg_stat_activity "
        f"WHERE application_name = '{name}'"
    )
    return int(postgres.psql(sql))


def test_servers_that_claim_at_once_get_each_job_once(
    open_state: Callable[..., PostgresState],
) -> None:
    states = [open_state() for _ in range(3)]
    queue(states[0], 60)

    def claim_all(state: PostgresState) -> list[str]:
        jobs = Jobs(state)
        return [job["id"] for job in iter(jobs.claim, None) if job]

    with ThreadPoolExecutor(9) as pool:
        claimed = list(itertools.chain(*pool.map(claim_all, states * 3)))

    assert len(claimed) == 60
    assert set(Counter(claimed).values()) == {1}
    numbers = states[0].rows("SELECT claim, server FROM jobs")
    assert len({row["claim"] for row in numbers}) == 60
    assert len({row["server"] for row in numbers}) <= 3


def test_a_new_schema_is_made_once_however_many_would(
    postgres: Postgres,
) -> None:
    for _ in range(5):
        schema = f"shared_{next(_schemas)}"

        def open_one(_: int, schema: str = schema) -> str:
            state = PostgresState(postgres.catalog, schema, "lake.toml")
            text, _row = Tokens(state).create("default", ["read"])
            state.close()
            return text

        with ThreadPoolExecutor(8) as pool:
            assert len(set(pool.map(open_one, range(8)))) == 8
        assert postgres.psql(f"SELECT count(*) FROM {schema}.tokens") == "8"
        assert postgres.psql(f"SELECT count(*) FROM {schema}.info") == "1"


def test_more_threads_than_sessions_wait_for_one_another(
    open_state: Callable[..., PostgresState], postgres: Postgres
) -> None:
    tokens = Tokens(open_state(watch=False))
    text, _ = tokens.create("default", ["read"])
    with ThreadPoolExecutor(40) as pool:
        found = list(pool.map(lambda _: tokens.find(text), range(400)))

    assert all(principal is not None for principal in found)
    sql = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'hostbound server'"
    assert 0 < int(postgres.psql(sql)) <= 8


def test_a_session_that_was_ended_is_replaced_unseen(
    open_state: Callable[..., PostgresState], postgres: Postgres
) -> None:
    state = open_state(watch=False)
    tokens = Tokens(state)
    text, row = tokens.create("default", ["read"])

    assert end_sessions(postgres) >= 1
    assert tokens.find(text) is not None
    end_sessions(postgres)
    assert tokens.revoke(row["id"])


def test_a_transaction_that_loses_its_session_is_said_and_leaves_nothing(
    open_state: Callable[..., PostgresState], postgres: Postgres
) -> None:
    state = open_state(watch=False)

    def interrupted() -> None:
        with state.transaction() as connection:
            jobs_module.insert(connection, "default", "0" * 64, None, {}, 0.0)
            end_sessions(postgres)
            jobs_module.insert(connection, "default", "1" * 64, None, {}, 0.0)

    with pytest.raises(Unreachable, match="does not answer") as caught:
        interrupted()

    assert "\n" not in str(caught.value)
    assert Jobs(state).list() == []
    queue(state, 1)
    assert len(Jobs(state).list()) == 1


def test_what_a_transaction_wrote_is_read_within_it(
    open_state: Callable[..., PostgresState],
) -> None:
    state = open_state(watch=False)
    with state.transaction() as connection:
        jobs_module.insert(connection, "default", "0" * 64, None, {}, 0.0)
        assert state.row("SELECT count(*) AS n FROM jobs") == {"n": 1}


def test_postgresql_that_is_away_is_waited_for_and_then_said(
    open_state: Callable[..., PostgresState], postgres: Postgres
) -> None:
    patient, brief = open_state(60.0, watch=False), open_state(0.3, watch=False)
    asked: list[object] = []
    postgres.stop("immediate")
    try:
        with pytest.raises(Unreachable, match="does not answer"):
            brief.row("SELECT 1 AS one")
        assert not brief.answers()
        waiting = threading.Thread(target=lambda: asked.append(patient.row("SELECT 1 AS one")))
        waiting.start()
    finally:
        postgres.start()
    waiting.join(60)
    assert asked == [{"one": 1}]
    assert brief.answers()
    assert brief.row("SELECT 1 AS one") == {"one": 1}


def test_text_that_postgresql_cannot_hold_is_no_reason_to_fail(
    open_state: Callable[..., PostgresState],
) -> None:
    state = open_state()
    queue(state, 1)
    jobs = Jobs(state)
    job = jobs.claim()
    assert job is not None
    assert jobs.finish(job, [], [], "a name with \x00 in it, 100 % of it, why?")
    assert jobs.list()[0]["error"] == "a name with \ufffd in it, 100 % of it, why?"


def test_a_schema_that_may_not_be_made_is_said_in_one_line(postgres: Postgres) -> None:
    postgres.psql("CREATE ROLE poor LOGIN")
    catalog = postgres.catalog.replace("user=hostbound", "user=poor")
    with pytest.raises(AnalyzerError, match="refused the schema") as caught:
        PostgresState(catalog, "poor_schema", "lake.toml")
    assert "\n" not in str(caught.value)


def test_a_role_that_owns_its_database_and_nothing_more_is_enough(postgres: Postgres) -> None:
    postgres.psql("CREATE ROLE plain LOGIN")
    postgres.psql("CREATE DATABASE plain OWNER plain")
    catalog = postgres.catalog.replace("user=hostbound", "user=plain")
    catalog = catalog.replace("dbname=postgres", "dbname=plain")
    state = PostgresState(catalog, "plain_server", "lake.toml")
    other = PostgresState(catalog, "plain_server", "lake.toml")
    try:
        state.watch(lambda lost: None)
        number = running(state)
        watcher = Watcher(other, "plain_server")
        watcher.presence.take_number()
        assert watcher.look() == watcher.look(2 * GRACE_S) == []
        state.close()
        wait_for_locks(other, 0)
        watcher.look()
        assert watcher.look(GRACE_S) == [f"server IN ({number})"]
        watcher.close()
    finally:
        state.close()
        other.close()


# -- who lives


class Watcher:
    """A server that looks when it is told to, by a clock that somebody sets."""

    def __init__(self, state: PostgresState, schema: str) -> None:
        self.now = 1000.0
        self.gone: list[str] = []
        self.presence = Presence(state.connect, schema, self.gone.append, lambda: self.now)
        self._session = state.connect()

    def look(self, after_s: float = 0.0) -> list[str]:
        """What it says is gone, looking after so long."""
        self.now += after_s
        self.gone.clear()
        self.presence.look(self._session)
        return list(self.gone)

    def close(self) -> None:
        self._session.close()


@pytest.fixture
def watcher(open_state: Callable[..., PostgresState], schema: str) -> Iterator[Watcher]:
    found = Watcher(open_state(watch=False), schema)
    # Its key, without a thread that looks by itself.
    found.presence.take_number()
    yield found
    found.close()


def wait_for_locks(state: PostgresState, count: int) -> None:
    """PostgreSQL ends a session a moment after it was closed."""
    sql = (
        "SELECT count(*) AS n FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 2 "
        "AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
    )
    deadline = time.monotonic() + 30
    while state.row(sql) != {"n": count}:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def running(state: PostgresState) -> int:
    """Let a server have a running job; the server's number."""
    queue(state, 1)
    job = Jobs(state).claim()
    assert job is not None
    return job["server"]


def test_a_server_is_gone_when_its_lock_was_missing_for_a_while(
    open_state: Callable[..., PostgresState], watcher: Watcher
) -> None:
    one, two = open_state(), open_state()
    number = running(one)
    running(two)
    assert watcher.look() == watcher.look(100 * GRACE_S) == []

    one.close()
    wait_for_locks(two, 1)

    assert watcher.look() == []
    assert watcher.look(0.75 * GRACE_S) == []
    assert watcher.look(0.25 * GRACE_S) == [f"server IN ({number})"]
    assert Jobs(two).requeue_lost(watcher.gone[0]) == 1
    assert watcher.look(GRACE_S) == []
    again = Jobs(two).claim()
    assert again is not None
    assert again["server"] != number


def test_a_server_that_loses_its_session_shows_itself_again_and_takes_no_job_meanwhile(
    open_state: Callable[..., PostgresState], watcher: Watcher, postgres: Postgres
) -> None:
    state = open_state()
    running(state)
    before = state.claiming
    assert watcher.look() == []

    assert end_sessions(postgres, "hostbound presence") == 1
    watcher.look()
    wait_for_locks(state, 1)  # its thread looks twice a second

    with suppress(Unreachable):  # the lock is held a moment before it is known to be
        assert state.claiming == before
    assert watcher.look(GRACE_S / 2) == []
    assert watcher.look(GRACE_S) == []


def test_a_server_is_not_gone_because_the_observer_was_away(
    open_state: Callable[..., PostgresState], watcher: Watcher
) -> None:
    """All locks go when PostgreSQL restarts; whoever is back first gives the others their time."""
    state = open_state()
    running(state)
    other = open_state()
    state.close()
    wait_for_locks(other, 1)
    assert watcher.look() == []
    watcher.presence.forget()

    assert watcher.look(GRACE_S) == []
    assert watcher.look(GRACE_S) != []
