"""All parts of one server together, made once at start and handed to whoever answers requests."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from pathlib import Path

from analyzer.server.auth.oidc import Provider
from analyzer.server.auth.rate_limit import Rates
from analyzer.server.auth.tokens import Tokens
from analyzer.server.db.database import State, open_state
from analyzer.server.jobs.queue import Jobs
from analyzer.server.jobs.workers import Pool
from analyzer.server.layout import Layout
from analyzer.server.limits import Limits
from analyzer.server.logs import Log
from analyzer.server.metrics import Metrics
from analyzer.server.sql.runner import Sql
from analyzer.server.uploads.blobs import Blobs, open_blobs
from analyzer.server.uploads.uploads import Uploads
from analyzer.store import open_store, rwlock


@dataclass(frozen=True)
class Door:
    """Who is let in.

    Attributes:
        is_loopback: The server listens on this machine only.
        open_by_order: `--no-login-i-know`: everybody who reaches it is let in.
        local_secret: What the command line of this machine's owner shows; None without `--db`.
        oidc: The identity provider by which people log in at the pages, if there is one.
    """

    is_loopback: bool = True
    open_by_order: bool = False
    local_secret: str | None = None
    oidc: Provider | None = None


@dataclass
class Service:
    """The parts; `close` ends what runs."""

    layout: Layout
    limits: Limits
    door: Door
    state: State
    blobs: Blobs
    tokens: Tokens
    jobs: Jobs
    uploads: Uploads
    pool: Pool
    metrics: Metrics
    rates: Rates
    sql: Sql
    log: Log
    ready: threading.Event = field(default_factory=threading.Event)
    # Sessions of pages that somebody logged in to by the identity provider, the newest last.
    let_in: dict[str, None] = field(default_factory=dict[str, None])

    def needs_login(self) -> bool:
        """Whether a request without a token is refused. From the first token on, it is."""
        if self.door.open_by_order:
            return False
        return not self.door.is_loopback or self.door.oidc is not None or self.tokens.any()

    def store(self, team: str) -> Path:
        """A team's store, with the turns that this process keeps at it."""
        path = self.layout.store(team)
        rwlock.keep_lock(path)
        return path

    def start(self) -> None:
        """Mend what the last server left, then take jobs."""
        mended = self.uploads.recover()
        for team in self.layout.teams():
            store = open_store(self.store(team))
            if store.exists() or store.has_many_writers:
                store.make()  # a lake's file is there before its tables are
        if any(mended.values()):
            self.log("recovered", **mended)
        self.state.watch(self._requeue)
        self.pool.start()
        self.ready.set()

    def _requeue(self, lost: str) -> None:
        """Queue again what ran in a server that is gone."""
        if again := self.jobs.requeue_lost(lost):
            self.log("recovered", requeued=again)
            self.pool.wake()

    def close(self, grace_s: float) -> None:
        """Let running jobs end within `grace_s`; what has not ended is queued again."""
        self.ready.clear()
        self.pool.stop(grace_s)
        self.sql.close()
        self.state.close()


def build(layout: Layout, limits: Limits, door: Door, workers: int, log: Log) -> Service:
    """Make the parts over a data folder; starts nothing.

    Raises:
        AnalyzerError: The folder cannot be made or its state file opened.
    """
    layout.make()
    state = open_state(layout)
    blobs = open_blobs(layout)
    jobs = Jobs(state)
    metrics = Metrics(jobs)
    return Service(
        layout=layout,
        limits=limits,
        door=door,
        state=state,
        blobs=blobs,
        tokens=Tokens(state),
        jobs=jobs,
        uploads=Uploads(layout, state, blobs, limits),
        pool=Pool(layout, jobs, blobs, limits, workers, log),
        metrics=metrics,
        rates=Rates(limits.requests_per_second, limits.burst),
        sql=Sql(layout, limits, metrics),
        log=log,
    )
