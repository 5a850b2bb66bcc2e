"""Originals: each upload's content, as it was sent, under its SHA-256; one set a team.

Beside a file store they lie in the server's folder. Beside a lake they lie next to its data, in the
folder or bucket DATA.originals/TEAM/SHA256, so that every server on the lake reads each. Not within
the data: upkeep deletes files there that the catalog does not know.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import shutil
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Protocol

from analyzer.errors import AnalyzerError, Unreachable
from analyzer.server.layout import Layout, check_team, fsync_folder, is_sha256
from analyzer.store.lake_file import read_lake_file

_PIECE = 8 << 20
_UNFINISHED = re.compile(r"\.[0-9a-f]{64}\.[0-9a-f]{8}")
_LONGEST_COPY_S = 86_400.0


class Blobs(Protocol):
    """Where originals are. Everything raises Unreachable where the place does not answer."""

    def size(self, team: str, sha256: str) -> int | None:
        """Bytes of an original; None if it is not there. Less than it should: it is not whole."""
        ...

    def keep(self, team: str, sha256: str, content: Path) -> None:
        """Take a checked content in; on disk when this returns, and `content` is gone."""
        ...

    def file(self, team: str, sha256: str) -> Path | None:
        """The file that an original is; None where it is no file."""
        ...

    def fetch(self, team: str, sha256: str, work: Path) -> Path:
        """An original as a file to read: where it is, or copied into the folder `work`."""
        ...

    def pieces(self, team: str, sha256: str) -> Iterator[bytes]:
        """The content."""
        ...

    def drop(self, team: str, sha256: str) -> None:
        """Delete an original, if it is there."""
        ...

    def names(self, team: str) -> list[str]:
        """What lies there, by name: hashes, and whatever somebody else has put there."""
        ...

    def place(self, team: str, sha256: str) -> str:
        """Where it is, for a message."""
        ...


def open_blobs(layout: Layout) -> Blobs:
    """The originals that belong to a server's folder or lake.

    Raises:
        AnalyzerError: The lake's data are in no place beside which anything can lie.
    """
    if layout.lake is None:
        return FolderBlobs(lambda team: layout.team(team) / "blobs")

    found = read_lake_file(layout.lake)
    beside = found.data.rstrip("/") + ".originals"
    if not found.in_s3:
        return FolderBlobs(lambda team: Path(beside) / check_team(team), shared=Path(beside))
    if "/" not in beside.removeprefix("s3://"):
        raise AnalyzerError(
            f"{layout.lake}: data is a whole bucket, beside which uploads cannot lie; give a "
            "prefix in it: s3://bucket/prefix."
        )
    return S3Blobs(beside.removeprefix("s3://"), found.s3)


class FolderBlobs:
    """Originals in folders of this machine, or of a file system that several share."""

    def __init__(self, folder: Callable[[str], Path], shared: Path | None = None) -> None:
        """Prepare; makes nothing.

        Args:
            folder: The folder of a team.
            shared: A folder that all servers see, in which those are.
        """
        self._folder = folder
        self._shared = shared
        self._seen = False

    def _path(self, team: str, sha256: str) -> Path:
        if not is_sha256(sha256):
            raise AnalyzerError(f"{sha256[:80]!r} is no SHA-256.")
        if self._shared is not None:
            self._check(self._shared)
        return self._folder(team) / sha256

    def _check(self, shared: Path) -> None:
        """A file system that is not mounted is no reason to say that an original is gone."""
        if self._seen and not shared.is_dir():
            raise Unreachable(f"{shared}, where originals are, is not there; is it mounted?")
        if not self._seen:
            shared.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._seen = True

    def size(self, team: str, sha256: str) -> int | None:
        path = self._path(team, sha256)
        return path.stat().st_size if path.is_file() else None

    def keep(self, team: str, sha256: str, content: Path) -> None:
        path = self._path(team, sha256)
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with content.open("rb") as stream:
            os.fsync(stream.fileno())
        try:
            os.replace(content, path)
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
            _copy(content, path)
            content.unlink()
        fsync_folder(path.parent)

    def file(self, team: str, sha256: str) -> Path | None:
        return self._path(team, sha256).absolute()

    def fetch(self, team: str, sha256: str, work: Path) -> Path:
        return self._path(team, sha256).absolute()

    def pieces(self, team: str, sha256: str) -> Iterator[bytes]:
        with self._path(team, sha256).open("rb") as stream:
            yield from _pieces(stream)

    def drop(self, team: str, sha256: str) -> None:
        self._path(team, sha256).unlink(missing_ok=True)

    def names(self, team: str) -> list[str]:
        folder = self._folder(team)
        if self._shared is not None:
            self._check(self._shared)
        found: list[str] = []
        for path in folder.iterdir() if folder.is_dir() else ():
            if not _UNFINISHED.fullmatch(path.name):
                found.append(path.name)
            elif time.time() - path.stat().st_mtime > _LONGEST_COPY_S:
                path.unlink(missing_ok=True)  # its server was killed
        return sorted(found)

    def place(self, team: str, sha256: str) -> str:
        return str(self._path(team, sha256))


class S3Blobs:
    """Originals in a bucket of an S3-compatible store, by the keys of the environment.

    A content whose sending breaks off may be there in part: it is shorter than it should be, and
    the upload is not stored then. Sending it again puts the whole in its place.
    """

    def __init__(self, prefix: str, store: Any) -> None:
        """Prepare; asks nothing yet.

        Args:
            prefix: bucket/prefix.
            store: `lake.ObjectStore`.

        Raises:
            AnalyzerError: The keys are not set.
        """
        from pyarrow import fs

        key, secret = (os.environ.get(f"AWS_{n}") for n in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY"))
        if not key or not secret:
            raise AnalyzerError(
                f"originals are in s3://{prefix}, but AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY "
                "are not set; export them."
            )
        self._prefix = prefix
        self._s3: Any = fs.S3FileSystem(
            access_key=key,
            secret_key=secret,
            session_token=os.environ.get("AWS_SESSION_TOKEN"),
            region=store.region,
            endpoint_override=store.endpoint,
            scheme="https" if store.use_ssl else "http",
            force_virtual_addressing=store.url_style == "vhost",
            connect_timeout=5,
            request_timeout=60,
        )

    def _name(self, team: str, sha256: str) -> str:
        if not is_sha256(sha256):
            raise AnalyzerError(f"{sha256[:80]!r} is no SHA-256.")
        return f"{self._prefix}/{check_team(team)}/{sha256}"

    @contextmanager
    def _answering(self) -> Generator[None, None, None]:
        try:
            yield
        except FileNotFoundError:
            raise
        except OSError as error:
            if error.errno is not None and error.filename is not None:
                raise  # this machine's own disk
            text = str(error).splitlines()[0].partition("; Details")[0]
            raise Unreachable(f"s3://{self._prefix} does not answer: {text}") from error

    def size(self, team: str, sha256: str) -> int | None:
        with self._answering():
            return self._s3.get_file_info(self._name(team, sha256)).size

    def keep(self, team: str, sha256: str, content: Path) -> None:
        with content.open("rb") as stream, self._answering():
            out = self._s3.open_output_stream(self._name(team, sha256))
            with out:
                for piece in _pieces(stream):
                    out.write(piece)
        if self.size(team, sha256) != content.stat().st_size:
            raise Unreachable(f"s3://{self._prefix} has not taken all of an upload; send it again.")
        content.unlink()

    def file(self, team: str, sha256: str) -> Path | None:
        return None

    def fetch(self, team: str, sha256: str, work: Path) -> Path:
        path = work / "original"
        with path.open("wb") as stream:
            for piece in self.pieces(team, sha256):
                stream.write(piece)
        return path

    def pieces(self, team: str, sha256: str) -> Iterator[bytes]:
        with self._answering(), self._s3.open_input_stream(self._name(team, sha256)) as stream:
            yield from _pieces(stream)

    def drop(self, team: str, sha256: str) -> None:
        try:
            with self._answering():
                self._s3.delete_file(self._name(team, sha256))
        except FileNotFoundError:
            pass

    def names(self, team: str) -> list[str]:
        from pyarrow import fs

        wanted = fs.FileSelector(f"{self._prefix}/{check_team(team)}", allow_not_found=True)
        with self._answering():
            return sorted(found.base_name for found in self._s3.get_file_info(wanted))

    def place(self, team: str, sha256: str) -> str:
        return f"s3://{self._name(team, sha256)}"


def _pieces(stream: IO[bytes]) -> Iterator[bytes]:
    while piece := stream.read(_PIECE):
        yield piece


def _copy(content: Path, path: Path) -> None:
    """Copy to another file system; whole under its name, or not there."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with content.open("rb") as source, temporary.open("wb") as target:
            shutil.copyfileobj(source, target, _PIECE)
            target.flush()
            os.fsync(target.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
