"""Shares: how many requests that hold a thread for long run at once, in all and of one team.

Whatever waits for a store or computes for seconds takes a place first, and waits for it without a
thread. So the threads that say who somebody is, take uploads and tell of health are never all held,
and one team leaves places to the others.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import anyio

from analyzer.errors import AnalyzerError

PLACES, OF_A_TEAM = 24, 8
_MOST_TEAMS = 1000


class Busy(AnalyzerError):
    """All places were taken for longer than a request waits."""


class Shares:
    """The places of one server; for its event loop."""

    def __init__(self, patience_s: float, places: int = PLACES, of_a_team: int = OF_A_TEAM) -> None:
        """Prepare.

        Args:
            patience_s: How long a request waits for its place.
        """
        self._patience_s = patience_s
        self._of_a_team = of_a_team
        self._all = asyncio.Semaphore(places)
        self._teams: dict[str, asyncio.Semaphore] = {}

    @asynccontextmanager
    async def place(self, team: str) -> AsyncGenerator[None, None]:
        """Hold a place.

        Raises:
            Busy: None came free in time.
        """
        if len(self._teams) > _MOST_TEAMS:
            self._teams = {name: one for name, one in self._teams.items() if one.locked()}
        of_team = self._teams.setdefault(team, asyncio.Semaphore(self._of_a_team))
        with anyio.CancelScope(deadline=anyio.current_time() + self._patience_s) as waiting:
            async with of_team, self._all:
                waiting.deadline = math.inf
                yield
        if waiting.cancelled_caught:
            raise Busy("the server is busy with other questions; ask again soon.")
