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

from sqlalchemy import (
    ColumnElement,
    Connection,
    Double,
    FromClause,
    Row,
    Select,
    Text,
    and_,
    bindparam,
    func,
    or_,
    select,
    true,
    type_coerce,
)

from analyzer.server.db import tables
from analyzer.server.db.database import Database
from analyzer.server.db.tables import jobs
from analyzer.server.jobs.job import STATES, Job

# A server that is killed is seldom the fault of what it converts.
_INTERRUPTED_FREELY, _WAIT_S = 3, 60.0

_INSERT = jobs.insert().values(state="queued").inline()
_BY_ID = select(jobs).where(jobs.c.id == bindparam("job"), jobs.c.team == bindparam("team"))
# The newest job of an original.
NEWEST_OF = (
    select(jobs)
    .where(jobs.c.team == bindparam("team"), jobs.c.sha256 == bindparam("sha256"))
    .order_by(jobs.c.seq.desc())
    .limit(1)
)


def _due(of: FromClause) -> ColumnElement[bool]:
    """Whether a queued job may be begun. One during which servers ended again and again waits
    longer each time: it may be what ends them, and others go first. A clock that was put back must
    not make it wait for years.
    """
    often = of.c.interrupted - _INTERRUPTED_FREELY
    waits_until = of.c.started_at + often * _WAIT_S
    now = bindparam("now", type_=Double)
    return and_(
        of.c.state == "queued",
        or_(often <= 0, of.c.started_at.is_(None), waits_until <= now, of.c.started_at > now),
    )


_ANY = select(jobs.c.seq).where(_due(jobs)).limit(1)
# The oldest job of the team that was served longest ago.
_waiting, _past = jobs.alias("waiting"), jobs.alias("past")
_first = func.min(_waiting.c.seq)
_NEXT = (
    select(_first)
    .where(_due(_waiting))
    .group_by(_waiting.c.team)
    .order_by(
        select(func.max(_past.c.claim)).where(_past.c.team == _waiting.c.team).scalar_subquery(),
        _first,
    )
    .limit(1)
)
_RUNNING = (
    select(jobs.c.team, func.count().label("n"))
    .where(jobs.c.state == "running", func.coalesce(jobs.c.server, 0) == bindparam("server"))
    .group_by(jobs.c.team)
)
_CLAIM = (
    jobs.update()
    .where(jobs.c.seq == bindparam("of_seq"), jobs.c.state == "queued")
    .values(
        state="running",
        started_at=bindparam("started_at"),
        attempts=jobs.c.attempts + 1,
        claim=bindparam("claim"),
        server=bindparam("server"),
    )
)
_CLAIMED = select(jobs).where(jobs.c.seq == bindparam("of_seq"))
# A job until another server claims it.
_STILL = (
    jobs.c.id == bindparam("of_id"),
    jobs.c.state == "running",
    jobs.c.claim == bindparam("of_claim"),
)
_FINISH = (
    jobs.update()
    .where(*_STILL)
    .values({n: bindparam(n) for n in ("state", "error", "run_ids", "results", "finished_at")})
)
_REQUEUE = (
    jobs.update()
    .where(*_STILL)
    .values(state="queued", attempts=jobs.c.attempts - bindparam("uncounted"))
)


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
    row = {"team": team, "sha256": sha256, "name": name, "metadata": metadata, "queued_at": now}
    connection.execute(_INSERT, {"id": job_id, **row})
    return job_id


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
        return _job(self._database.row(_BY_ID, job=job_id, team=team))

    def of_upload(self, team: str, sha256: str) -> Job | None:
        """The newest job of an original."""
        return _job(self._database.row(NEWEST_OF, team=team, sha256=sha256))

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

    def claim(self, beside: int | None = None) -> Job | None:
        """Take the next job, if there is one; it is running then, and no other server's.

        Args:
            beside: Only if so many run here already, and of a team of which none does.

        Raises:
            Unreachable: PostgreSQL does not answer.
        """
        server = self._database.server()
        now = self._clock()
        if self._database.row(_ANY, now=now) is None:
            return None  # said without a transaction, for which others would wait
        following = _NEXT
        if beside is not None:
            found = self._database.rows(_RUNNING, server=server or 0)
            running = {row.team: row.n for row in found}
            if sum(running.values()) < beside:
                return None
            following = _NEXT.where(_waiting.c.team.not_in(list(running)))
        while True:
            with self._database.transaction() as connection:
                seq = connection.execute(following, {"now": now}).scalar()
                if seq is None:
                    return None
                # PostgreSQL lets others claim at the same time: one of them changes the row.
                values = {
                    "of_seq": seq,
                    "started_at": now,
                    "claim": tables.next_number(connection, tables.CLAIMS),
                    "server": server,
                }
                if connection.execute(_CLAIM, values).rowcount:
                    return _job(connection.execute(_CLAIMED, {"of_seq": seq}).one())

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
        values: dict[str, Any] = {
            "state": "failed" if error else "done",
            "error": error,
            "run_ids": [*run_ids],
            "results": [*results],
            "finished_at": self._clock(),
        }
        with self._database.transaction() as connection:
            return bool(connection.execute(_FINISH, {**values, **_still(job)}).rowcount)

    def requeue(self, job: Job, counted: bool = True) -> None:
        """Put a claimed job back; `counted`: the attempt was the job's own fault, perhaps."""
        with self._database.transaction() as connection:
            connection.execute(_REQUEUE, {"uncounted": 0 if counted else 1, **_still(job)})

    def requeue_lost(self, servers: Sequence[int] | None = None) -> int:
        """What ran in a server that ended is queued again.

        Args:
            servers: Those that are gone; None: whichever ran a job.
        """
        lost = (
            jobs.c.state == "running",
            jobs.c.server.in_(servers) if servers is not None else true(),
        )
        again = jobs.update().where(*lost)
        with self._database.transaction() as connection:
            return connection.execute(
                again.values(state="queued", interrupted=jobs.c.interrupted + 1)
            ).rowcount

    def retry(self, team: str, job_id: str) -> Job | None:
        """Queue a failed job again; None if the team has no failed job of that id."""
        with self._database.transaction() as connection:
            changed = connection.execute(
                jobs.update()
                .where(jobs.c.id == job_id, jobs.c.team == team, jobs.c.state == "failed")
                .values(
                    state="queued",
                    attempts=0,
                    interrupted=0,
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


def _still(job: Job) -> dict[str, Any]:
    """The values of `_STILL`."""
    return {"of_id": job.id, "of_claim": job.claim}
