"""The parts of a server that keep what must not be lost, over one folder, without HTTP."""

from __future__ import annotations

import hashlib
import itertools
from pathlib import Path

from analyzer.server.auth.tokens import Tokens
from analyzer.server.db.database import Database, open_postgres, open_sqlite
from analyzer.server.jobs.queue import Jobs
from analyzer.server.layout import Layout
from analyzer.server.limits import Limits
from analyzer.server.uploads.blobs import FolderBlobs
from analyzer.server.uploads.recovery import Recovery
from analyzer.server.uploads.uploads import Announced, Upload, Uploads
from fleet.services import Postgres

DAY_S = 86_400.0
_schemas = itertools.count()


class Clock:
    """A host's clock that somebody sets."""

    def __init__(self) -> None:
        self.now = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


class SqliteDatabases:
    """Opens a server's database again and again: a file."""

    def __init__(self) -> None:
        self.opened: list[Database] = []

    def open(self, layout: Layout) -> Database:
        database = self._open(layout)
        database.watch(lambda servers: None)
        self.opened.append(database)
        return database

    def _open(self, layout: Layout) -> Database:
        return open_sqlite(layout.database)

    def lose(self, layout: Layout) -> None:
        """What the disk or the database may do."""
        for file in layout.data.glob("server.sqlite*"):
            file.unlink()

    def close(self) -> None:
        for database in self.opened:
            database.close()


class PostgresDatabases(SqliteDatabases):
    """A schema of its own in a PostgreSQL."""

    def __init__(self, postgres: Postgres) -> None:
        super().__init__()
        self._postgres = postgres
        self._schema = f"parts_{next(_schemas)}"

    def _open(self, layout: Layout) -> Database:
        return open_postgres(self._postgres.catalog, self._schema, "lake.toml")

    def lose(self, layout: Layout) -> None:
        self._postgres.psql(f"DROP SCHEMA {self._schema} CASCADE")


class ServerParts:
    """The parts; `again` is a server's next start, or another on the same lake."""

    def __init__(self, data: Path, databases: SqliteDatabases, clock: Clock, **limits: int) -> None:
        self.databases = databases
        self.layout = Layout(data)
        self.layout.make()
        self.clock = clock
        self.database = databases.open(self.layout)
        self.tokens = Tokens(self.database, clock)
        self.jobs = Jobs(self.database, clock)
        blobs = FolderBlobs(lambda team: self.layout.team(team) / "blobs")
        common = (self.layout, self.database, blobs, Limits(**limits))
        self.uploads = Uploads(*common, clock)
        self.recover = Recovery(*common, self.uploads, clock).run

    def again(self) -> ServerParts:
        return ServerParts(self.layout.data, self.databases, self.clock)

    def announce(self, content: bytes, team: str = "perf", size: int | None = None) -> Upload:
        return self.uploads.announce(team, announced(content, size), None)

    def write(self, content: bytes, upload: Upload, offset: int = 0) -> None:
        with self.uploads.writer(upload, offset) as stream:
            stream.write(content)

    def store(self, content: bytes, team: str = "perf") -> Upload:
        upload = self.announce(content, team)
        with self.uploads.writer(upload, 0) as stream:
            stream.write(content)
            self.uploads.complete(upload)
        return upload


def announced(content: bytes, size: int | None = None) -> Announced:
    digest = hashlib.sha256(content).hexdigest()
    return Announced(digest, size or len(content), None, "name", None, {})
