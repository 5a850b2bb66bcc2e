"""What the server allows: sizes in bytes, times in seconds, rates a second. One place for all."""

from __future__ import annotations

from dataclasses import dataclass

MIB = 1 << 20
GIB = 1 << 30


@dataclass(frozen=True)
class Limits:
    """Bounds on what one client can ask for.

    Attributes:
        upload_bytes: One upload, as sent.
        decompressed_bytes: All of one upload's content, decompressed.
        members: Files in an archive.
        events: Events in one upload's traces, each trace counted alone.
        team_bytes: Originals that one team may keep. None: as many as there is room for.
        team_incomplete: Uploads of one team that are announced and not complete.
        team_queued: Conversions of one team that are queued at the same time.
        job_seconds: One conversion; then its worker is killed.
        commit_seconds: One run's commit, during which the team's readers wait; then its worker is
            killed, which leaves the run whole or absent.
        job_memory_bytes: Resident memory of a worker; then it is killed. None: not watched.
        job_attempts: How often a conversion whose worker died is begun, server deaths apart.
        body_bytes: A request's body, uploads apart.
        header_bytes: A request's line and headers.
        slow_seconds: Within it a request's headers must come; a body may stop for so long, in all
            when it comes, or an answer is read, slower than 1 KiB/s.
        requests_per_second: Of one token, on average; short bursts may be `burst` times that.
        sql_seconds, sql_memory_bytes, sql_rows, sql_answer_bytes: One SQL statement.
        sql_at_once: SQL statements at the same time; the last place is for a team that has none.
        reserve_bytes: Disk that uploads leave free.
        partial_days: Days after which an unfinished upload that nobody goes on with is dropped.
        read_patience_seconds: How long a read waits for a commit.
    """

    upload_bytes: int = 4 * GIB
    decompressed_bytes: int = 20 * GIB
    members: int = 1000
    events: int = 20_000_000
    team_bytes: int | None = None
    team_incomplete: int = 2000
    team_queued: int | None = 100_000
    job_seconds: float = 3600.0
    commit_seconds: float = 300.0
    job_memory_bytes: int | None = None
    job_attempts: int = 3
    body_bytes: int = MIB
    header_bytes: int = 32 << 10
    slow_seconds: float = 60.0
    requests_per_second: float = 200.0
    burst: float = 5.0
    sql_seconds: float = 30.0
    sql_memory_bytes: int = GIB
    sql_rows: int = 100_000
    sql_answer_bytes: int = 64 * MIB
    sql_at_once: int = 3
    reserve_bytes: int = 64 * MIB
    partial_days: float = 14.0
    read_patience_seconds: float = 60.0
