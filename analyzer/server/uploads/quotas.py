"""What one team may keep and have queued on a server, and how much of it is used.

Bytes are those of originals, as they were announced, whole or not; what the store makes of them
comes on top. Conversions count while they are queued. Two servers on one lake may each let the last
one in.
"""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import bindparam, func, select

from analyzer import numbers
from analyzer.errors import AnalyzerError
from analyzer.server.db.database import Database
from analyzer.server.db.tables import jobs, uploads
from analyzer.server.limits import Limits

_OF_TEAM = bindparam("team", type_=uploads.c.team.type)
_STORED_BYTES = select(func.coalesce(func.sum(uploads.c.size), 0)).where(uploads.c.team == _OF_TEAM)
_QUEUED = select(func.count()).where(jobs.c.team == _OF_TEAM, jobs.c.state == "queued")
_INCOMPLETE = select(func.count()).where(
    uploads.c.team == _OF_TEAM, uploads.c.state == "incomplete"
)

WAIT_S = 30  # a client may ask again then


class TooMuchStored(AnalyzerError):
    """A team may keep no more originals."""


class TooManyQueued(AnalyzerError):
    """A team has as many conversions queued, or uploads announced, as it may."""


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
    """The quotas of all teams; each has the same. Within a transaction they count what it sees."""

    def __init__(self, database: Database, limits: Limits) -> None:
        self._database = database
        self._bytes_allowed = limits.team_bytes
        self._queued_allowed = limits.team_queued
        self._incomplete_allowed = limits.team_incomplete

    def usage(self, team: str) -> Usage:
        """What a team uses."""
        return Usage(
            team,
            self._stored_bytes(team),
            self._bytes_allowed,
            self._queued(team),
            self._queued_allowed,
        )

    def check_incomplete(self, team: str) -> None:
        """Let a team announce one more original; several at once may each be the last.

        Raises:
            TooManyQueued: It may not.
        """
        (row,) = self._database.rows(_INCOMPLETE, team=team)
        if row[0] >= self._incomplete_allowed:
            raise TooManyQueued(
                f"team {team} has announced {numbers.count(row[0])} uploads that are not complete; "
                "send them, or give them up by DELETE."
            )

    def check_bytes(self, team: str, size: int) -> None:
        """Let a team keep one more original, within the transaction that announces it.

        Raises:
            TooMuchStored: It may not.
        """
        most = self._bytes_allowed
        if most is not None and self._stored_bytes(team) + size > most:
            raise TooMuchStored(
                f"{self.usage(team).line()}; {numbers.size(size)} more do not fit: "
                "delete runs that nobody needs, or ask for a higher --team-bytes."
            )

    def check_queue(self, team: str) -> None:
        """Let a team queue one more conversion.

        Raises:
            TooManyQueued: It may not, now.
        """
        most = self._queued_allowed
        if most is not None and self._queued(team) >= most:
            raise TooManyQueued(
                f"{self.usage(team).line()}; try again when some are done, or ask for a higher "
                "--team-queued."
            )

    def _stored_bytes(self, team: str) -> int:
        (row,) = self._database.rows(_STORED_BYTES, team=team)
        return int(row[0])

    def _queued(self, team: str) -> int:
        (row,) = self._database.rows(_QUEUED, team=team)
        return int(row[0])
