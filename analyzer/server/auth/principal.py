"""Who asks, and what it may do. Loads no library: the pages and the command line need it too."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from analyzer.errors import AnalyzerError

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


def parse_scopes(text: str | Sequence[str]) -> tuple[str, ...]:
    """Scopes from "upload,read", in their fixed order.

    Raises:
        AnalyzerError: One is not known, or there is none.
    """
    names = [n.strip() for n in (text.split(",") if isinstance(text, str) else text)]
    unknown = [name for name in names if name not in SCOPES]
    if unknown or not names:
        what = repr(unknown[0]) if unknown else "nothing"
        raise AnalyzerError(f"{what} is no scope; give some of {', '.join(SCOPES)}.")
    return tuple(scope for scope in SCOPES if scope in names)
