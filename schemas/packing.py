"""The one tar of a run directory, which is never written anywhere: its bytes, from any offset.

The tar is the manifest and the files it names, sorted, without dates or owners, so that the same
run is the same bytes, whatever the folder is called and wherever it lies. Only the headers are
kept; contents are read when they are sent, so an upload can go on at any offset. A single trace
file is sent as it is.
"""

from __future__ import annotations

import hashlib
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

from schemas import run_directory
from schemas.errors import RunDirectoryError
from schemas.manifest import Manifest
from schemas.run_directory import read_manifest

RUN_DIRECTORY_TAR = "run-directory.tar"
# Where a tar has the trace of the capture that was named beside it.
CAPTURE_FOLDER = "capture"
TRACE_SUFFIXES = (
    *(".json.gz", ".json", ".pftrace.gz", ".pftrace", ".sqlite", ".db"),
    *(".xplane.pb.gz", ".xplane.pb"),
)
# What is sent of a folder that is one trace: of a job's processes, or a table each.
_PART_SUFFIXES = (".parquet", ".db", ".xplane.pb.gz", ".xplane.pb")
_DEEPEST_PART = 4

_OPTIONAL = (
    run_directory.CAPTURE_TRACE,
    run_directory.EXECUTION_TRACE,
    run_directory.KERNEL_REPLAY,
    run_directory.NULL_KERNEL,
    run_directory.LATENCY,
)
_PIECE_BYTES = 1 << 20


@dataclass(frozen=True)
class Member:
    """One file: the bytes before it, where its content lies, and the zeros after it.

    `recorded_sha256` is the hash that the manifest gives for the content, None if it gives none.
    """

    head: bytes
    path: Path | None
    content_bytes: int
    padding_bytes: int
    recorded_sha256: str | None = None

    @property
    def bytes(self) -> int:
        return len(self.head) + self.content_bytes + self.padding_bytes


@dataclass(frozen=True)
class Archive:
    """What is sent of one run directory or trace file.

    Attributes:
        format: "run-directory.tar", or "trace" and a suffix; None lets the server look.
        name: The run's name, from its manifest or the file's name; None lets the server look.
        host: The name of the recording host that the manifest gives, None if it gives none.
        size: Bytes of the whole.
    """

    path: Path
    format: str | None
    name: str | None
    host: str | None
    size: int
    members: tuple[Member, ...]

    def read(self, offset: int = 0, length: int | None = None) -> Iterator[bytes]:
        """Yield `length` bytes from `offset` (None: to the end), in pieces of a megabyte at most.

        Raises:
            RunDirectoryError: A file is gone, or shorter than it was when it was listed.
        """
        left = self.size - offset if length is None else min(length, self.size - offset)
        for member in self.members:
            if left <= 0:
                return
            if offset >= member.bytes:
                offset -= member.bytes
                continue
            for piece in _member_bytes(member, offset):
                piece = piece[:left]
                left -= len(piece)
                yield piece
                if left <= 0:
                    return
            offset = 0

    def sha256(self) -> str:
        """Hash of all bytes, as hex text; reads every file once.

        Raises:
            RunDirectoryError: A file cannot be read, or is not the one that was recorded.
        """
        digest = hashlib.sha256()
        for member in self.members:
            content = hashlib.sha256()
            for piece in _member_bytes(member, 0, content):
                digest.update(piece)
            if member.recorded_sha256 not in (None, content.hexdigest()):
                raise RunDirectoryError(
                    f"{member.path} is not the file that was recorded (its SHA-256 is "
                    f"{content.hexdigest()[:12]}..., the manifest says "
                    f"{str(member.recorded_sha256)[:12]}...); copy the folder again."
                )
        return digest.hexdigest()

    def copy_to(self, stream: BinaryIO) -> None:
        """Write all bytes, for a server that takes a file.

        Raises:
            RunDirectoryError: A file cannot be read.
        """
        for piece in self.read():
            stream.write(piece)

    def files(self) -> list[Path]:
        """The files it is made of, the manifest first."""
        paths = [member.path for member in self.members if member.path is not None]
        return sorted(paths, key=lambda path: path.name != run_directory.MANIFEST)


def open_archive(path: Path) -> Archive:
    """List what is to be sent of a run directory, a trace file, or a folder that is one trace.

    Raises:
        RunDirectoryError: It is neither, or a file that the manifest names is
            missing.
    """
    if path.is_dir():
        return _trace_folder(path) or _run_directory(path)
    suffix = next((s for s in TRACE_SUFFIXES if path.name.endswith(s)), None)
    archive = single_file(path)
    if suffix is None:
        raise RunDirectoryError(
            f"{path} is neither a run directory nor a trace (*{', *'.join(TRACE_SUFFIXES)}); give "
            "one of them."
        )
    name = path.name[: -len(suffix)].removesuffix(".pt.trace") or path.name
    return replace(archive, format=f"trace{suffix}", name=name)


def single_file(path: Path) -> Archive:
    """List a file as it is, whatever it is; the server looks what.

    Raises:
        RunDirectoryError: It cannot be read, or is empty.
    """
    size = _size(path)
    if size == 0:
        raise RunDirectoryError(f"{path} is empty; the trace was not written to its end.")
    return Archive(path, None, None, None, size, (Member(b"", path, size, 0),))


def with_capture(path: Path, capture: Path) -> Archive:
    """List a run directory or a trace file, and the trace that holds the capture of its graphs, as
    one tar.

    Raises:
        RunDirectoryError: As of `open_archive`.
    """
    # In a folder of its own: it may have the trace's name.
    captured = _member(f"{CAPTURE_FOLDER}/{capture.name}", capture)
    if path.is_dir():
        return _trace_folder(path, captured) or _run_directory(path, captured)
    return _tar(path, [_member(path.name, path), captured], name=None, host=None)


def together(folder: Path, paths: Sequence[Path], capture: Path | None) -> Archive:
    """List run directories or trace files of one folder, which are one run, as one tar.

    Args:
        capture: The trace that holds the capture of their graphs.

    Raises:
        RunDirectoryError: As of `open_archive`.
    """
    members: list[Member] = []
    for path in paths:
        within = path.relative_to(folder).as_posix()
        names = _names(path, read_manifest(path)) if path.is_dir() else [""]
        members += [_member(f"{within}/{name}".rstrip("/"), path / name) for name in names]
    if capture:
        members.append(_member(f"{CAPTURE_FOLDER}/{capture.name}", capture))
    return _tar(folder, members, name=None, host=None)


def _trace_folder(path: Path, *more: Member) -> Archive | None:
    """What is sent of a folder without a manifest that holds the parts of a trace."""
    if (path / run_directory.MANIFEST).is_file():
        return None
    parts = [
        file
        for file in sorted(path.rglob("*"))
        if file.name.endswith(_PART_SUFFIXES)
        and file.is_file()
        and len(file.relative_to(path).parts) <= _DEEPEST_PART
    ]
    if not parts:
        return None
    members = [_member(file.relative_to(path).as_posix(), file) for file in parts]
    return _tar(path, [*members, *more], name=path.name, host=None)


def _run_directory(path: Path, *more: Member) -> Archive:
    manifest = read_manifest(path)
    names = _names(path, manifest)
    members = [_member(name, path / name, manifest.files.get(name)) for name in names]
    return _tar(path, [*members, *more], manifest.name or path.name, manifest.environment.host)


def _names(path: Path, manifest: Manifest) -> list[str]:
    """The files of a run directory that are sent, sorted."""
    names = {run_directory.MANIFEST, *manifest.files, *(trace.file for trace in manifest.traces)}
    names |= {name for name in _OPTIONAL if (path / name).is_file()}
    for name in sorted(names):
        if not (path / name).is_file():
            raise RunDirectoryError(
                f"{path} lacks {name}, which its manifest lists; copy the folder again."
            )
    return sorted(names)


def _member(name: str, path: Path, recorded_sha256: str | None = None) -> Member:
    size = _size(path)
    return Member(_header(name, size), path, size, -size % tarfile.BLOCKSIZE, recorded_sha256)


def _tar(path: Path, members: list[Member], name: str | None, host: str | None) -> Archive:
    used = sum(member.bytes for member in members) + 2 * tarfile.BLOCKSIZE
    end = Member(bytes(2 * tarfile.BLOCKSIZE), None, 0, -used % tarfile.RECORDSIZE)
    size = sum(member.bytes for member in (*members, end))
    return Archive(path, RUN_DIRECTORY_TAR, name, host, size, (*members, end))


def _header(name: str, size: int) -> bytes:
    """A ustar header, byte for byte as GNU tar writes it.

    Written here and not by `tarfile`, whose headers differ between versions of Python: the same run
    must have the same hash on every host.
    """
    raw = name.encode("utf-8", "surrogateescape")
    if len(raw) > 100:
        raise RunDirectoryError(
            f"{name} is too long a name for a file of a run; 100 bytes are taken."
        )
    # From 8 GiB on a size does not fit its octal digits and is written in binary.
    digits = b"%011o\0" % size if size < 8**11 else b"\x80" + size.to_bytes(11, "big")
    before = raw.ljust(100, b"\0") + b"0000644\0" + 2 * b"0000000\0" + digits + b"00000000000\0"
    after = b"0" + bytes(100) + b"ustar\x0000" + bytes(64) + 2 * b"0000000\0" + bytes(167)
    checksum = sum(before) + 8 * ord(" ") + sum(after)
    return before + b"%06o\0 " % checksum + after


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError as error:
        raise RunDirectoryError(f"{path} cannot be read: {error.strerror}.") from error


def _member_bytes(member: Member, offset: int, content: Any = None) -> Iterator[bytes]:
    """Bytes of a member; `content`, a hash object, is fed with those of the file alone."""
    if offset < len(member.head):
        yield member.head[offset:]
    offset = max(0, offset - len(member.head))
    if member.path is not None and offset < member.content_bytes:
        for piece in _content(member.path, offset, member.content_bytes):
            if content is not None:
                content.update(piece)
            yield piece
    offset = max(0, offset - member.content_bytes)
    if offset < member.padding_bytes:
        yield bytes(member.padding_bytes - offset)


def _content(path: Path, offset: int, end: int) -> Iterator[bytes]:
    try:
        with path.open("rb") as stream:
            stream.seek(offset)
            while offset < end:
                piece = stream.read(min(_PIECE_BYTES, end - offset))
                if not piece:
                    raise RunDirectoryError(
                        f"{path} became shorter while it was read; send it again when nothing "
                        "writes to it."
                    )
                offset += len(piece)
                yield piece
    except OSError as error:
        raise RunDirectoryError(f"{path} cannot be read: {error.strerror}.") from error
