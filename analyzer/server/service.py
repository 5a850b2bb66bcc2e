"""All parts of one server together, made once at start and handed to whoever answers requests."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from analyzer.errors import AnalyzerError
from analyzer.server.auth.policy import AccessPolicy
from analyzer.server.auth.rate_limit import RateLimit
from analyzer.server.auth.tokens import Tokens
from analyzer.server.db.database import Database, open_database
from analyzer.server.jobs.queue import Jobs
from analyzer.server.jobs.workers import Workers
from analyzer.server.labels import RunLabels
from analyzer.server.layout import Layout
from analyzer.server.limits import Limits
from analyzer.server.logs import Log, fault
from analyzer.server.metrics import Metrics
from analyzer.server.sql.runner import SqlRunner
from analyzer.server.uploads.blobs import Blobs, open_blobs
from analyzer.server.uploads.recovery import Recovery
from analyzer.server.uploads.uploads import Uploads
from analyzer.store import open_store, rwlock

_LEAST_FREE_BYTES = 1 << 20
_TIDY_S = 3600.0


@dataclass
class Service:
    """The parts; `close` ends what runs."""

    layout: Layout
    limits: Limits
    policy: AccessPolicy
    database: Database
    blobs: Blobs
    tokens: Tokens
    jobs: Jobs
    labels: RunLabels
    uploads: Uploads
    workers: Workers
    metrics: Metrics
    rate_limit: RateLimit
    sql: SqlRunner
    log: Log
    ready: threading.Event = field(default_factory=threading.Event)
    _closed: threading.Event = field(default_factory=threading.Event)
    # Sessions of pages that somebody logged in to by the identity provider, the newest last.
    admitted: dict[str, None] = field(default_factory=dict[str, None])

    def needs_login(self) -> bool:
        """Whether a request without a token is refused."""
        return self.policy.needs_login(self.tokens)

    def is_ready(self) -> bool:
        """Whether uploads can be taken and questions answered now; asks the database and the disk.

        A disk with no room even for a login is a reason to send people elsewhere.
        """
        return (
            self.ready.is_set()
            and self.workers.alive() > 0
            and shutil.disk_usage(self.layout.data).free > _LEAST_FREE_BYTES
            and self.database.answers()
        )

    def store(self, team: str) -> Path:
        """A team's store, with the turns that this process keeps at it."""
        path = self.layout.store(team)
        rwlock.keep_lock(path)
        return path

    def start(self) -> None:
        """Mend what the last server left, then take jobs."""
        recovery = Recovery(self.layout, self.database, self.blobs, self.limits, self.uploads)
        mended = recovery.run()
        for team in self.layout.teams():
            store = open_store(self.store(team))
            try:
                if store.exists() or store.has_many_writers:
                    store.make()  # a lake's file is there before its tables are
            except AnalyzerError as error:
                if self.layout.db is not None:
                    raise  # it is all that is served
                self.log("store cannot be opened", team=team, error=str(error))
        if any(mended.values()):
            self.log("recovered", **mended)
        self.database.watch(self._requeue)
        self.workers.start()
        threading.Thread(target=self._tidy, args=(recovery,), daemon=True).start()
        self.ready.set()

    def _tidy(self, recovery: Recovery) -> None:
        """Drop uploads that nobody goes on with, now and then."""
        while not self._closed.wait(_TIDY_S):
            try:
                dropped = sum(recovery.drop_unfinished(team) for team in self.layout.teams())
                if dropped:
                    self.log("recovered", dropped=dropped)
            except Exception as error:  # a full disk, say; the next time it may go
                self.log("uploads not tidied", **fault(error))

    def _requeue(self, servers: Sequence[int] | None) -> None:
        """Queue again what ran in servers that are gone."""
        if again := self.jobs.requeue_lost(servers):
            self.log("recovered", requeued=again)
            self.workers.wake()

    def close(self, grace_s: float) -> None:
        """Let running jobs end within `grace_s`; what has not ended is queued again."""
        self.ready.clear()
        self._closed.set()
        self.workers.stop(grace_s)
        self.sql.close()
        self.database.close()


def _is_new(layout: Layout, blobs: Blobs) -> bool:
    """Whether nothing was ever taken in: then there may be no tokens either. A server that has lost
    its database would let everybody in.
    """
    return not any(
        blobs.names(team)
        or (layout.store(team) != layout.db and open_store(layout.store(team)).exists())
        for team in layout.teams()
    )


def build(layout: Layout, limits: Limits, policy: AccessPolicy, workers: int, log: Log) -> Service:
    """Make the parts over a data folder; starts nothing.

    Raises:
        AnalyzerError: The folder cannot be made or its database opened.
    """
    layout.make()
    blobs = open_blobs(layout)
    database = open_database(layout, make=_is_new(layout, blobs))
    jobs = Jobs(database)
    metrics = Metrics(jobs)
    return Service(
        layout=layout,
        limits=limits,
        policy=policy,
        database=database,
        blobs=blobs,
        tokens=Tokens(database),
        jobs=jobs,
        labels=RunLabels(database),
        uploads=Uploads(layout, database, blobs, limits),
        workers=Workers(layout, jobs, blobs, limits, workers, log),
        metrics=metrics,
        rate_limit=RateLimit(limits.requests_per_second, limits.burst),
        sql=SqlRunner(layout, limits, metrics),
        log=log,
    )
