"""Uploads: bytes that come in pieces, are checked against their SHA-256, and become originals.

An upload is one file that grows; its size on disk is the offset, so a server that died goes on
where the disk is. The last piece is answered only when the content is checked, kept under its hash,
and its job is in the state: that answer is the acknowledgement, nothing before it is.

Servers on one lake share what is known of uploads and the originals, not what has come in part: an
upload that is continued at another server begins there from 0.
"""

from __future__ import annotations

import errno
import hashlib
import json
import secrets
import shutil
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, Any

from analyzer.errors import AnalyzerError
from analyzer.server.db.database import Row, State
from analyzer.server.jobs import queue as jobs
from analyzer.server.layout import Layout, is_id, is_sha256
from analyzer.server.limits import Limits
from analyzer.server.uploads.blobs import Blobs
from analyzer.server.uploads.quotas import Quotas
from schemas.run_directory import file_sha256

# EFBIG: a quota by ulimit; for the one who uploads it is the same as a full disk.
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class Busy(AnalyzerError):
    """Another request is writing this upload."""


class WrongOffset(AnalyzerError):
    """A piece does not begin where the upload ends."""


class WrongContent(AnalyzerError):
    """What came is not what was announced."""


class TooLarge(AnalyzerError):
    """More bytes than allowed or announced."""


class DiskFull(AnalyzerError):
    """There is no room for it."""


class Ended(AnalyzerError):
    """The upload was completed or dropped by another request meanwhile."""


@dataclass(frozen=True)
class Announced:
    """What a client says it will send."""

    sha256: str
    size: int
    format: str | None
    name: str | None
    host: str | None
    metadata: dict[str, Any]


@contextmanager
def disk_errors() -> Generator[None, None, None]:
    """Turn a full disk into DiskFull."""
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            raise DiskFull(
                "the server's disk is full; nothing was lost that it acknowledged. Try again when "
                "there is room."
            ) from error
        raise


class Uploads:
    """The uploads of all teams."""

    def __init__(
        self,
        layout: Layout,
        state: State,
        blobs: Blobs,
        limits: Limits,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._layout = layout
        self._state = state
        self._blobs = blobs
        self._limits = limits
        self.quotas = Quotas(state, limits)
        self._clock = clock
        self._writing: set[str] = set()
        self._lock = threading.Lock()

    # -- what is known

    def find(self, team: str, reference: str) -> Row | None:
        """An upload of a team by its id or its SHA-256, with `offset`."""
        if is_sha256(reference):
            where = "sha256"
        elif is_id(reference):
            where = "id"
        else:
            return None
        row = self._state.row(
            f"SELECT * FROM uploads WHERE team = ? AND {where} = ?", (team, reference)
        )
        if row is None:
            return None
        row["metadata"] = json.loads(row["metadata"])
        row["offset"] = row["size"] if row["state"] == "stored" else self._on_disk(row)
        return row

    def _on_disk(self, row: Row) -> int:
        """Bytes that have come; an upload that is kept but was not noted as stored is noted now."""
        try:
            return self._layout.partial(row["team"], row["id"]).stat().st_size
        except FileNotFoundError:
            pass
        if not self._is_kept(row):
            return 0
        self._stored(row)
        row["state"] = "stored"
        return row["size"]

    def _is_kept(self, row: Row) -> bool:
        return self._blobs.size(row["team"], row["sha256"]) == row["size"]

    # -- announce, write, complete

    def announce(self, team: str, wanted: Announced, token_id: str | None) -> Row:
        """The upload of a content: a new one, or the one that is known already.

        Raises:
            TooLarge, DiskFull, TooMuchStored, TooManyQueued: It would not fit.
            WrongContent: The hash is known with another size.
        """
        if wanted.size > self._limits.upload_bytes:
            raise TooLarge(
                f"{wanted.size} bytes are more than this server takes in one upload "
                f"({self._limits.upload_bytes})."
            )
        self._layout.make_team(team)
        known = self.find(team, wanted.sha256)
        if known is None:
            self.quotas.check_queue(team)
            free = shutil.disk_usage(self._layout.team(team)).free
            if wanted.size > free - self._limits.reserve_bytes:
                raise DiskFull(f"the server has no room for {wanted.size} bytes.")
            with self._state.transaction() as connection:
                self.quotas.check_bytes(team, wanted.size, connection)
                connection.execute(
                    "INSERT INTO uploads VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, 'incomplete', ?) "
                    "ON CONFLICT (team, sha256) DO NOTHING",
                    (
                        secrets.token_hex(16),
                        team,
                        wanted.sha256,
                        wanted.size,
                        wanted.format,
                        wanted.name,
                        wanted.host,
                        json.dumps(wanted.metadata),
                        token_id,
                        self._clock(),
                    ),
                )
            known = self.find(team, wanted.sha256)
            assert known is not None  # this transaction or a simultaneous one inserted it
        if known["size"] != wanted.size:
            if known["state"] == "stored":
                raise WrongContent(
                    f"{wanted.sha256[:12]}... is stored with {known['size']} bytes, not "
                    f"{wanted.size}; check the hash."
                )
            self.drop(team, known["id"])  # announced wrongly before
            return self.announce(team, wanted, token_id)
        if known["state"] == "stored" and self._blobs.size(team, wanted.sha256) is None:
            self.drop(team, known["id"])  # the original is gone: take it again
            return self.announce(team, wanted, token_id)
        if known["state"] == "incomplete":  # the newest announcement counts
            with self._state.transaction() as connection:
                connection.execute(
                    "UPDATE uploads SET format = ?, name = ?, host = ?, metadata = ? WHERE id = ?",
                    (
                        wanted.format,
                        wanted.name,
                        wanted.host,
                        json.dumps(wanted.metadata),
                        known["id"],
                    ),
                )
        return known

    @contextmanager
    def writer(self, upload: Row, offset: int) -> Generator[IO[bytes], None, None]:
        """The file of an upload, to append to from `offset`; one request at a time.

        Raises:
            Busy, WrongOffset, Ended: Another request writes it, it ends elsewhere, or is no more.
        """
        with self._alone(upload["id"]):
            now = self.find(upload["team"], upload["id"])
            if now is None or now["state"] == "stored":
                # What has come here in part is of no use: another server had it whole first.
                self._layout.partial(upload["team"], upload["id"]).unlink(missing_ok=True)
                raise Ended("this upload has ended meanwhile; announce it again.")
            with disk_errors():
                path = self._layout.partial(upload["team"], upload["id"])
                # Not in Python's buffer: what was written is what the next request finds.
                with open(path, "ab", buffering=0) as stream:
                    if stream.tell() != offset:
                        raise WrongOffset(
                            f"this upload ends at {stream.tell()}, not at {offset}; go on there."
                        )
                    yield stream

    @contextmanager
    def _alone(self, upload_id: str) -> Generator[None, None, None]:
        with self._lock:
            if upload_id in self._writing:
                raise Busy("another request is sending this upload; ask for its offset again.")
            self._writing.add(upload_id)
        try:
            yield
        finally:
            with self._lock:
                self._writing.discard(upload_id)

    def complete(self, upload: Row) -> str:
        """Check and keep an upload whose bytes are all there; returns the job's id.

        Raises:
            WrongContent: The hash is another; what came is dropped.
            DiskFull: The disk is full; the upload stays as it is.
        """
        team, sha256 = upload["team"], upload["sha256"]
        path = self._layout.partial(team, upload["id"])
        with disk_errors():
            size, actual = path.stat().st_size, file_sha256(path)
            if (size, actual) != (upload["size"], sha256):
                path.unlink()
                raise WrongContent(
                    f"what came has {size} bytes and the SHA-256 {actual[:12]}..., announced were "
                    f"{upload['size']} and {sha256[:12]}...; it was dropped. Send it again."
                )
            self._blobs.keep(team, sha256, path)
        return self._stored(upload)

    def _stored(self, upload: Row) -> str:
        """Note that an upload is kept, and queue its job: once, whoever comes to it first."""
        with self._state.transaction() as connection:
            changed = connection.execute(
                "UPDATE uploads SET state = 'stored' WHERE id = ? AND state = 'incomplete'",
                (upload["id"],),
            ).rowcount
            row = connection.execute(
                "SELECT team, sha256, name, metadata FROM uploads WHERE id = ?", (upload["id"],)
            ).fetchone()
            if row is None:
                raise Ended("this upload was given up meanwhile; announce it again.")
            if not changed:
                known = connection.execute(
                    "SELECT id FROM jobs WHERE team = ? AND sha256 = ? ORDER BY seq DESC LIMIT 1",
                    (row["team"], row["sha256"]),
                ).fetchone()
                if known is not None:
                    return known["id"]
            return jobs.insert(
                connection,
                row["team"],
                row["sha256"],
                row["name"],
                json.loads(row["metadata"]),
                self._clock(),
            )

    def convert_again(self, team: str, upload: Row, wanted: Announced) -> str:
        """Queue a stored original once more, with what the announcement says now."""
        with self._state.transaction() as connection:
            return jobs.insert(
                connection,
                team,
                upload["sha256"],
                wanted.name or upload["name"],
                wanted.metadata,
                self._clock(),
            )

    def drop(self, team: str, upload_id: str) -> None:
        """Forget an upload, its bytes and its jobs; after a crash on the way, drop it again.

        Raises:
            Busy: A request is writing it.
        """
        with self._alone(upload_id):
            row = self.find(team, upload_id)
            if row is None:
                return
            self._layout.partial(team, upload_id).unlink(missing_ok=True)
            self._blobs.drop(team, row["sha256"])
            with self._state.transaction() as connection:
                connection.execute("DELETE FROM uploads WHERE id = ?", (upload_id,))
                connection.execute(
                    "DELETE FROM jobs WHERE team = ? AND sha256 = ?", (team, row["sha256"])
                )

    def give_up(self, team: str, upload_id: str) -> None:
        """Forget an upload that is not complete; one that has been completed meanwhile stays.

        Raises:
            Busy: A request is writing it.
        """
        with self._alone(upload_id):
            with self._state.transaction() as connection:
                connection.execute(
                    "DELETE FROM uploads WHERE id = ? AND team = ? AND state = 'incomplete'",
                    (upload_id, team),
                )
            self._layout.partial(team, upload_id).unlink(missing_ok=True)

    # -- at start

    def recover(self) -> dict[str, int]:
        """Bring disk and state together after whatever ended the last server.

        An original under its hash was checked before it got there. If its upload is still open, the
        server died between the two, and the upload is completed now; if the state does not know it
        (it was restored from an older copy), it is taken in again. Pieces without an upload, and
        uploads that nobody goes on with, are dropped.
        """
        found = {"completed": 0, "adopted": 0, "dropped": 0}
        oldest = self._clock() - self._limits.partial_days * 86_400
        for team in self._layout.teams():
            self._layout.make_team(team)
            rows = self._state.rows("SELECT * FROM uploads WHERE team = ?", (team,))
            by_hash = {row["sha256"]: row for row in rows}
            by_id = {row["id"]: row for row in rows}
            for name in self._blobs.names(team):
                row = by_hash.get(name)
                if row is None:
                    found["adopted"] += self._adopt(team, name)
                elif row["state"] == "incomplete" and self._is_kept(row):
                    self._stored(row)
                    row["state"] = "stored"
                    found["completed"] += 1
            for partial in (self._layout.team(team) / "uploads").iterdir():
                row = by_id.get(partial.name)
                if row is None or row["state"] == "stored":
                    partial.unlink()
                    found["dropped"] += 1
                elif partial.stat().st_mtime < oldest:
                    self.give_up(team, row["id"])
                    found["dropped"] += 1
            for unfinished in self._layout.team(team).glob(".store.duckdb.*.new*"):
                unfinished.unlink(missing_ok=True)  # its maker was killed
            for name in ("work", "snapshots"):
                for entry in (self._layout.team(team) / name).iterdir():
                    if entry.is_dir():
                        shutil.rmtree(entry, ignore_errors=True)
                    else:
                        entry.unlink(missing_ok=True)
        return found

    def _adopt(self, team: str, name: str) -> bool:
        if not is_sha256(name):
            return False  # somebody put it there; `analyzer verify --data` names it
        digest, size = hashlib.sha256(), 0
        for piece in self._blobs.pieces(team, name):
            digest.update(piece)
            size += len(piece)
        if digest.hexdigest() != name:
            return False
        with self._state.transaction() as connection:
            new = connection.execute(
                "INSERT INTO uploads (id, team, sha256, size, metadata, state, created_at) "
                "VALUES (?, ?, ?, ?, '{}', 'stored', ?) ON CONFLICT (team, sha256) DO NOTHING",
                (secrets.token_hex(16), team, name, size, self._clock()),
            ).rowcount
            if new:  # not by another server just now
                jobs.insert(connection, team, name, None, {}, self._clock())
        return bool(new)
