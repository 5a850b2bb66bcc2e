"""What an uploaded file is, and its files in a folder: a trace, or a tar or zip of run directories.

The content decides, not the announced format. An archive is somebody else's: only plain files with
plain relative names are taken, counted and bounded while they are written, never more than allowed.
"""

from __future__ import annotations

import os
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import IO, Literal, cast

from analyzer.errors import AnalyzerError
from analyzer.server.limits import Limits
from analyzer.trace.stream import fast_error, fast_gzip

Kind = Literal["trace", "tar", "zip"]

_PIECE = 1 << 20
_DEEPEST = 4
_LONGEST_PART = 200
_DAMAGED = (EOFError, OSError, zlib.error, cast("type[Exception]", fast_error))


class ArchiveError(AnalyzerError):
    """An archive cannot be read, holds what is not allowed, or too much."""


def kind(path: Path) -> Kind:
    """Tell a file by its first bytes; what is neither tar nor zip is taken for a trace."""
    with path.open("rb") as stream:
        head = stream.read(512)
        if head[:2] == b"\x1f\x8b":
            stream.seek(0)
            try:
                head = cast("IO[bytes]", fast_gzip.open(stream)).read(512)  # pyright: ignore[reportUnknownMemberType]
            except _DAMAGED:
                return "trace"  # the reader of traces says what is wrong with it
    if head[:4] in (b"PK\x03\x04", b"PK\x05\x06"):
        return "zip"
    return "tar" if head[257:262] == b"ustar" else "trace"


def unpack(path: Path, folder: Path, limits: Limits) -> None:
    """Write an archive's files into an empty folder.

    Raises:
        ArchiveError: Not a plain archive of plain files, or too large.
    """
    room = _Room(limits)
    try:
        if kind(path) == "zip":
            _unzip(path, folder, room)
        else:
            _untar(path, folder, room)
    except ArchiveError:
        raise
    except (tarfile.TarError, zipfile.BadZipFile, NotImplementedError, RuntimeError) as error:
        raise ArchiveError(f"the archive cannot be read: {error}; pack it again.") from error
    except OSError as error:
        if error.filename is not None or error.errno is not None:
            raise  # the disk, not the archive
        raise ArchiveError(f"the archive cannot be read: {error}; pack it again.") from error
    except (EOFError, zlib.error, cast("type[Exception]", fast_error)) as error:
        raise ArchiveError(f"the archive is cut off or damaged: {error}; send it again.") from error
    if not room.files:
        raise ArchiveError("the archive is empty; pack a run directory or traces.")


def member(folder: Path, name: str) -> Path:
    """The file of a name in an unpacked archive.

    Raises:
        ArchiveError: It has none, or the name leads elsewhere.
    """
    path = _target(folder, name)
    if not path.is_file():
        raise ArchiveError(f"the archive does not hold {name[:80]!r}, which the upload names.")
    return path


class _Room:
    """What may still be written."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._bytes = limits.decompressed_bytes
        self.files = 0

    def take_file(self) -> None:
        self.files += 1
        if self.files > self._limits.members:
            raise ArchiveError(
                f"the archive holds more than {self._limits.members} files; pack fewer runs in one."
            )

    def take(self, count: int) -> None:
        self._bytes -= count
        if self._bytes < 0:
            raise ArchiveError(
                f"the archive holds more than {self._limits.decompressed_bytes} bytes when "
                "decompressed, the most that is taken; pack fewer runs in one."
            )


class _Counted:
    """A stream whose bytes are counted, so that padding and skipped members are bounded too."""

    def __init__(self, stream: IO[bytes], room: _Room) -> None:
        self._stream = stream
        self._room = room

    def read(self, size: int = -1) -> bytes:
        piece = self._stream.read(min(size, _PIECE) if size >= 0 else _PIECE)
        self._room.take(len(piece))
        return piece


def _target(folder: Path, name: str) -> Path:
    """Where a member goes.

    Raises:
        ArchiveError: Its name leads elsewhere, or is no plain relative name.
    """
    parts = PurePosixPath(name).parts
    plain = (
        0 < len(parts) <= _DEEPEST
        and not name.startswith("/")
        and "\\" not in name
        and ":" not in parts[0]
        and name.isprintable()
        and all(p not in ("..", ".", "/") and len(p.encode()) <= _LONGEST_PART for p in parts)
    )
    if not plain:
        raise ArchiveError(
            f"the archive holds {name[:80]!r}, which is no plain name inside it; pack the run "
            "directory itself."
        )
    return folder.joinpath(*parts)


def _write(target: Path, pieces: Iterator[bytes]) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        handle = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    except FileExistsError:
        raise ArchiveError(f"the archive holds {target.name!r} twice; pack it again.") from None
    with os.fdopen(handle, "wb") as out:
        for piece in pieces:
            out.write(piece)


def _pieces(stream: IO[bytes], room: _Room | None) -> Iterator[bytes]:
    while piece := stream.read(_PIECE):
        if room is not None:
            room.take(len(piece))
        yield piece


def _untar(path: Path, folder: Path, room: _Room) -> None:
    with path.open("rb") as file:
        is_gzip = file.read(2) == b"\x1f\x8b"
        file.seek(0)
        plain = cast(
            "IO[bytes]",
            fast_gzip.open(file) if is_gzip else file,  # pyright: ignore[reportUnknownMemberType]
        )
        counted = cast("IO[bytes]", _Counted(plain, room))
        with tarfile.open(fileobj=counted, mode="r|") as archive:
            for member in archive:
                if member.isdir():
                    _target(folder, member.name)
                    continue
                if not member.isreg() or member.issparse():
                    raise ArchiveError(
                        f"the archive holds {member.name[:80]!r}, which is a link, a device or no "
                        "plain file; pack plain files only."
                    )
                room.take_file()
                content = archive.extractfile(member)
                assert content is not None  # a regular file has content
                _write(_target(folder, member.name), _pieces(content, None))


def _unzip(path: Path, folder: Path, room: _Room) -> None:
    with zipfile.ZipFile(path) as archive:
        for info in archive.infolist():
            if info.is_dir():
                _target(folder, info.filename)
                continue
            mode = info.external_attr >> 16
            if mode and not stat.S_ISREG(mode) and stat.S_IFMT(mode):
                raise ArchiveError(
                    f"the archive holds {info.filename[:80]!r}, which is a link or no plain file; "
                    "pack plain files only."
                )
            room.take_file()
            with archive.open(info) as content:
                _write(_target(folder, info.filename), _pieces(content, room))
