"""Random tokens of a team with scopes, and browser sessions made from them.

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
from typing import Any

from sqlalchemy import Row, bindparam, func, select, true

from analyzer.errors import AnalyzerError
from analyzer.server.auth.principal import Principal, parse_scopes
from analyzer.server.db.database import Database
from analyzer.server.db.tables import sessions, tokens
from analyzer.server.layout import check_team

PREFIX = "hb_"
SESSION_SECONDS = 12 * 3600.0
LONGEST_NAME = 200


_ANY = select(tokens.c.seq).where(tokens.c.seq > bindparam("after")).limit(1)
_BY_HASH = select(tokens).where(tokens.c.hash == bindparam("digest"))
_BY_SESSION = (
    select(tokens, sessions.c.hash.label("session"))
    .join(sessions, tokens.c.id == sessions.c.token_id)
    .where(sessions.c.hash == bindparam("digest"), sessions.c.expires_at > bindparam("now"))
)


@dataclass(frozen=True)
class Token:
    """What is known of a token. Times are Unix seconds.

    Attributes:
        expires_at: None for one that does not expire.
        active: It lets in now: neither revoked nor expired.
    """

    id: str
    team: str
    name: str
    scopes: list[str]
    created_at: float
    expires_at: float | None
    revoked_at: float | None
    active: bool


def hashed(token: str) -> bytes:
    """What is stored of a token."""
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()


class Tokens:
    """The tokens of all teams."""

    def __init__(self, database: Database, clock: Callable[[], float] = time.time) -> None:
        self._database = database
        self._clock = clock
        self._any = False

    def create(
        self, team: str, scopes: Sequence[str], name: str = "", days: float | None = None
    ) -> tuple[str, Token]:
        """Make a token; returns its text, which is stored nowhere, and what is known of it.

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
        with self._database.transaction() as connection:
            connection.execute(
                tokens.insert().values(
                    id=token_id,
                    team=team,
                    name=name,
                    scopes=",".join(granted),
                    hash=hashed(text),
                    created_at=now,
                    expires_at=None if days is None else now + days * 86_400,
                )
            )
        return text, self.all(team, token_id)[0]

    def any(self) -> bool:
        """Whether a token was ever made: then nobody gets in without one."""
        if not self._any:
            self._any = self._database.row(_ANY, after=-1) is not None
        return self._any

    def all(self, team: str | None = None, token_id: str | None = None) -> list[Token]:
        """Tokens without their hashes, oldest first."""
        rows = self._database.rows(
            select(tokens)
            .where(tokens.c.team == team if team is not None else true())
            .where(tokens.c.id == token_id if token_id is not None else true())
            .order_by(tokens.c.seq)
        )
        return [
            Token(
                row.id,
                row.team,
                row.name,
                row.scopes.split(","),
                row.created_at,
                row.expires_at,
                row.revoked_at,
                self._is_active(row),
            )
            for row in rows
        ]

    def revoke(self, token_id: str, team: str | None = None) -> bool:
        """End a token and its sessions; False if the team has none of that id."""
        with self._database.transaction() as connection:
            changed = connection.execute(
                tokens.update()
                .where(tokens.c.id == token_id)
                .where(tokens.c.team == team if team is not None else true())
                .values(revoked_at=func.coalesce(tokens.c.revoked_at, self._clock()))
            ).rowcount
            if changed:
                connection.execute(sessions.delete().where(sessions.c.token_id == token_id))
        return bool(changed)

    def find(self, text: str) -> Principal | None:
        """Whose token this is; None for one that is unknown, revoked or expired."""
        digest = hashed(text)
        row = self._database.row(_BY_HASH, digest=digest)
        return self._principal(row, digest, row.hash if row else b"")

    def begin_session(self, principal: Principal) -> str:
        """A browser session of a token; returns the secret that the cookie holds."""
        text = secrets.token_urlsafe(32)
        now = self._clock()
        with self._database.transaction() as connection:
            connection.execute(sessions.delete().where(sessions.c.expires_at < now))
            connection.execute(
                sessions.insert().values(
                    hash=hashed(text),
                    token_id=principal.token_id,
                    expires_at=now + SESSION_SECONDS,
                )
            )
        return text

    def end_session(self, text: str) -> None:
        """Forget a browser session."""
        with self._database.transaction() as connection:
            connection.execute(sessions.delete().where(sessions.c.hash == hashed(text)))

    def session(self, text: str) -> Principal | None:
        """Whose browser session this is."""
        digest = hashed(text)
        row = self._database.row(_BY_SESSION, digest=digest, now=self._clock())
        return self._principal(row, digest, row.session if row else b"")

    def _principal(self, row: Row[Any] | None, digest: bytes, stored: bytes) -> Principal | None:
        if not hmac.compare_digest(digest, stored) or row is None or not self._is_active(row):
            return None
        return Principal(row.team, frozenset(row.scopes.split(",")), row.id, row.name)

    def _is_active(self, row: Row[Any]) -> bool:
        expires: float | None = row.expires_at
        return row.revoked_at is None and (expires is None or self._clock() < expires)
