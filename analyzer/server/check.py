"""`analyzer verify --data DIR`: is a server's folder sound? Every store, original and job of it.

What `analyzer verify` says of each team's store, and: each original's content is its name's hash,
each acknowledged upload has its original, each finished job its runs. Changes nothing.
"""

from __future__ import annotations

import json
from pathlib import Path

from analyzer import database
from analyzer.server.layout import Layout
from analyzer.server.state import State
from analyzer.verify import Problem, verify
from schemas.run_directory import file_sha256


def check(data: Path) -> list[Problem]:
    """Everything that is wrong, team by team; empty for a sound folder.

    Raises:
        AnalyzerError: It is no folder of a server, or a store cannot be read at all.
    """
    layout = Layout(data)
    if data.name.endswith(".data") and (db := data.with_name(data.name[:-5])).is_file():
        layout = Layout.of_store(db)
    layout.check()
    state = State(layout.state)
    problems: list[Problem] = []
    for team in layout.teams():
        store = layout.store(team)
        runs: set[str] = set()
        if store.exists():
            problems += verify(store)
            with database.open_for_reading(store) as connection:
                runs = {r[0] for r in connection.execute("SELECT run_id FROM runs").fetchall()}
        problems += _originals(layout, state, team)
        problems += _jobs(state, team, runs)
    return problems


def _originals(layout: Layout, state: State, team: str) -> list[Problem]:
    problems: list[Problem] = []
    stored = state.rows(
        "SELECT sha256, size FROM uploads WHERE team = ? AND state = 'stored'", (team,)
    )
    for row in stored:
        blob = layout.blob(team, row["sha256"])
        if not blob.is_file():
            problems.append(Problem(None, "originals", f"{blob} is missing"))
        elif blob.stat().st_size != row["size"]:
            problems.append(
                Problem(None, "originals", f"{blob} does not have its {row['size']} bytes")
            )
    folder = layout.team(team) / "blobs"
    for blob in sorted(folder.iterdir()) if folder.is_dir() else ():
        if file_sha256(blob) != blob.name:
            problems.append(Problem(None, "originals", f"{blob} is not what was uploaded"))
    return problems


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
