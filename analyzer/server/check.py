"""`analyzer verify --data DIR`: is a server's folder sound? Every store, original and job of it.

What `analyzer verify` says of each team's store, and: each original's content is its name's hash,
each acknowledged upload has its original, each finished job its runs. Changes nothing.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path

from analyzer.server.db.database import State, open_state
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
    state = open_state(layout, make=False)
    blobs = open_blobs(layout)
    problems: list[Problem] = []
    for team in layout.teams():
        store = layout.store(team)
        runs: set[str] = set()
        if store.exists():
            problems += verify(store)
            with open_store(store).reading() as connection:
                runs = {r[0] for r in connection.execute("SELECT run_id FROM runs").fetchall()}
        problems += _originals(blobs, state, team)
        problems += _jobs(state, team, runs)
    return problems


def _originals(blobs: Blobs, state: State, team: str) -> list[Problem]:
    problems: list[Problem] = []
    stored = state.rows(
        "SELECT sha256, size FROM uploads WHERE team = ? AND state = 'stored'", (team,)
    )
    for row in stored:
        size, place = blobs.size(team, row["sha256"]), blobs.place(team, row["sha256"])
        if size is None:
            problems.append(Problem(None, "originals", f"{place} is missing"))
        elif size != row["size"]:
            problems.append(
                Problem(None, "originals", f"{place} does not have its {row['size']} bytes")
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


def _jobs(state: State, team: str, runs: set[str]) -> list[Problem]:
    """The newest job of each original tells which runs there are; a deleted run took it along."""
    found: list[Problem] = []
    rows = state.rows(
        "SELECT id, run_ids FROM jobs WHERE team = ? AND state = 'done' AND seq IN "
        "(SELECT max(seq) FROM jobs GROUP BY team, sha256)",
        (team,),
    )
    for row in rows:
        for run_id in json.loads(row["run_ids"]):
            if run_id not in runs:
                found.append(
                    Problem(run_id, "jobs", f"job {row['id']} is done, but its run is not stored")
                )
    return found
