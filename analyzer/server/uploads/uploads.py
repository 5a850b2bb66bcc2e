"""Uploads: bytes that come in pieces, are checked against their SHA-256, and become originals.

An upload is one file that grows; its size on disk is the offset, so a server that died goes on
where the disk is. The last piece is answered only when the content is checked, kept under its hash,
and its job is in the database: that answer is the acknowledgement, nothing before it is.

Servers on one lake share what is known of uploads and the originals, not what has come in part: an
upload that is continued at another server begins there from 0.
"""

from __future__ import annotations

import errno
import secrets
import shutil
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import IO, Any

from sqlalchemy import bindparam, select

from analyzer.errors import AnalyzerError
from analyzer.server.db.database import Database
from analyzer.server.db.tables import insert_new, jobs, uploads
from analyzer.server.jobs import queue
from analyzer.server.layout import Layout, is_id, is_sha256
from analyzer.server.limits import Limits
from analyzer.server.uploads.blobs import Blobs
from analyzer.server.uploads.quotas import Quotas
from schemas.run_directory import file_sha256

# EFBIG: a quota by ulimit; for the one who uploads it is the same as a full disk.
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


_ID = uploads.c.id == bindparam("upload")
_OF_TEAM = select(uploads).where(uploads.c.team == bindparam("team"))
_BY_ID = _OF_TEAM.where(_ID)
_BY_SHA256 = _OF_TEAM.where(uploads.c.sha256 == bindparam("upload"))
_DESCRIBE = (
    uploads.update()
    .where(_ID)
    .values({name: bindparam(name) for name in ("format", "name", "host", "metadata")})
)
_STORE = uploads.update().where(_ID, uploads.c.state == "incomplete").values(state="stored")
_OWN = select(uploads).where(_ID)


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

    def described(self) -> dict[str, Any]:
        """What a later announcement of the same content may say otherwise, by column."""
        return {
            "format": self.format,
            "name": self.name,
            "host": self.host,
            "metadata": self.metadata,
        }


@dataclass(frozen=True)
class Upload:
    """An announced content, a row of the table, and how far it has come.

    Attributes:
        size: Bytes, as announced.
        metadata: As announced.
        token_id: Whose announcement it was; None without login.
        state: "incomplete" or "stored".
        created_at: Unix seconds.
        offset: Bytes that have come to this server; all of them once it is stored.
    """

    id: str
    team: str
    sha256: str
    size: int
    format: str | None
    name: str | None
    host: str | None
    metadata: dict[str, Any]
    token_id: str | None
    state: str
    created_at: float
    offset: int = 0

    def is_described(self, wanted: Announced) -> bool:
        """Whether it is noted as an announcement describes it."""
        return wanted.described() == {name: getattr(self, name) for name in wanted.described()}

    @property
    def is_stored(self) -> bool:
        """Whether its content is an original of the server."""
        return self.state == "stored"


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
        database: Database,
        blobs: Blobs,
        limits: Limits,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._layout = layout
        self._database = database
        self._blobs = blobs
        self._limits = limits
        self.quotas = Quotas(database, limits)
        self._clock = clock
        self._writing: set[str] = set()
        self._lock = threading.Lock()

    # -- what is known

    def find(self, team: str, reference: str) -> Upload | None:
        """An upload of a team by its id or its SHA-256."""
        if is_sha256(reference):
            named = _BY_SHA256
        elif is_id(reference):
            named = _BY_ID
        else:
            return None
        row = self._database.row(named, team=team, upload=reference)
        return None if row is None else self._on_disk(Upload(*row))

    def _on_disk(self, upload: Upload) -> Upload:
        """An upload as far as the disk has it."""
        team = upload.team
        if not upload.is_stored:
            try:
                size = self._layout.partial(team, upload.id).stat().st_size
                return replace(upload, offset=size)
            except FileNotFoundError:
                pass
            if not self.is_kept(upload):
                return upload
            self.note_stored(upload)  # kept, but not noted
        return replace(upload, state="stored", offset=upload.size)

    def is_kept(self, upload: Upload) -> bool:
        """Whether its content is an original, noted or not."""
        return self._blobs.size(upload.team, upload.sha256) == upload.size

    # -- announce, write, complete

    def announce(self, team: str, wanted: Announced, token_id: str | None) -> Upload:
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
            self.quotas.check_incomplete(team)
            free = shutil.disk_usage(self._layout.team(team)).free
            if wanted.size > free - self._limits.reserve_bytes:
                raise DiskFull(f"the server has no room for {wanted.size} bytes.")
            row: dict[str, Any] = {
                "id": secrets.token_hex(16),
                "team": team,
                "sha256": wanted.sha256,
                "size": wanted.size,
                **wanted.described(),
                "token_id": token_id,
                "state": "incomplete",
                "created_at": self._clock(),
            }
            with self._database.transaction() as connection:
                self.quotas.check_bytes(team, wanted.size)
                new = insert_new(connection, uploads, **row)
            known = self._on_disk(Upload(**row)) if new else self.find(team, wanted.sha256)
            assert known is not None  # this transaction or a simultaneous one inserted it
        if known.size != wanted.size:
            if known.is_stored:
                raise WrongContent(
                    f"{wanted.sha256[:12]}... is stored with {known.size} bytes, not "
                    f"{wanted.size}; check the hash."
                )
            self.drop(team, known.id)  # announced wrongly before
            return self.announce(team, wanted, token_id)
        if known.is_stored and self._blobs.size(team, wanted.sha256) is None:
            self.drop(team, known.id)  # the original is gone: take it again
            return self.announce(team, wanted, token_id)
        if not known.is_stored and not known.is_described(wanted):  # the newest counts
            with self._database.transaction() as connection:
                connection.execute(_DESCRIBE, {"upload": known.id, **wanted.described()})
            known = replace(known, **wanted.described())
        return known

    @contextmanager
    def writer(self, upload: Upload, offset: int) -> Generator[IO[bytes], None, None]:
        """The file of an upload, to append to from `offset`; one request at a time.

        Raises:
            Busy, WrongOffset, Ended: Another request writes it, it ends elsewhere, or is no more.
        """
        with self._alone(upload.id):
            now = self.find(upload.team, upload.id)
            if now is None or now.is_stored:
                # What has come here in part is of no use: another server had it whole first.
                self._layout.partial(upload.team, upload.id).unlink(missing_ok=True)
                raise Ended("this upload has ended meanwhile; announce it again.")
            with disk_errors():
                path = self._layout.partial(upload.team, upload.id)
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

    def complete(self, upload: Upload) -> str:
        """Check and keep an upload whose bytes are all there; returns the job's id.

        Raises:
            WrongContent: The hash is another; what came is dropped.
            DiskFull: The disk is full; the upload stays as it is.
        """
        team, sha256 = upload.team, upload.sha256
        path = self._layout.partial(team, upload.id)
        with disk_errors():
            size, actual = path.stat().st_size, file_sha256(path)
            if (size, actual) != (upload.size, sha256):
                path.unlink()
                raise WrongContent(
                    f"what came has {size} bytes and the SHA-256 {actual[:12]}..., announced were "
                    f"{upload.size} and {sha256[:12]}...; it was dropped. Send it again."
                )
            self._blobs.keep(team, sha256, path)
        return self.note_stored(upload)

    def note_stored(self, upload: Upload) -> str:
        """Note that an upload is kept, and queue its job: once, whoever comes to it first."""
        own = {"upload": upload.id}
        with self._database.transaction() as connection:
            changed = connection.execute(_STORE, own).rowcount
            row = connection.execute(_OWN, own).one_or_none()
            if row is None:
                raise Ended("this upload was given up meanwhile; announce it again.")
            if not changed:
                of_row = {"team": row.team, "sha256": row.sha256}
                known = connection.execute(queue.NEWEST_OF, of_row).first()
                if known is not None:
                    return known.id
            return queue.insert(
                connection, row.team, row.sha256, row.name, row.metadata, self._clock()
            )

    def convert_again(self, team: str, upload: Upload, wanted: Announced) -> str:
        """Queue a stored original once more, with what the announcement says now."""
        with self._database.transaction() as connection:
            return queue.insert(
                connection,
                team,
                upload.sha256,
                wanted.name or upload.name,
                wanted.metadata,
                self._clock(),
            )

    def drop(self, team: str, upload_id: str) -> None:
        """Forget an upload, its bytes and its jobs; after a crash on the way, drop it again.

        Raises:
            Busy: A request is writing it.
        """
        with self._alone(upload_id):
            upload = self.find(team, upload_id)
            if upload is None:
                return
            self._layout.partial(team, upload_id).unlink(missing_ok=True)
            self._blobs.drop(team, upload.sha256)
            with self._database.transaction() as connection:
                connection.execute(uploads.delete().where(uploads.c.id == upload_id))
                connection.execute(
                    jobs.delete().where(jobs.c.team == team, jobs.c.sha256 == upload.sha256)
                )

    def give_up(self, team: str, upload_id: str) -> None:
        """Forget an upload that is not complete; one that has been completed meanwhile stays.

        Raises:
            Busy: A request is writing it.
        """
        with self._alone(upload_id):
            with self._database.transaction() as connection:
                connection.execute(
                    uploads.delete().where(
                        uploads.c.id == upload_id,
                        uploads.c.team == team,
                        uploads.c.state == "incomplete",
                    )
                )
            self._layout.partial(team, upload_id).unlink(missing_ok=True)
