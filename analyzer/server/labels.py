"""What people say of runs: tags, a note, an owner, which are baselines, which are archived; and the
audit log: who changed or deleted what.

Both are in the server's database, not in the store, so that they outlive a store that is made anew
from its originals: a run's id is its content's.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from sqlalchemy import bindparam, select

from analyzer.server.auth.principal import Principal
from analyzer.server.db.database import Database
from analyzer.server.db.tables import audit, insert_new, run_labels

_OF_TEAM = select(run_labels).where(run_labels.c.team == bindparam("team"))


@dataclass(frozen=True)
class Labels:
    """What people say of a run."""

    tags: list[str] = field(default_factory=list[str])  # sorted
    note: str | None = None  # free text
    owner: str | None = None  # whom to ask
    is_baseline: bool = False  # others are compared with it; retention keeps it
    archived_at: float | None = None  # Unix seconds; lists leave it out from then on


@dataclass(frozen=True)
class AuditEntry:
    """Something that was changed or deleted."""

    seq: int  # counts up
    at: float  # Unix seconds
    by: str  # id of the token; "open" or "local" without one
    action: str  # e.g. "run deleted"
    what: str  # id of the run or token
    detail: dict[str, Any]  # what was given


class RunLabels:
    """The labels and the audit log of all teams."""

    def __init__(self, database: Database, clock: Callable[[], float] = time.time) -> None:
        self._database = database
        self._clock = clock

    def of_team(self, team: str) -> dict[str, Labels]:
        """The labels of runs that have some, by run id."""
        rows = self._database.rows(_OF_TEAM, team=team)
        return {
            row.run_id: Labels(
                row.tags, row.note, row.owner, bool(row.is_baseline), row.archived_at
            )
            for row in rows
        }

    def change(self, who: Principal, run_id: str, changes: Mapping[str, Any]) -> Labels:
        """Change some labels of a run, named as in `Labels`; `archived` says it for the time."""
        given = dict(changes)
        if "archived" in given:
            given["archived_at"] = self._clock() if given.pop("archived") else None
        if "tags" in given:
            given["tags"] = sorted(set(given["tags"]))
        key = (run_labels.c.team == who.team, run_labels.c.run_id == run_id)
        with self._database.transaction() as connection:
            new = {"team": who.team, "run_id": run_id, **asdict(Labels())}
            insert_new(connection, run_labels, **new)
            if given:
                connection.execute(run_labels.update().where(*key).values(**given))
                self._note(who, "run changed", run_id, changes)
        return self.of_team(who.team)[run_id]

    def forget(self, who: Principal, run_id: str, name: str) -> None:
        """A run was deleted."""
        key = (run_labels.c.team == who.team, run_labels.c.run_id == run_id)
        with self._database.transaction() as connection:
            connection.execute(run_labels.delete().where(*key))
            self._note(who, "run deleted", run_id, {"name": name})

    def note(self, who: Principal, action: str, what: str, detail: Mapping[str, Any]) -> None:
        """Write a line of the audit log."""
        with self._database.transaction():
            self._note(who, action, what, detail)

    def _note(self, who: Principal, action: str, what: str, detail: Mapping[str, Any]) -> None:
        self._database.write(
            audit.insert().values(
                team=who.team,
                at=self._clock(),
                by=who.token_id or who.name,
                action=action,
                what=what,
                detail=dict(detail),
            )
        )

    def audited(self, team: str, before: int | None, limit: int) -> list[AuditEntry]:
        """Lines of the audit log, newest first.

        Args:
            before: Only those with a smaller number.
        """
        of_team = select(audit).where(audit.c.team == team)
        if before is not None:
            of_team = of_team.where(audit.c.seq < before)
        rows = self._database.rows(of_team.order_by(audit.c.seq.desc()).limit(limit))
        return [
            AuditEntry(row.seq, row.at, row.by, row.action, row.what, row.detail) for row in rows
        ]
