"""What one team may keep and have queued on a server, and how much of it is used.

Bytes are those of originals, as they were announced, whole or not; what the store makes of them
comes on top. Conversions count while they are queued. Two servers on one lake may each let the last
one in.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from analyzer import numbers
from analyzer.errors import AnalyzerError
from analyzer.server.db.database import State
from analyzer.server.limits import Limits

WAIT_S = 30  # a client may ask again then
_BYTES = "SELECT coalesce(sum(size), 0) AS n FROM uploads WHERE team = ?"
_QUEUED = "SELECT count(*) AS n FROM jobs WHERE team = ? AND state = 'queued'"


class TooMuchStored(AnalyzerError):
    """A team may keep no more originals."""


class TooManyQueued(AnalyzerError):
    """A team has as many conversions queued as it may."""


@dataclass(frozen=True)
class Usage:
    """What a team uses, and what it may; None: as much as there is room for."""

    team: str
    stored_bytes: int
    stored_bytes_allowed: int | None
    queued: int
    queued_allowed: int | None

    def line(self) -> str:
        """For people."""
        stored = _of(numbers.size(self.stored_bytes), numbers.size(self.stored_bytes_allowed))
        queued = _of(numbers.count(self.queued), numbers.count(self.queued_allowed))
        return f"team {self.team}: {stored} of originals, {queued} conversions queued"


def _of(used: str, allowed: str) -> str:
    return used if allowed == numbers.UNKNOWN else f"{used} (of {allowed} allowed)"


class Quotas:
    """The quotas of all teams; each has the same."""

    def __init__(self, state: State, limits: Limits) -> None:
        self._state = state
        self._bytes_allowed = limits.team_bytes
        self._queued_allowed = limits.team_queued

    def usage(self, team: str, transaction: Any = None) -> Usage:
        """What a team uses; as somebody's transaction sees it, if one is given."""
        return Usage(
            team,
            self._count(_BYTES, team, transaction),
            self._bytes_allowed,
            self._count(_QUEUED, team, transaction),
            self._queued_allowed,
        )

    def check_bytes(self, team: str, size: int, transaction: Any) -> None:
        """Let a team keep one more original, within the transaction that announces it.

        Raises:
            TooMuchStored: It may not.
        """
        most = self._bytes_allowed
        if most is not None and self._count(_BYTES, team, transaction) + size > most:
            raise TooMuchStored(
                f"{self.usage(team, transaction).line()}; {numbers.size(size)} more do not fit: "
                "delete runs that nobody needs, or ask for a higher --team-bytes."
            )

    def check_queue(self, team: str) -> None:
        """Let a team queue one more conversion.

        Raises:
            TooManyQueued: It may not, now.
        """
        most = self._queued_allowed
        if most is not None and self._count(_QUEUED, team) >= most:
            raise TooManyQueued(
                f"{self.usage(team).line()}; try again when some are done, or ask for a higher "
                "--team-queued."
            )

    def _count(self, sql: str, team: str, transaction: Any = None) -> int:
        if transaction is not None:
            return int(transaction.execute(sql, (team,)).fetchone()["n"])
        row: Any = self._state.row(sql, (team,))
        return int(row["n"])
