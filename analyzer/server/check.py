"""`analyzer verify --data DIR`: is a server's folder sound? Every store, original and job of it.

What `analyzer verify` says of each team's store, and: each original's content is its name's hash,
each acknowledged upload has its original, each finished job its runs. Changes nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

from sqlalchemy import func, select

from analyzer.server.db.database import Database, open_database
from analyzer.server.db.tables import jobs, uploads
from analyzer.server.layout import Layout, is_sha256
from analyzer.server.uploads.blobs import Blobs, open_blobs
from analyzer.store import open_store
from analyzer.store.verify import Problem, verify


def check(data: Path) -> list[Problem]:
    """Everything that is wrong, team by team; empty for a sound folder.

    Raises:
        AnalyzerError: It is no folder of a server, or a store cannot be read at all.
    """
    layout = Layout.of_folder(data)
    server = open_database(layout, make=False)
    blobs = open_blobs(layout)
    problems: list[Problem] = []
    for team in layout.teams():
        store = layout.store(team)
        runs: set[str] = set()
        if store.exists():
            problems += verify(store)
            with open_store(store).reading() as connection:
                runs = {r[0] for r in connection.execute("SELECT run_id FROM runs").fetchall()}
        problems += _originals(blobs, server, team)
        problems += _jobs(server, team, runs)
    return problems


def _originals(blobs: Blobs, server: Database, team: str) -> list[Problem]:
    problems: list[Problem] = []
    stored = server.rows(
        select(uploads.c.sha256, uploads.c.size).where(
            uploads.c.team == team, uploads.c.state == "stored"
        )
    )
    for row in stored:
        size, place = blobs.size(team, row.sha256), blobs.place(team, row.sha256)
        if size is None:
            problems.append(Problem(None, "originals", f"{place} is missing"))
        elif size != row.size:
            problems.append(
                Problem(None, "originals", f"{place} does not have its {row.size} bytes")
            )
    for name in blobs.names(team):
        if not is_sha256(name) or _sha256(blobs.pieces(team, name)) != name:
            problems.append(Problem(None, "originals", f"{name} is not what was uploaded"))
    return problems


def _sha256(pieces: Iterable[bytes]) -> str:
    digest = hashlib.sha256()
    for piece in pieces:
        digest.update(piece)
    return digest.hexdigest()


def _jobs(server: Database, team: str, runs: set[str]) -> list[Problem]:
    """The newest job of each original tells which runs there are; a deleted run took it along."""
    found: list[Problem] = []
    newest = select(func.max(jobs.c.seq)).group_by(jobs.c.team, jobs.c.sha256)
    rows = server.rows(
        select(jobs.c.id, jobs.c.run_ids).where(
            jobs.c.team == team, jobs.c.state == "done", jobs.c.seq.in_(newest)
        )
    )
    for row in rows:
        for run_id in row.run_ids:
            if run_id not in runs:
                found.append(
                    Problem(run_id, "jobs", f"job {row.id} is done, but its run is not stored")
                )
    return found
