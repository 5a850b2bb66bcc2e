"""The spool: a folder with one small JSON file for each run that is still to be sent to a server.

Nothing is moved or copied into it; an entry names the run directory, the server and the hash. An
entry goes only when the server has acknowledged the hash. No token is ever in it.

    {"version": 1, "path", "url", "sha256", "size", "format", "name", "state", "error",
     "delete_after", "created_at", "members"}

`state` is "waiting", "refused" (the server will not take it; `error` says why) or "deleting" (it
is stored, and the local copy, `members`, is being removed).
"""

from __future__ import annotations

import errno
import hashlib
import os
import tempfile
from collections.abc import Generator, Iterable
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path

import msgspec
import orjson

from collector.errors import CollectorError
from schemas.errors import HostboundError
from schemas.packing import Archive, open_archive
from schemas.run_directory import MANIFEST
from schemas.upload_client import Refused, Stored, Uploader

try:
    import fcntl
except ImportError:  # Windows: nothing is recorded there, but it can be sent from there
    fcntl = None

_VERSION = 1
_LOCK = ".lock"
WAITING, REFUSED, DELETING = "waiting", "refused", "deleting"


class Vanished(CollectorError):
    """What an entry names is no longer there; the entry is gone too."""


class Busy(CollectorError):
    """Another process sends this entry."""


@dataclass(frozen=True)
class Entry:
    """One run that is to be sent. `path` is absolute; `delete_after` removes it once stored."""

    path: str
    url: str
    sha256: str
    size: int
    format: str
    name: str
    state: str = WAITING
    error: str | None = None
    delete_after: bool = False
    created_at: str = ""
    members: list[str] = field(default_factory=list[str])

    @property
    def key(self) -> str:
        """The same run for the same server is the same entry."""
        return hashlib.sha256(f"{self.url}\n{self.path}".encode()).hexdigest()[:32]


def default_folder() -> Path:
    """`hostbound/spool` in XDG_STATE_HOME, or in ~/.local/state."""
    state = os.environ.get("XDG_STATE_HOME", "")
    base = Path(state) if os.path.isabs(state) else Path.home() / ".local" / "state"
    return base / "hostbound" / "spool"


class Spool:
    """The entries of one folder, which is made when it is needed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def check(self) -> None:
        """Make the folder, and see that entries can be written.

        Raises:
            CollectorError: They cannot.
        """
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            with tempfile.NamedTemporaryFile(dir=self.folder, prefix=".check."):
                pass
        except OSError as error:
            raise CollectorError(
                f"the spool {self.folder} cannot be written ({error.strerror}); name another "
                "with --spool."
            ) from error

    def add(self, path: Path, url: str, delete_after: bool = False) -> Entry:
        """Note that a run directory or trace is to be sent; reads all of it once, for its hash.

        Raises:
            CollectorError, RunDirectoryError: It cannot be sent, or the spool not be written.
        """
        archive = open_archive(path)
        try:
            str(path.resolve()).encode()
        except UnicodeEncodeError as error:
            raise CollectorError(
                f"the path {str(path)!r} is no UTF-8 and cannot be noted; rename it."
            ) from error
        now = datetime.now(timezone.utc).isoformat(timespec="seconds")
        entry = _described(
            Entry(str(path.resolve()), url, "", 0, "", "", created_at=now),
            archive,
            archive.sha256(),
        )
        entry = replace(entry, delete_after=delete_after)
        self.write(entry)
        return entry

    def add_all(
        self, paths: Iterable[Path], url: str, delete_after: bool = False
    ) -> tuple[list[Entry], list[str]]:
        """Add several; returns their entries, and a line for each that cannot be sent."""
        found: dict[str, Entry] = {}
        troubles: list[str] = []
        for path in paths:
            try:
                entry = self.add(path, url, delete_after)
            except HostboundError as error:
                troubles.append(str(error))
            else:
                found[entry.key] = entry
        return list(found.values()), troubles

    def entries(self) -> tuple[list[Entry], list[str]]:
        """Return the entries, oldest first, and a line for each file that is none."""
        found: list[Entry] = []
        damaged: list[str] = []
        for path in sorted(self.folder.glob("*.json")):
            try:
                value = orjson.loads(path.read_bytes())
                if value.pop("version") != _VERSION:
                    damaged.append(f"{path} is of another version of hostbound; it is left alone.")
                    continue
                entry = msgspec.convert(value, Entry)
                if any(Path(name).name != name for name in entry.members):
                    raise ValueError("no entry of a spool")
                found.append(entry)
            except OSError as error:
                if path.exists():
                    damaged.append(f"{path} cannot be read: {error.strerror}.")
            except (ValueError, TypeError, AttributeError, KeyError, msgspec.ValidationError):
                damaged.append(f"{path} is damaged; send its run by name and delete the file.")
        return sorted(found, key=lambda entry: (entry.created_at, entry.path)), damaged

    def write(self, entry: Entry) -> None:
        """Write an entry in place of the one it had, whole or not at all."""
        self.check()
        text = orjson.dumps({"version": _VERSION, **asdict(entry)}, option=orjson.OPT_INDENT_2)
        try:
            handle, name = tempfile.mkstemp(dir=self.folder, prefix=".entry.")
            with os.fdopen(handle, "wb") as stream:
                stream.write(text + b"\n")
                stream.flush()
                os.fsync(stream.fileno())
            os.replace(name, self.file(entry))
        except OSError as error:
            raise CollectorError(
                f"the spool {self.folder} cannot be written ({error.strerror}); name another "
                "with --spool."
            ) from error

    def file(self, entry: Entry) -> Path:
        """Where an entry lies."""
        return self.folder / f"{entry.key}.json"

    def remove(self, entry: Entry) -> None:
        """Forget an entry."""
        with suppress(OSError):
            self.file(entry).unlink(missing_ok=True)

    def deliver(self, entry: Entry, uploader: Uploader, delete_after: bool = False) -> Stored:
        """Send what an entry names, then forget it; the entry stays if that fails.

        What is sent is what is there now: a run that was replayed again has another hash.

        Raises:
            Busy: Another process sends it.
            Refused: The server will not take it; the entry says so.
            GaveUp: Patience ran out.
            Vanished: The run is no longer there.
            CollectorError, RunDirectoryError: It cannot be read, or not be removed after.
        """
        with self._alone(entry):
            return self._deliver(entry, uploader, delete_after)

    @contextmanager
    def _alone(self, entry: Entry) -> Generator[None, None, None]:
        """Hold an entry; the system lets go of it however this process ends."""
        if fcntl is None:
            yield
            return
        with (self.folder / _LOCK).open("ab") as lock:
            place = int(entry.key[:15], 16)  # one byte of the file stands for each entry
            try:
                fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, place)
            except OSError as error:
                if error.errno in (errno.EACCES, errno.EAGAIN):
                    raise Busy(f"{entry.path} is being sent by another process.") from error
                # A file system without locks: two senders cost time, and lose nothing.
            yield

    def _deliver(self, entry: Entry, uploader: Uploader, delete_after: bool) -> Stored:
        path = Path(entry.path)
        if entry.state == DELETING and not _is_whole(path, entry):
            _delete(path, entry.members)
            self.remove(entry)
            return Stored(entry.sha256)
        if not path.exists():
            self.remove(entry)
            raise Vanished(f"{entry.path} is no longer there; it is not sent.")
        archive = open_archive(path)
        current = _described(entry, archive, archive.sha256())
        if current != entry:
            self.write(current)
        try:
            stored = uploader.send(archive, current.sha256, {"client": _client()})
        except Refused as error:
            self.write(replace(current, state=REFUSED, error=str(error)))
            raise
        if delete_after or entry.delete_after:
            self.write(replace(current, state=DELETING))
            _delete(path, current.members)
        self.remove(current)
        return stored


def _described(entry: Entry, archive: Archive, sha256: str) -> Entry:
    return replace(
        entry,
        sha256=sha256,
        size=archive.size,
        format=archive.format or "",
        name=archive.name or "",
        state=WAITING,
        error=None,
        members=[file.name for file in archive.files()],
    )


def _is_whole(path: Path, entry: Entry) -> bool:
    """False if a deletion has begun: it takes the manifest first."""
    return (path / MANIFEST).is_file() if MANIFEST in entry.members else path.exists()


def _delete(path: Path, members: list[str]) -> None:
    """Remove what was sent and the folder, unless somebody has put something else into it."""
    try:
        if not path.is_dir():
            path.unlink(missing_ok=True)
            return
        for name in members:
            (path / name).unlink(missing_ok=True)
    except OSError as error:
        raise CollectorError(
            f"{path} is stored on the server but cannot be removed here: {error.strerror}."
        ) from error
    with suppress(OSError):
        path.rmdir()


def _client() -> str:
    try:
        return f"collector {metadata.version('hostbound')}"
    except metadata.PackageNotFoundError:
        return "collector"
