"""The queue of jobs, with clocks that jump and servers that end: in SQLite and PostgreSQL alike."""

from __future__ import annotations

import sqlite3

import pytest
from sqlalchemy import text

from analyzer.server.jobs import queue as queue_module
from support.server_parts import DAY_S, Clock, PostgresDatabases, ServerParts


def queue(parts: ServerParts, team: str, sha256: str = "0" * 64) -> str:
    with parts.database.transaction() as connection:
        return queue_module.insert(connection, team, sha256, None, {}, parts.clock())


def finish(parts: ServerParts, run_ids: list[str], error: str | None = None) -> None:
    job = parts.jobs.claim()
    assert job is not None
    assert parts.jobs.finish(job, run_ids, [], error)


def test_jobs_go_in_the_order_they_came_whatever_the_clock_says(
    parts: ServerParts, clock: Clock
) -> None:
    first = queue(parts, "perf")
    clock.now -= 30 * DAY_S
    second = queue(parts, "perf")
    clock.now += 300 * DAY_S
    third = queue(parts, "perf")

    claimed = [parts.jobs.claim() for _ in range(4)]

    assert [job.id if job else None for job in claimed] == [first, second, third, None]


def test_a_teams_many_jobs_do_not_hold_up_another_team(parts: ServerParts) -> None:
    many = [queue(parts, "busy") for _ in range(5)]
    one = queue(parts, "calm")

    claimed = [job.id for _ in range(6) if (job := parts.jobs.claim())]

    assert claimed.index(one) <= 1
    assert sorted(claimed) == sorted([*many, one])


def test_what_ran_when_the_server_ended_is_queued_again(parts: ServerParts) -> None:
    job_id = queue(parts, "perf")
    assert parts.jobs.claim()

    again = parts.again()

    assert again.jobs.requeue_lost() == 1
    job = again.jobs.claim()
    assert job is not None
    assert (job.id, job.attempts) == (job_id, 2)


def test_a_job_that_servers_end_with_goes_behind_others_and_is_never_given_up(
    parts: ServerParts, clock: Clock
) -> None:
    """It may be what ends them; or they are killed for other reasons, and the file is good."""
    job_id = queue(parts, "perf")
    for _ in range(20):
        clock.now += DAY_S
        job = parts.jobs.claim()
        assert job is not None
        assert job.id == job_id
        assert parts.jobs.requeue_lost() == 1
    other = queue(parts, "perf")

    following = parts.jobs.claim()
    assert following is not None
    assert following.id == other
    assert parts.jobs.claim() is None, "it waits longer each time"
    clock.now -= 300 * DAY_S  # put back, which must not make it wait for a year
    again = parts.jobs.claim()
    assert again is not None
    assert (again.id, again.attempts, again.interrupted) == (job_id, 21, 20)


def test_one_more_may_run_for_a_team_that_finds_all_workers_busy_with_others(
    parts: ServerParts,
) -> None:
    for _ in range(3):
        queue(parts, "busy")
    assert parts.jobs.claim(beside=1) is None, "the ordinary worker is free"
    assert parts.jobs.claim()
    assert parts.jobs.claim(beside=1) is None, "the team has one already"
    waiting = queue(parts, "other")

    job = parts.jobs.claim(beside=1)

    assert job is not None
    assert job.id == waiting


def test_what_a_server_says_of_a_job_that_it_lost_is_not_heard(parts: ServerParts) -> None:
    queue(parts, "perf")
    lost = parts.jobs.claim()
    assert lost is not None
    parts.jobs.requeue_lost()
    now = parts.again().jobs
    taken = now.claim()
    assert taken is not None

    parts.jobs.requeue(lost)
    assert not parts.jobs.finish(lost, ["wrong"], [])

    job = now.get("perf", lost.id)
    assert job is not None
    assert (job.state, job.run_ids) == ("running", [])
    assert now.finish(taken, ["right"], [])
    assert not now.finish(taken, ["again"], [])


def test_only_a_failed_job_of_the_team_is_tried_again(parts: ServerParts) -> None:
    job_id = queue(parts, "perf")
    assert parts.jobs.retry("perf", job_id) is None
    finish(parts, [], "why")

    assert parts.jobs.retry("other", job_id) is None
    again = parts.jobs.retry("perf", job_id)

    assert again is not None
    assert (again.state, again.error, again.attempts) == ("queued", None, 0)


def test_a_deleted_run_is_in_no_job(parts: ServerParts) -> None:
    job_id = queue(parts, "perf")
    finish(parts, ["a", "b"])
    made = parts.jobs.of_run("perf", "a")
    assert made is not None
    assert made.id == job_id

    parts.jobs.forget_run("other", "a")
    parts.jobs.forget_run("perf", "a")

    job = parts.jobs.get("perf", job_id)
    assert job is not None
    assert job.run_ids == ["b"]
    assert parts.jobs.of_run("perf", "a") is None
    assert parts.jobs.of_run("other", "b") is None


def test_a_transaction_that_fails_leaves_nothing(parts: ServerParts) -> None:
    def fail() -> None:
        with parts.database.transaction() as connection:
            queue_module.insert(connection, "perf", "0" * 64, None, {}, 0.0)
            connection.execute(text("INSERT INTO nowhere VALUES (1)"))

    errors: tuple[type[Exception], ...] = (sqlite3.OperationalError,)
    if isinstance(parts.databases, PostgresDatabases):
        import psycopg

        errors = (psycopg.errors.UndefinedTable,)
    with pytest.raises(errors):
        fail()

    assert parts.jobs.list() == []
