"""Who may do what: random tokens of a team with scopes, and browser sessions made from them.

A token is 256 random bits and is shown once; stored is its SHA-256, which is found by index and
compared in constant time. No guess can be tried fast enough to need a slow hash.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from analyzer.errors import AnalyzerError
from analyzer.server.db.database import Row, State
from analyzer.server.layout import check_team

SCOPES = ("upload", "read", "admin")
PREFIX = "hb_"
SESSION_COOKIE = "hostbound_session"
SESSION_SECONDS = 12 * 3600.0
LONGEST_NAME = 200


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


def hashed(token: str) -> bytes:
    """What is stored of a token."""
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()


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


class Tokens:
    """The tokens of all teams."""

    def __init__(self, state: State, clock: Callable[[], float] = time.time) -> None:
        self._state = state
        self._clock = clock
        self._any = False

    def create(
        self, team: str, scopes: Sequence[str], name: str = "", days: float | None = None
    ) -> tuple[str, Row]:
        """Make a token; returns its text, which is stored nowhere, and its row.

        Raises:
            AnalyzerError: The team's name, a scope or the number of days is not allowed.
        """
        check_team(team)
        granted = parse_scopes(scopes)
        if days is not None and not 0 < days <= 36_500:
            raise AnalyzerError(f"a token cannot expire after {days:g} days; give 1 or more.")
        if len(name) > LONGEST_NAME or not name.isprintable():
            raise AnalyzerError(
                f"a token's name is up to {LONGEST_NAME} printable characters in one line."
            )
        text = PREFIX + secrets.token_urlsafe(32)
        token_id = secrets.token_hex(16)
        now = self._clock()
        expires = None if days is None else now + days * 86_400
        with self._state.transaction() as connection:
            connection.execute(
                "INSERT INTO tokens VALUES (?, ?, ?, ?, ?, ?, ?, NULL)",
                (token_id, team, name, ",".join(granted), hashed(text), now, expires),
            )
        return text, self.all(team, token_id)[0]

    def any(self) -> bool:
        """Whether a token was ever made: then nobody gets in without one."""
        if not self._any:
            self._any = self._state.row("SELECT 1 FROM tokens LIMIT 1") is not None
        return self._any

    def all(self, team: str | None = None, token_id: str | None = None) -> list[Row]:
        """Tokens without their hashes, oldest first."""
        rows = self._state.rows(
            "SELECT id, team, name, scopes, created_at, expires_at, revoked_at FROM tokens "
            "WHERE (CAST(? AS TEXT) IS NULL OR team = ?) AND (CAST(? AS TEXT) IS NULL OR id = ?) "
            "ORDER BY rowid",
            (team, team, token_id, token_id),
        )
        for row in rows:
            row["scopes"] = row["scopes"].split(",")
            row["active"] = self._is_active(row)
        return rows

    def revoke(self, token_id: str, team: str | None = None) -> bool:
        """End a token and its sessions; False if the team has none of that id."""
        with self._state.transaction() as connection:
            changed = connection.execute(
                "UPDATE tokens SET revoked_at = coalesce(revoked_at, ?) "
                "WHERE id = ? AND (CAST(? AS TEXT) IS NULL OR team = ?)",
                (self._clock(), token_id, team, team),
            ).rowcount
            if changed:
                connection.execute("DELETE FROM sessions WHERE token_id = ?", (token_id,))
        return bool(changed)

    def find(self, text: str) -> Principal | None:
        """Whose token this is; None for one that is unknown, revoked or expired."""
        digest = hashed(text)
        row = self._state.row("SELECT * FROM tokens WHERE hash = ?", (digest,))
        return self._principal(row, digest, row["hash"] if row else b"")

    def begin_session(self, principal: Principal) -> str:
        """A browser session of a token; returns the secret that the cookie holds."""
        text = secrets.token_urlsafe(32)
        now = self._clock()
        with self._state.transaction() as connection:
            connection.execute("DELETE FROM sessions WHERE expires_at < ?", (now,))
            connection.execute(
                "INSERT INTO sessions VALUES (?, ?, ?)",
                (hashed(text), principal.token_id, now + SESSION_SECONDS),
            )
        return text

    def end_session(self, text: str) -> None:
        """Forget a browser session."""
        with self._state.transaction() as connection:
            connection.execute("DELETE FROM sessions WHERE hash = ?", (hashed(text),))

    def session(self, text: str) -> Principal | None:
        """Whose browser session this is."""
        digest = hashed(text)
        row = self._state.row(
            "SELECT tokens.*, sessions.hash AS session FROM sessions "
            "JOIN tokens ON tokens.id = sessions.token_id "
            "WHERE sessions.hash = ? AND sessions.expires_at > ?",
            (digest, self._clock()),
        )
        return self._principal(row, digest, row["session"] if row else b"")

    def _principal(self, row: Row | None, digest: bytes, stored: bytes) -> Principal | None:
        if not hmac.compare_digest(digest, stored) or row is None or not self._is_active(row):
            return None
        scopes = row["scopes"].split(",")
        return Principal(row["team"], frozenset(scopes), row["id"], row["name"])

    def _is_active(self, row: Row) -> bool:
        expires = row["expires_at"]
        return row["revoked_at"] is None and (expires is None or self._clock() < expires)
