"""Once: what a server on a lake kept in its own folder goes to where all servers on it see it.

Before there was one, tokens, uploads and jobs lay in `server.sqlite` beside the lake file and
originals in folders. Originals are moved first, then all rows in one transaction, then the file is
renamed: a start that ends in between begins again and changes nothing twice.
"""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from typing import Any

from analyzer.errors import AnalyzerError
from analyzer.server.blobs import Blobs
from analyzer.server.layout import DEFAULT_TEAM, Layout, is_sha256
from analyzer.server.logs import Log
from analyzer.server.state import State

_TABLES = {
    "tokens": "id, team, name, scopes, hash, created_at, expires_at, revoked_at",
    "sessions": "hash, token_id, expires_at",
    "uploads": "id, team, sha256, size, format, name, host, metadata, token_id, state, created_at",
    "jobs": "id, team, sha256, name, metadata, state, attempts, error, run_ids, results, "
    "queued_at, started_at, finished_at",
}


def take_over(layout: Layout, state: State, blobs: Blobs, log: Log) -> None:
    """Take over what lies in a server's folder, if there is something; it must be nobody else's.

    Raises:
        AnalyzerError: It cannot be read, or it is another folder's.
        Unreachable: PostgreSQL or the place of originals does not answer; begin again.
    """
    if layout.lake is None:
        return
    old = layout.state
    beside = Layout.of_store(layout.lake)
    if beside.data.resolve() != layout.data.resolve() and beside.state.is_file():
        raise AnalyzerError(
            f"{beside.state} has the tokens and jobs of an earlier server: start one without "
            "--data, which takes them over into the lake, or move the file away."
        )
    if not old.is_file():
        return
    try:
        with closing(sqlite3.connect(old)) as source:
            source.row_factory = sqlite3.Row
            rows = {name: _rows(source, name) for name in _TABLES}
            source.execute("PRAGMA wal_checkpoint(TRUNCATE)")  # all of it in the file to be renamed
    except sqlite3.Error as error:
        raise AnalyzerError(
            f"{old} cannot be taken over into the lake: {error}; move it away to begin without its "
            "tokens and jobs."
        ) from error
    _move_originals(layout, blobs, rows["uploads"])
    with state.transaction() as connection:
        for name, found in rows.items():
            marks = ", ".join("?" * len(_TABLES[name].split(",")))
            for row in found:
                connection.execute(
                    f"INSERT INTO {name} ({_TABLES[name]}) VALUES ({marks}) ON CONFLICT DO NOTHING",
                    row,
                )
    os.replace(old, old.with_name(old.name + ".taken-over"))
    log("tokens and jobs taken over into the lake", **{n: len(r) for n, r in rows.items()})


def _rows(source: sqlite3.Connection, name: str) -> list[tuple[Any, ...]]:
    """The default team's rows: a lake is one team's. Those of others stay in the renamed file."""
    columns = _TABLES[name].replace(" state,", " replace(state, 'running', 'queued'),")
    where = "team = ?"
    if name == "sessions":
        where = "token_id IN (SELECT id FROM tokens WHERE team = ?)"
    return [
        tuple(row)
        for row in source.execute(
            f"SELECT {columns} FROM {name} WHERE {where} ORDER BY rowid", (DEFAULT_TEAM,)
        )
    ]


def _move_originals(layout: Layout, blobs: Blobs, uploads: list[tuple[Any, ...]]) -> None:
    columns = _TABLES["uploads"].split(", ")
    for upload in uploads:
        row = dict(zip(columns, upload, strict=True))
        sha256: str = row["sha256"]
        if row["state"] != "stored" or not is_sha256(sha256):
            continue
        here = layout.blob(DEFAULT_TEAM, sha256)
        if here.is_file():
            blobs.keep(DEFAULT_TEAM, sha256, here)
