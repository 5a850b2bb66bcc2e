"""A conversion, as the queue keeps it and everybody sees it. Loads no library."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

STATES = ("queued", "running", "done", "failed")


@dataclass(frozen=True)
class Job:
    """A conversion: a row of the table, column by column.

    Times are Unix seconds by the server's clock, None before that has happened.

    Attributes:
        seq: Counts up over all teams.
        metadata: As announced with the upload.
        attempts: How often it was begun.
        claim: The number by which it was taken last.
        error: A line that says why it failed.
        run_ids: Runs that it made and that were not deleted.
        results: `analyzer.ingest.Ingested` of each source, as JSON has it.
        server: Which server took it last; None where there is one only.
        interrupted: How many attempts the end of a server cut off.
    """

    seq: int
    id: str
    team: str
    sha256: str
    name: str | None
    metadata: dict[str, Any]
    state: str
    attempts: int
    claim: int
    error: str | None
    run_ids: list[str]
    results: list[dict[str, Any]]
    queued_at: float
    started_at: float | None
    finished_at: float | None
    server: int | None
    interrupted: int

    @property
    def has_ended(self) -> bool:
        """Whether it is done or has failed."""
        return self.state in ("done", "failed")
