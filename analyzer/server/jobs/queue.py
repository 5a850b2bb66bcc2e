"""Conversions: queued, running, done or failed; rows in the database, nothing in memory.

A job whose server died is queued again: at the next start, or by another server on the same lake.
`claim` is another number each time a job is taken: who lost it meanwhile changes nothing any more.
The team that was served longest ago goes first, so one team's thousand uploads do not hold up
another's.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Sequence
from typing import Any

from sqlalchemy import Connection, Row, Select, Text, cast, func, literal, select, true, type_coerce

from analyzer.server.db import tables
from analyzer.server.db.database import Database
from analyzer.server.db.tables import jobs
from analyzer.server.jobs.job import STATES, Job

_MOST_ATTEMPTS = 10  # a server that is killed is seldom the fault of what it converts


def insert(
    connection: Connection,
    team: str,
    sha256: str,
    name: str | None,
    metadata: dict[str, Any],
    now: float,
) -> str:
    """Queue a conversion within somebody's transaction; returns the job's id."""
    job_id = secrets.token_hex(16)
    connection.execute(
        jobs.insert().values(
            id=job_id,
            team=team,
            sha256=sha256,
            name=name,
            metadata=metadata,
            state="queued",
            queued_at=now,
        )
    )
    return job_id


def newest_of(team: str, sha256: str) -> Select[Any]:
    """Asks for the newest job of an original."""
    found = select(jobs).where(jobs.c.team == team, jobs.c.sha256 == sha256)
    return found.order_by(jobs.c.seq.desc()).limit(1)


def _made(team: str, run_id: str) -> Select[Any]:
    """Asks for the jobs that have made a run; its id has no character that means more to LIKE."""
    made = type_coerce(jobs.c.run_ids, Text).like(f'%"{run_id}"%')
    return select(jobs).where(jobs.c.team == team, made)


def _job(row: Row[Any] | None) -> Job | None:
    return None if row is None else Job(*row)


class Jobs:
    """The jobs of all teams."""

    def __init__(self, database: Database, clock: Callable[[], float] = time.time) -> None:
        self._database = database
        self._clock = clock

    def get(self, team: str, job_id: str) -> Job | None:
        """One job of a team."""
        wanted = select(jobs).where(jobs.c.id == job_id, jobs.c.team == team)
        return _job(self._database.row(wanted))

    def of_upload(self, team: str, sha256: str) -> Job | None:
        """The newest job of an original."""
        return _job(self._database.row(newest_of(team, sha256)))

    def list(
        self,
        team: str | None = None,
        states: Sequence[str] = STATES,
        limit: int = 100,
        offset: int = 0,
    ) -> list[Job]:
        """Jobs, newest first."""
        rows = self._database.rows(
            select(jobs)
            .where(jobs.c.team == team if team is not None else true())
            .where(jobs.c.state.in_(states))
            .order_by(jobs.c.seq.desc())
            .limit(limit)
            .offset(offset)
        )
        return [Job(*row) for row in rows]

    def counts(self, team: str | None = None) -> dict[str, int]:
        """How many jobs are in each state."""
        rows = self._database.rows(
            select(jobs.c.state, func.count().label("n"))
            .where(jobs.c.team == team if team is not None else true())
            .group_by(jobs.c.state)
        )
        found = {row.state: row.n for row in rows}
        return {state: found.get(state, 0) for state in STATES}

    def claim(self) -> Job | None:
        """Take the next job, if there is one; it is running then, and no other server's.

        Raises:
            Unreachable: PostgreSQL does not answer.
        """
        server = self._database.server()
        waiting, past = jobs.alias("waiting"), jobs.alias("past")
        last_claim = (
            select(func.max(past.c.claim)).where(past.c.team == waiting.c.team).scalar_subquery()
        )
        first = func.min(waiting.c.seq)
        following = (
            select(first)
            .where(waiting.c.state == "queued")
            .group_by(waiting.c.team)
            .order_by(last_claim, first)
            .limit(1)
        )
        while True:
            with self._database.transaction() as connection:
                seq = connection.execute(following).scalar()
                if seq is None:
                    return None
                # PostgreSQL lets others claim at the same time: one of them changes the row.
                changed = connection.execute(
                    jobs.update()
                    .where(jobs.c.seq == seq, jobs.c.state == "queued")
                    .values(
                        state="running",
                        started_at=self._clock(),
                        attempts=jobs.c.attempts + 1,
                        claim=tables.next_number(connection, tables.CLAIMS),
                        server=server,
                    )
                ).rowcount
                if changed:
                    return _job(connection.execute(select(jobs).where(jobs.c.seq == seq)).one())

    def finish(
        self,
        job: Job,
        run_ids: Sequence[str],
        results: Sequence[dict[str, Any]],
        error: str | None = None,
    ) -> bool:
        """A claimed job has ended: done, or failed with a line that says why.

        Returns:
            False if it is no longer this claim's: another server took it up, it was deleted.
        """
        with self._database.transaction() as connection:
            changed = connection.execute(
                jobs.update()
                .where(*_still_of(job))
                .values(
                    state="failed" if error else "done",
                    error=error,
                    run_ids=[*run_ids],
                    results=[*results],
                    finished_at=self._clock(),
                )
            ).rowcount
        return bool(changed)

    def requeue(self, job: Job, counted: bool = True) -> None:
        """Put a claimed job back; `counted`: the attempt was the job's own fault, perhaps."""
        attempts = jobs.c.attempts - (0 if counted else 1)
        with self._database.transaction() as connection:
            connection.execute(
                jobs.update().where(*_still_of(job)).values(state="queued", attempts=attempts)
            )

    def requeue_lost(self, servers: Sequence[int] | None = None) -> int:
        """What ran in a server that ended is queued again, but not for ever.

        A conversion that takes the whole server down with it would do so at every start.

        Args:
            servers: Those that are gone; None: whichever ran a job.
        """
        lost = (
            jobs.c.state == "running",
            jobs.c.server.in_(servers) if servers is not None else true(),
        )
        error = (
            literal("the server ended ")
            + cast(jobs.c.attempts, Text)
            + literal(
                " times while it was converted; the original is kept. Look at the server's log and "
                "memory, then have it tried again."
            )
        )
        with self._database.transaction() as connection:
            connection.execute(
                jobs.update()
                .where(*lost, jobs.c.attempts >= _MOST_ATTEMPTS)
                .values(state="failed", finished_at=self._clock(), error=error)
            )
            return connection.execute(jobs.update().where(*lost).values(state="queued")).rowcount

    def retry(self, team: str, job_id: str) -> Job | None:
        """Queue a failed job again; None if the team has no failed job of that id."""
        with self._database.transaction() as connection:
            changed = connection.execute(
                jobs.update()
                .where(jobs.c.id == job_id, jobs.c.team == team, jobs.c.state == "failed")
                .values(
                    state="queued",
                    attempts=0,
                    error=None,
                    started_at=None,
                    finished_at=None,
                    queued_at=self._clock(),
                )
            ).rowcount
        return self.get(team, job_id) if changed else None

    def of_run(self, team: str, run_id: str) -> Job | None:
        """The newest job that has made a run."""
        newest = _made(team, run_id).order_by(jobs.c.seq.desc()).limit(1)
        return _job(self._database.row(newest))

    def forget_run(self, team: str, run_id: str) -> None:
        """A run is deleted: no job has made it any more."""
        with self._database.transaction() as connection:
            for row in connection.execute(_made(team, run_id)).all():
                kept = [made for made in row.run_ids if made != run_id]
                connection.execute(
                    jobs.update()
                    .where(jobs.c.id == row.id, jobs.c.run_ids == row.run_ids)
                    .values(run_ids=kept)
                )


def _still_of(job: Job) -> tuple[Any, ...]:
    """Conditions that hold for a job until another server claims it."""
    return jobs.c.id == job.id, jobs.c.state == "running", jobs.c.claim == job.claim
