"""Who asks, and what it may do. Loads no library: the pages and the command line need it too."""

from __future__ import annotations

from dataclasses import dataclass

SCOPES = ("upload", "read", "admin")
SESSION_COOKIE = "hostbound_session"


@dataclass(frozen=True)
class Principal:
    """Who asks: a team and what it may do; `local` is the owner of this machine's store."""

    team: str
    scopes: frozenset[str]
    token_id: str | None
    name: str
    local: bool = False

    def may(self, scope: str) -> bool:
        """Whether a scope is granted; `admin` holds the others."""
        return scope in self.scopes or "admin" in self.scopes
