"""What the web app may ask of the server whose process it shares.

Loads no web library: the app runs without a server too, and serves the one store it was given.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Protocol

from analyzer.server.auth.principal import SESSION_COOKIE, Principal
from analyzer.server.jobs.job import Job

if TYPE_CHECKING:
    import pyarrow as pa

    from analyzer.ingest.ingested import Ingested

ENTRY_POINTS = "hostbound.pages"


class Hosting(Protocol):
    """The server, as its pages see it; `hosting.py` is it."""

    @property
    def has_identity_provider(self) -> bool:
        """Whether people log in by an identity provider."""
        ...

    def visitor(self, session: str | None, claims: Mapping[str, Any] | None) -> Principal | None:
        """Who looks at the pages: by the login's cookie, by an identity provider's claims, or
        anybody where no login is needed. None for somebody who has to log in, or has no team.
        """
        ...

    def admit(self, page_session: str) -> None:
        """Somebody of a team looks through this session of Streamlit's: it may take files."""
        ...

    def store(self, visitor: Principal) -> Path:
        """The store of a visitor's team."""
        ...

    def run_sql(
        self, visitor: Principal, sql: str, limit: int, time_limit_s: float, cancel: threading.Event
    ) -> pa.Table:
        """Rows of a statement; see `analyzer.server.sql.runner`."""
        ...

    def jobs(self, visitor: Principal, limit: int = 200) -> tuple[list[Job], dict[str, int]]:
        """Conversions of a visitor's team, newest first, and how many are in each state."""
        ...

    def usage(self, visitor: Principal) -> str:
        """What a visitor's team keeps and has queued, and may, in one line."""
        ...

    def retry(self, visitor: Principal, job_id: str) -> bool:
        """Queue a failed conversion again."""
        ...

    def keep(self, visitor: Principal, name: str, form: str | None, content: IO[bytes]) -> str:
        """Upload a file that the browser sent; returns its hash.

        Args:
            name: The file's, or the run's if `form` is "run-directory.tar".
            form: What it is; None lets the server look.

        Raises:
            AnalyzerError: It is too large, the disk is full, or the visitor may not upload.
        """
        ...

    def results(
        self, visitor: Principal, hashes: Sequence[str], patience_s: float
    ) -> list[Ingested]:
        """What became of uploads; those that are still waiting after `patience_s` are left out."""
        ...


class MakeApp(Protocol):
    """What the entry point of ENTRY_POINTS is: makes the ASGI application of the pages."""

    def __call__(
        self,
        hosting: Hosting,
        host: str,
        port: int,
        base_path: str,
        most_bytes: int,
        auth: Mapping[str, Any] | None,
    ) -> object: ...


_current: Hosting | None = None


def host(hosting: Hosting | None) -> None:
    """Say which server this process is."""
    global _current  # the app's script has no other way to find the process it runs in
    _current = hosting


def current() -> Hosting | None:
    """The server that this process is, if it is one."""
    return _current


__all__ = [
    "ENTRY_POINTS",
    "SESSION_COOKIE",
    "Hosting",
    "Job",
    "MakeApp",
    "Principal",
    "current",
    "host",
]
