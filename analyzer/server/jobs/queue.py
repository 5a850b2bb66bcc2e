"""Conversions: queued, running, done or failed; rows in the state, nothing in memory.

A job whose server died is queued again: at the next start, or by another server on the same lake.
`claim` is another number each time a job is taken: who lost it meanwhile changes nothing any more.
The team that was served longest ago goes first, so one team's thousand uploads do not hold up
another's.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Sequence
from typing import Any

from analyzer.server.db.database import Connection, Row, State

STATES = ("queued", "running", "done", "failed")
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
        "INSERT INTO jobs (id, team, sha256, name, metadata, state, queued_at) "
        "VALUES (?, ?, ?, ?, ?, 'queued', ?)",
        (job_id, team, sha256, name, json.dumps(metadata), now),
    )
    return job_id


def _holds(run_id: str) -> str:
    """A pattern of lists that name a run; an id has no character that means more in it."""
    return f'%"{run_id}"%'


def _shown(row: Row) -> Row:
    for key in ("run_ids", "results", "metadata"):
        row[key] = json.loads(row[key])
    return row


class Jobs:
    """The jobs of all teams."""

    def __init__(self, state: State, clock: Callable[[], float] = time.time) -> None:
        self._state = state
        self._clock = clock

    def get(self, team: str, job_id: str) -> Row | None:
        """One job of a team."""
        row = self._state.row("SELECT * FROM jobs WHERE id = ? AND team = ?", (job_id, team))
        return _shown(row) if row else None

    def of_upload(self, team: str, sha256: str) -> Row | None:
        """The newest job of an original."""
        row = self._state.row(
            "SELECT * FROM jobs WHERE team = ? AND sha256 = ? ORDER BY seq DESC LIMIT 1",
            (team, sha256),
        )
        return _shown(row) if row else None

    def list(
        self,
        team: str | None = None,
        states: Sequence[str] = STATES,
        limit: int = 100,
        offset: int = 0,
    ) -> list[Row]:
        """Jobs, newest first."""
        marks = ", ".join("?" * len(states))
        rows = self._state.rows(
            f"SELECT * FROM jobs WHERE (CAST(? AS TEXT) IS NULL OR team = ?) "
            f"AND state IN ({marks}) ORDER BY seq DESC LIMIT ? OFFSET ?",
            (team, team, *states, limit, offset),
        )
        return [_shown(row) for row in rows]

    def counts(self, team: str | None = None) -> dict[str, int]:
        """How many jobs are in each state."""
        rows = self._state.rows(
            "SELECT state, count(*) AS n FROM jobs "
            "WHERE (CAST(? AS TEXT) IS NULL OR team = ?) GROUP BY state",
            (team, team),
        )
        found = {row["state"]: row["n"] for row in rows}
        return {state: found.get(state, 0) for state in STATES}

    def claim(self) -> Row | None:
        """Take the next job, if there is one; it is running then, and nobody else's.

        Raises:
            Unreachable: PostgreSQL does not answer.
        """
        claiming = self._state.claiming
        while True:
            with self._state.transaction() as connection:
                # No RETURNING, which is younger than the SQLite of systems in use.
                found = connection.execute(
                    "SELECT min(seq) AS seq FROM jobs AS waiting WHERE state = 'queued' "
                    "GROUP BY team ORDER BY (SELECT max(claim) FROM jobs AS past "
                    "WHERE past.team = waiting.team), min(seq) LIMIT 1"
                ).fetchone()
                if found is None:
                    return None
                # PostgreSQL lets others claim at the same time: one of them changes the row.
                changed = connection.execute(
                    "UPDATE jobs SET state = 'running', started_at = ?, attempts = attempts + 1, "
                    f"{claiming} WHERE seq = ? AND state = 'queued'",
                    (self._clock(), found["seq"]),
                ).rowcount
                if changed:
                    row = connection.execute(
                        "SELECT * FROM jobs WHERE seq = ?", (found["seq"],)
                    ).fetchone()
                    return _shown(dict(row))

    def finish(
        self,
        job: Row,
        run_ids: Sequence[str],
        results: Sequence[dict[str, Any]],
        error: str | None = None,
    ) -> bool:
        """A claimed job has ended: done, or failed with a line that says why.

        Returns:
            False if it is no longer this claim's: another server took it up, it was deleted.
        """
        with self._state.transaction() as connection:
            changed = connection.execute(
                "UPDATE jobs SET state = ?, error = ?, run_ids = ?, results = ?, finished_at = ? "
                "WHERE id = ? AND state = 'running' AND claim = ?",
                (
                    "failed" if error else "done",
                    error,
                    json.dumps(list(run_ids)),
                    json.dumps(list(results), default=str),
                    self._clock(),
                    job["id"],
                    job["claim"],
                ),
            ).rowcount
        return bool(changed)

    def requeue(self, job: Row, counted: bool = True) -> None:
        """Put a claimed job back; `counted`: the attempt was the job's own fault, perhaps."""
        with self._state.transaction() as connection:
            connection.execute(
                "UPDATE jobs SET state = 'queued', attempts = attempts - ? "
                "WHERE id = ? AND state = 'running' AND claim = ?",
                (0 if counted else 1, job["id"], job["claim"]),
            )

    def requeue_lost(self, lost: str = "1 = 1") -> int:
        """What ran in a server that ended is queued again, but not for ever.

        A conversion that takes the whole server down with it would do so at every start.

        Args:
            lost: SQL condition on jobs that run: those of servers that are gone.
        """
        with self._state.transaction() as connection:
            connection.execute(
                "UPDATE jobs SET state = 'failed', finished_at = ?, error = 'the server ended ' || "
                "attempts || ' times while it was converted; the original is kept. Look at the "
                "server''s log and memory, then have it tried again.' "
                f"WHERE state = 'running' AND attempts >= ? AND {lost}",
                (self._clock(), _MOST_ATTEMPTS),
            )
            return connection.execute(
                f"UPDATE jobs SET state = 'queued' WHERE state = 'running' AND {lost}"
            ).rowcount

    def retry(self, team: str, job_id: str) -> Row | None:
        """Queue a failed job again; None if the team has no failed job of that id."""
        with self._state.transaction() as connection:
            changed = connection.execute(
                "UPDATE jobs SET state = 'queued', attempts = 0, error = NULL, "
                "started_at = NULL, finished_at = NULL, queued_at = ? "
                "WHERE id = ? AND team = ? AND state = 'failed'",
                (self._clock(), job_id, team),
            ).rowcount
        return self.get(team, job_id) if changed else None

    def of_run(self, team: str, run_id: str) -> Row | None:
        """The newest job that has made a run."""
        row = self._state.row(
            "SELECT * FROM jobs WHERE team = ? AND run_ids LIKE ? ORDER BY seq DESC LIMIT 1",
            (team, _holds(run_id)),
        )
        return _shown(row) if row else None

    def forget_run(self, team: str, run_id: str) -> None:
        """A run is deleted: no job has made it any more."""
        with self._state.transaction() as connection:
            rows = connection.execute(
                "SELECT id, run_ids FROM jobs WHERE team = ? AND run_ids LIKE ?",
                (team, _holds(run_id)),
            ).fetchall()
            for row in rows:
                kept = [made for made in json.loads(row["run_ids"]) if made != run_id]
                connection.execute(
                    "UPDATE jobs SET run_ids = ? WHERE id = ? AND run_ids = ?",
                    (json.dumps(kept), row["id"], row["run_ids"]),
                )
