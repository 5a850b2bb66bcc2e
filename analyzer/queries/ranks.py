"""Questions about a run of several ranks: their clocks, collectives, and who waited for whom.

Empty for a run whose traces are not ranks. Times are integer nanoseconds, unknown is None.
"""

from __future__ import annotations

from dataclasses import dataclass

from analyzer.queries.rows import select
from analyzer.store import Connection
from analyzer.store.sql_text import named_sql


@dataclass(frozen=True)
class Rank:
    """A rank's trace, and its clock against the first rank's."""

    trace_id: int  # its trace
    rank: int  # as the recording numbers it, else by file name or device
    world_size: int | None  # ranks of the job
    label: str  # what told the rank
    repetition: int  # which of the traces of this rank
    clock_offset_ns: int | None  # its clock less the first rank's; None without common collective
    clock_error_ns: int | None  # 95 % of the ends of pairs differ by at most that
    clock_trace_id: int  # the rank that the offset was measured against
    clock_pairs: int  # collectives shared with it
    clock_good_pairs: int  # of them, real pairs
    ahead_ns: int | None  # how far its host runs ahead of a collective, median


@dataclass(frozen=True)
class RankStep:
    """What a rank waited and transferred in a step; None where no verdict is given."""

    rank: int
    repetition: int
    step_id: int
    phase: str
    step_index: int
    is_warm_up: bool
    aligned_start_ns: int | None  # on the first rank's clock
    elapsed_ns: int
    collectives: int
    wait_ns: int | None
    transfer_ns: int | None
    unrecorded_ns: int  # of the wait, before anything of the late rank was recorded


@dataclass(frozen=True)
class RankWait:
    """What a rank waited for another in its steps, and what held that then."""

    rank: int  # that waited
    late_rank: int  # that is charged
    account: str  # of its ledger, or between_steps, device_queue, not_recorded
    held_by: str | None  # op, call, region, range or kernel; None if none is known
    is_before: bool  # nothing held it: the name is of what came next
    ns: int  # in all steps


@dataclass(frozen=True)
class CollectiveKind:
    """Collectives of one process group, kind and size, in steps."""

    process_group: str  # its name and ranks, else the stream
    collective: str  # e.g. allreduce, else the kernel
    bytes: int | None  # of the larger buffer; None if not recorded
    ranks: int  # that share it
    collectives: int  # how many
    transfer_p50_ns: int  # without waiting
    transfer_ns: int  # in all
    skew_p50_ns: int  # from the first rank's start to the last one's
    skew_p95_ns: int
    bus_bytes_per_s: float | None  # None without sizes


@dataclass(frozen=True)
class StepCollective:
    """A rank's part of a collective in a step of all ranks; times from the first rank's start."""

    rank: int
    collective_id: int  # the same on all its ranks
    collective: str  # e.g. allreduce, else the kernel
    start_ns: int
    dur_ns: int
    wait_ns: int  # of it, until the last rank began
    late_rank: int  # that began last


def ranks(connection: Connection, run_id: str) -> list[Rank]:
    """The ranks of a run, in order; empty if its traces are none."""
    return select(
        connection,
        Rank,
        "SELECT * EXCLUDE (run_id) FROM ranks WHERE run_id = $run_id ORDER BY rank, repetition",
        {"run_id": run_id},
    )


def rank_steps(connection: Connection, run_id: str) -> list[RankStep]:
    """What each rank waited in each step, by rank."""
    return select(connection, RankStep, named_sql("rank_steps"), {"run_id": run_id})


def rank_waits(connection: Connection, run_id: str) -> list[RankWait]:
    """Who waited for whom in steps, and for what, most first."""
    return select(
        connection,
        RankWait,
        "SELECT rank, late_rank, account, held_by, is_before, sum(ns)::BIGINT AS ns "
        "FROM rank_waits WHERE run_id = $run_id AND step_id IS NOT NULL "
        "GROUP BY ALL ORDER BY ns DESC, rank, late_rank, account, held_by, is_before",
        {"run_id": run_id},
    )


def collective_kinds(connection: Connection, run_id: str) -> list[CollectiveKind]:
    """Collectives by group, kind and size, most time first."""
    return select(connection, CollectiveKind, named_sql("rank_collectives"), {"run_id": run_id})


def step_collectives(
    connection: Connection, run_id: str, phase: str, index: int
) -> list[StepCollective]:
    """The collectives of the same step on all ranks of a run, on one clock, in order of time."""
    return select(
        connection,
        StepCollective,
        named_sql("rank_step_collectives"),
        {"run_id": run_id, "phase": phase, "step_index": index},
    )
