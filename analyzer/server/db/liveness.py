"""Shows PostgreSQL that this server lives, and finds servers that do not any more.

A server has a number, and a session of its own that holds an advisory lock of that number. The lock
goes with the session, so with the process or its host; no clock is compared with another's. A
session can be lost while the server lives, all are when PostgreSQL restarts: so a server counts as
gone only when its lock was seen missing for GRACE_S of the observer's own time, and by then one
that lives has its lock again. One that was cut off for longer finds its jobs taken: what it then
says of them is not heard (`Jobs.finish`).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from sqlalchemy import Connection, text
from sqlalchemy.exc import DBAPIError

from analyzer.errors import Unreachable
from analyzer.server.db import tables
from analyzer.server.db.connect import Engines

LOOK_S = 0.5
GRACE_S = 10.0

# Called with the numbers of servers that are gone; None: every other one is.
Requeue = Callable[[Sequence[int] | None], None]

# The servers of running jobs that hold no lock.
_ABSENT = text("""
SELECT DISTINCT server FROM jobs
WHERE state = 'running' AND server IS NOT NULL AND NOT EXISTS (
  SELECT 1 FROM pg_locks AS held
  WHERE held.locktype = 'advisory' AND held.granted AND held.objsubid = 2
    AND held.database = (SELECT oid FROM pg_database WHERE datname = current_database())
    AND CAST(held.classid AS BIGINT) = :key AND CAST(held.objid AS BIGINT) = jobs.server)
""")
_KEY = text("SELECT hashtext(:schema) & 2147483647")
_LOCK = text("SELECT pg_try_advisory_lock(CAST(:key AS INTEGER), CAST(:server AS INTEGER))")


class Shared(Protocol):
    """What is asked of the database."""

    @property
    def engines(self) -> Engines: ...

    def transaction(self) -> AbstractContextManager[Connection]: ...


class Liveness:
    """This server's lock, and its look at the others; a thread."""

    def __init__(
        self, database: Shared, requeue: Requeue, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Prepare.

        Args:
            clock: Seconds of a clock that never jumps.
        """
        self._database = database
        self._requeue = requeue
        self._clock = clock
        self._session: Connection | None = None
        self._thread = threading.Thread(target=self._run, name="liveness", daemon=True)
        self._ended = threading.Event()
        self._missing_since: dict[int, float] = {}
        self._key: int = 0
        self.server: int = 0

    @property
    def is_shown(self) -> bool:
        """Whether the lock was held when last looked."""
        return self._session is not None

    def start(self) -> None:
        """Take a number and its lock, then look.

        Raises:
            DBAPIError, Unreachable: PostgreSQL does not answer.
        """
        self.take_number()
        self._show()
        self._thread.start()

    def take_number(self) -> None:
        """Take a number that no other server has."""
        with self._database.transaction() as connection:
            self.server = tables.next_number(connection, tables.SERVERS)
            schema = {"schema": self._database.engines.schema}
            self._key = int(connection.execute(_KEY, schema).scalar_one())

    def stop(self) -> None:
        """Give the lock back."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()
        self._drop()

    def _show(self) -> None:
        """Hold the lock in a session; the one before may not be over for PostgreSQL yet."""
        session = self._database.engines.alone.connect()
        held = False
        try:
            lock = {"key": self._key, "server": self.server}
            held = bool(session.execute(_LOCK, lock).scalar())
        finally:
            if not held:
                session.close()
        if held:
            self._session = session

    def _drop(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            session.close()

    def _run(self) -> None:
        # Deferred: only servers on a lake come here.
        from psycopg import Error

        while not self._ended.wait(LOOK_S):
            try:
                if self._session is None:
                    self._show()
                if self._session is not None:
                    self.look(self._session)
            except (DBAPIError, Error):
                self._drop()
                self.forget()
            except Unreachable:
                pass

    def forget(self) -> None:
        """Give all servers their time again to come back: nothing was seen for a while."""
        self._missing_since.clear()

    def look(self, session: Connection) -> None:
        """See which servers are missing; have those jobs queued again whose server is gone."""
        missing = session.execute(_ABSENT, {"key": self._key}).scalars().all()
        now = self._clock()
        self._missing_since = {
            server: self._missing_since.get(server, now)
            for server in missing
            if server != self.server
        }
        gone = [s for s, since in self._missing_since.items() if now - since >= GRACE_S]
        if gone:
            self._requeue(gone)
