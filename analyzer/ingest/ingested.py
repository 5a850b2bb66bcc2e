"""What `ingest` tells of each source."""

from __future__ import annotations

from dataclasses import dataclass

from analyzer.trace.events import Finding


@dataclass(frozen=True)
class Ingested:
    """What became of one source.

    Attributes:
        state: "stored", "replaced", "already stored", or "failed".
        error: One line, for "failed".
        *_seconds: Where the time went; None if not done.
    """

    path: str
    state: str
    run_id: str | None = None
    name: str | None = None
    kernels: int | None = None
    steps: int | None = None
    events: int | None = None
    json_bytes: int | None = None
    read_seconds: float | None = None
    analyse_seconds: float | None = None
    write_seconds: float | None = None
    findings: tuple[Finding, ...] = ()
    error: str | None = None
