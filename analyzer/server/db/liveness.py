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
from collections.abc import Callable

import psycopg
from psycopg.rows import DictRow

from analyzer.errors import Unreachable

Session = psycopg.Connection[DictRow]

LOOK_S = 0.5
GRACE_S = 10.0

# The servers of running jobs that hold no lock.
_ABSENT = """
SELECT DISTINCT server FROM jobs
WHERE state = 'running' AND server IS NOT NULL AND NOT EXISTS (
  SELECT 1 FROM pg_locks AS held
  WHERE held.locktype = 'advisory' AND held.granted AND held.objsubid = 2
    AND held.database = (SELECT oid FROM pg_database WHERE datname = current_database())
    AND held.classid::BIGINT = %(key)s AND held.objid::BIGINT = jobs.server)
"""


class Presence:
    """This server's lock, and its look at the others; a thread."""

    def __init__(
        self,
        connect: Callable[[str], Session],
        schema: str,
        requeue: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Prepare.

        Args:
            requeue: Called with an SQL condition on the jobs of servers that are gone.
            clock: Seconds of a clock that never jumps.
        """
        self._connect = connect
        self._schema = schema
        self._requeue = requeue
        self._clock = clock
        self._session: Session | None = None
        self._thread = threading.Thread(target=self._run, name="presence", daemon=True)
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
            psycopg.Error: PostgreSQL does not answer.
        """
        self.take_number()
        self._show()
        self._thread.start()

    def take_number(self) -> None:
        """Be a server that no other is, was, or will be soon."""
        with self._connect("hostbound presence") as session:
            (row,) = session.execute(
                "SELECT nextval('servers')::INTEGER AS server, hashtext(%s) & 2147483647 AS key",
                [self._schema],
            ).fetchall()
            self.server, self._key = int(row["server"]), int(row["key"])

    def stop(self) -> None:
        """Give the lock back."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()
        self._drop()

    def _show(self) -> None:
        """Hold the lock in a session; the one before may not be over for PostgreSQL yet."""
        session = self._connect("hostbound presence")
        try:
            (row,) = session.execute(
                "SELECT pg_try_advisory_lock(%s::INTEGER, %s::INTEGER) AS held",
                [self._key, self.server],
            ).fetchall()
        except BaseException:
            session.close()
            raise
        if row["held"]:
            self._session = session
        else:
            session.close()

    def _drop(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            session.close()

    def _run(self) -> None:
        while not self._ended.wait(LOOK_S):
            try:
                if self._session is None:
                    self._show()
                if self._session is not None:
                    self.look(self._session)
            except psycopg.Error:
                self._drop()
                self.forget()
            except Unreachable:
                pass

    def forget(self) -> None:
        """Nothing was seen for a while: all have their time again to come back."""
        self._missing_since.clear()

    def look(self, session: Session) -> None:
        """See which servers are missing; have those jobs queued again whose server is gone."""
        rows = session.execute(_ABSENT, {"key": self._key}).fetchall()
        now = self._clock()
        self._missing_since = {
            row["server"]: self._missing_since.get(row["server"], now)
            for row in rows
            if row["server"] != self.server
        }
        gone = [s for s, since in self._missing_since.items() if now - since >= GRACE_S]
        if gone:
            self._requeue(f"server IN ({', '.join(map(str, gone))})")
