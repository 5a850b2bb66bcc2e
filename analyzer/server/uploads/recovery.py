"""Brings disk and database together at a start, after whatever ended the last server."""

from __future__ import annotations

import hashlib
import secrets
import shutil
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace

from sqlalchemy import select

from analyzer.server.db.database import Database
from analyzer.server.db.tables import insert_new, uploads
from analyzer.server.jobs import queue
from analyzer.server.layout import Layout, is_sha256
from analyzer.server.limits import Limits
from analyzer.server.uploads.blobs import Blobs
from analyzer.server.uploads.uploads import Busy, Upload, Uploads


class Recovery:
    """Originals, pieces and rows of all teams."""

    def __init__(
        self,
        layout: Layout,
        database: Database,
        blobs: Blobs,
        limits: Limits,
        known: Uploads,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._layout = layout
        self._database = database
        self._blobs = blobs
        self._limits = limits
        self._uploads = known
        self._clock = clock

    def run(self) -> dict[str, int]:
        """Bring them together; returns how much was completed, adopted and dropped.

        An original under its hash was checked before it got there. If its upload is still open, the
        server died between the two, and the upload is completed now; if the database does not know
        it (it was restored from an older copy), it is taken in again. Pieces without an upload, and
        uploads that nobody goes on with, are dropped.
        """
        found = {"completed": 0, "adopted": 0, "dropped": 0}
        for team in self._layout.teams():
            self._layout.make_team(team)
            rows = self._database.rows(select(uploads).where(uploads.c.team == team))
            known = [Upload(*row) for row in rows]
            by_hash = {upload.sha256: upload for upload in known}
            for name in self._blobs.names(team):
                upload = by_hash.get(name)
                if upload is None:
                    found["adopted"] += self._adopt(team, name)
                elif not upload.is_stored and self._uploads.is_kept(upload):
                    self._uploads.note_stored(upload)
                    by_hash[name] = replace(upload, state="stored")
                    found["completed"] += 1
            found["dropped"] += self._drop_pieces(team, by_hash.values())
            found["dropped"] += self.drop_unfinished(team)
            self._tidy(team)
        return found

    def _drop_pieces(self, team: str, known: Iterable[Upload]) -> int:
        """Drop pieces without an upload; returns how many there were."""
        incomplete = {upload.id for upload in known if not upload.is_stored}
        dropped = 0
        for partial in (self._layout.team(team) / "uploads").iterdir():
            if partial.name not in incomplete:
                partial.unlink()
                dropped += 1
        return dropped

    def drop_unfinished(self, team: str) -> int:
        """Drop uploads that nobody has gone on with for days; returns how many there were."""
        oldest = self._clock() - self._limits.partial_days * 86_400
        announced = self._database.rows(
            select(uploads.c.id, uploads.c.created_at).where(
                uploads.c.team == team, uploads.c.state == "incomplete"
            )
        )
        dropped = 0
        for row in announced:
            last = row.created_at  # no byte came, or to another server on the lake
            with suppress(FileNotFoundError):
                last = self._layout.partial(team, row.id).stat().st_mtime
            if last < oldest:
                with suppress(Busy):
                    self._uploads.give_up(team, row.id)
                    dropped += 1
        return dropped

    def _tidy(self, team: str) -> None:
        """Remove what a killed server was making."""
        for unfinished in self._layout.team(team).glob(".store.duckdb.*.new*"):
            unfinished.unlink(missing_ok=True)
        for name in ("work", "snapshots"):
            for entry in (self._layout.team(team) / name).iterdir():
                if entry.is_dir():
                    shutil.rmtree(entry, ignore_errors=True)
                else:
                    entry.unlink(missing_ok=True)

    def _adopt(self, team: str, name: str) -> bool:
        if not is_sha256(name):
            return False  # somebody put it there; `analyzer verify --data` names it
        digest, size = hashlib.sha256(), 0
        for piece in self._blobs.pieces(team, name):
            digest.update(piece)
            size += len(piece)
        if digest.hexdigest() != name:
            return False
        with self._database.transaction() as connection:
            new = insert_new(
                connection,
                uploads,
                id=secrets.token_hex(16),
                team=team,
                sha256=name,
                size=size,
                metadata={},
                state="stored",
                created_at=self._clock(),
            )
            if new:  # not by another server just now
                queue.insert(connection, team, name, None, {}, self._clock())
        return new
