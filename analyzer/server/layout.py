"""Where the server keeps what: one folder, in it one store and one set of originals a team.

    DATA/server.sqlite             tokens, uploads, jobs, sessions
    DATA/server.lock               held while a server runs on the folder
    DATA/teams/TEAM/store.duckdb   the team's runs
    DATA/teams/TEAM/blobs/SHA256   originals, as they were sent
    DATA/teams/TEAM/uploads/ID     what has come of uploads that are not complete
    DATA/teams/TEAM/work/          of conversions that run; emptied at start
    DATA/teams/TEAM/snapshots/     copies of the store for SQL; emptied at start

A team reads its own files only, so a mistake in a query cannot show another's rows. `--db FILE` is
the same with DATA = FILE.data and FILE as the store of the team "default". If that is a lake, what
must not be lost is elsewhere (`db`, `blobs.py`), and of these folders uploads/, work/ and
snapshots/ are used.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from analyzer.errors import AnalyzerError

DEFAULT_TEAM = "default"
_TEAM = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_ID = re.compile(r"[0-9a-f]{32}")


def check_team(name: str) -> str:
    """Return a team's name.

    Raises:
        AnalyzerError: It has other than a-z, 0-9, `-`, `_`, or is too long to be a folder.
    """
    if not _TEAM.fullmatch(name):
        raise AnalyzerError(
            f"{name!r} is no name for a team; use a-z, 0-9, - and _, up to 63 of them."
        )
    return name


def is_sha256(text: str) -> bool:
    """64 lower-case hex digits."""
    return _SHA256.fullmatch(text) is not None


def is_id(text: str) -> bool:
    """An id of an upload, job or token: 32 lower-case hex digits."""
    return _ID.fullmatch(text) is not None


@dataclass(frozen=True)
class Layout:
    """Paths under one data folder; `db` is the store of the only team, if one was named."""

    data: Path
    db: Path | None = None

    @classmethod
    def of_store(cls, db: Path) -> Layout:
        """The layout of `--db FILE`.

        Raises:
            AnalyzerError: It is no name of a file.
        """
        if not db.name:
            raise AnalyzerError(f"{str(db)!r} is no file; name a store with --db.")
        return cls(db.with_name(db.name + ".data"), db)

    @classmethod
    def of_folder(cls, data: Path) -> Layout:
        """The layout of a server's folder, with the store that it belongs to, if to one."""
        if data.name.endswith(".data") and (db := data.with_name(data.name[:-5])).is_file():
            return cls.of_store(db)
        return cls(data)

    @property
    def lake(self) -> Path | None:
        """The lake file, if the store is a lake: then tokens and jobs are in its PostgreSQL."""
        if self.db is None:
            return None
        from analyzer.store import open_store  # heavy, and not needed without a store

        return self.db if open_store(self.db).has_many_writers else None

    @property
    def database(self) -> Path:
        return self.data / "server.sqlite"

    @property
    def lock(self) -> Path:
        return self.data / "server.lock"

    def check_team(self, team: str) -> None:
        """Do nothing if a team can be served here.

        Raises:
            AnalyzerError: It has no name for one, or this is a lake, which knows no teams.
        """
        check_team(team)
        if self.lake is not None and team != DEFAULT_TEAM:
            raise AnalyzerError(
                f"{self.lake} is the lake of one team, {DEFAULT_TEAM!r}; give {team!r} a lake file "
                "with another schema and data, and a server on it."
            )

    def team(self, team: str) -> Path:
        return self.data / "teams" / check_team(team)

    def store(self, team: str) -> Path:
        if self.db is not None and team == DEFAULT_TEAM:
            return self.db
        return self.team(team) / "store.duckdb"

    def blob(self, team: str, sha256: str) -> Path:
        if not is_sha256(sha256):
            raise AnalyzerError(f"{sha256[:80]!r} is no SHA-256.")
        return self.team(team) / "blobs" / sha256

    def partial(self, team: str, upload_id: str) -> Path:
        if not is_id(upload_id):
            raise AnalyzerError(f"{upload_id[:80]!r} is no id of an upload.")
        return self.team(team) / "uploads" / upload_id

    def work(self, team: str) -> Path:
        return self.team(team) / "work"

    def snapshots(self, team: str) -> Path:
        return self.team(team) / "snapshots"

    def check(self) -> None:
        """Do nothing if a server's folder is there.

        Raises:
            AnalyzerError: It is not, or is no server's.
        """
        if not self.database.is_file():
            raise AnalyzerError(f"{self.data} is no folder of a server: it has no server.sqlite.")

    def check_store(self) -> None:
        """Refuse what is no store before anything is made beside it. A file may be made later.

        Raises:
            AnalyzerError: It is none, or no file can be made there.
        """
        if self.db is None:
            return
        # Heavy, and not needed by who only looks for a path.
        from analyzer.store import open_store
        from analyzer.store.lake_file import read_lake_file
        from analyzer.store.store import LOCK_PATIENCE_S

        store = open_store(self.db)
        if store.has_many_writers:
            read_lake_file(self.db)
        elif not self.db.parent.is_dir():
            raise AnalyzerError(f"{self.db.parent} is no folder; make it or choose another --db.")
        if store.exists():
            with store.reading(LOCK_PATIENCE_S):
                pass

    def make(self) -> None:
        """Make the data folder; nobody else on the machine may look into it.

        Raises:
            AnalyzerError: It cannot be made.
        """
        try:
            self.data.mkdir(mode=0o700, parents=True, exist_ok=True)
            (self.data / "teams").mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            raise AnalyzerError(f"{error.filename} cannot be made: {error.strerror}.") from error

    def make_team(self, team: str) -> None:
        """Make a team's folders."""
        root = self.team(team)
        for name in ("blobs", "uploads", "work", "snapshots"):
            (root / name).mkdir(mode=0o700, parents=True, exist_ok=True)

    def teams(self) -> list[str]:
        """Teams that have a folder, and the default one of a named store."""
        root = self.data / "teams"
        found = {p.name for p in root.iterdir() if p.is_dir()} if root.is_dir() else set[str]()
        if self.db is not None:
            found.add(DEFAULT_TEAM)
        return sorted(name for name in found if _TEAM.fullmatch(name))


def fsync_folder(path: Path) -> None:
    """Make a rename in a folder survive a power cut."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
