"""Who waits for whom in a run of several ranks, and for what: the wait of a median step, charged.

Waits are those of collectives launched in steps; what passed before the late rank was recorded (its
profiler had not begun) is left out and named. Integer nanoseconds, unknown is None.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from analyzer import numbers, queries
from analyzer.queries.ranks import CollectiveKind, Rank, RankStep, RankWait
from analyzer.store import Connection

NOT_RECORDED = "not_recorded"
TOP = 12


@dataclass(frozen=True)
class RankFigures:
    """What one rank waited in its steps."""

    rank: int  # as the recording numbers it
    label: str  # what told it
    clock_offset_ns: int | None  # its clock less the first rank's
    clock_error_ns: int | None  # of that: 95 % of ends of pairs differ by at most so much
    ahead_ns: int | None  # how far its host runs ahead of a collective, median
    steps: int  # with collectives
    collectives: int  # in steps
    wait_ns: int | None  # median step
    transfer_ns: int | None  # median step
    elapsed_ns: int  # median step
    waited_ns: int | None  # in all steps
    unrecorded_ns: int  # left out of these: nothing of the late rank was recorded then


@dataclass(frozen=True)
class RankCharge:
    """What a rank waited for another, by account of the late one, in all steps."""

    rank: int  # that waited
    late_rank: int  # that is charged
    account: str  # of its ledger, or between_steps, device_queue
    ns: int  # in all steps
    share: float  # of what the rank waited


@dataclass(frozen=True)
class RankReport:
    """A run of several ranks: how far apart they are, who waits for whom, and why."""

    sentence: str  # the answer in words
    has_verdict: bool  # False: too few collectives are pairs, the sentence says so
    ranks: list[RankFigures]  # in order
    charges: list[RankCharge]  # most first
    held_by: list[RankWait]  # the longest single causes
    collectives: list[CollectiveKind]  # most transfer time first
    step_skew_p50_ns: int | None  # from the first rank's start of a step to the last one's
    step_skew_p95_ns: int | None


def rank_report(connection: Connection, run_id: str) -> RankReport | None:
    """What a report shows of a run's ranks; None if its traces are no ranks."""
    ranks = queries.ranks(connection, run_id)
    if not ranks:
        return None
    steps = queries.rank_steps(connection, run_id)
    waits = [w for w in queries.rank_waits(connection, run_id) if w.account != NOT_RECORDED]
    figures = [_figures(rank, steps) for rank in ranks if rank.repetition == 0]
    charges = _charges(waits)
    collectives = queries.collective_kinds(connection, run_id)
    has_verdict = any(one.wait_ns is not None for one in figures)
    skews = sorted(_step_skews(steps, len(figures)))
    return RankReport(
        sentence=_sentence(figures, charges) if has_verdict else _abstains(connection, run_id),
        has_verdict=has_verdict,
        ranks=figures,
        charges=charges,
        held_by=waits[:TOP],
        collectives=collectives,
        step_skew_p50_ns=skews[len(skews) // 2] if skews else None,
        step_skew_p95_ns=skews[len(skews) * 95 // 100] if skews else None,
    )


def waits_of(step: RankStep) -> int | None:
    """What a rank waited in a step for ranks that were recorded then."""
    return None if step.wait_ns is None else step.wait_ns - step.unrecorded_ns


def _figures(rank: Rank, steps: Sequence[RankStep]) -> RankFigures:
    own = [step for step in steps if step.rank == rank.rank and step.phase != "capture"]
    steady = [step for step in own if not step.is_warm_up] or own
    waits = [wait for step in own if (wait := waits_of(step)) is not None]
    return RankFigures(
        rank=rank.rank,
        label=rank.label,
        clock_offset_ns=rank.clock_offset_ns,
        clock_error_ns=rank.clock_error_ns,
        ahead_ns=rank.ahead_ns,
        steps=len(own),
        collectives=sum(step.collectives for step in own),
        wait_ns=_median([waits_of(step) for step in steady]),
        transfer_ns=_median([step.transfer_ns for step in steady]),
        elapsed_ns=_median([step.elapsed_ns for step in steady]) or 0,
        waited_ns=sum(waits) if waits else None,
        unrecorded_ns=sum(step.unrecorded_ns for step in own),
    )


def _median(values: Sequence[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return round(median(known)) if known else None


def _charges(waits: Sequence[RankWait]) -> list[RankCharge]:
    sums: Counter[tuple[int, int, str]] = Counter()
    whole: Counter[int] = Counter()
    for wait in waits:
        sums[wait.rank, wait.late_rank, wait.account] += wait.ns
        whole[wait.rank] += wait.ns
    return [RankCharge(*key, ns, ns / whole[key[0]]) for key, ns in sums.most_common() if ns]


def _step_skews(steps: Sequence[RankStep], ranks: int) -> list[int]:
    """How far apart the ranks began the same step: of one phase and place."""
    starts: dict[tuple[str, int, int], list[int]] = {}
    for step in steps:
        if step.aligned_start_ns is not None:
            place = step.phase, step.step_index, step.repetition
            starts.setdefault(place, []).append(step.aligned_start_ns)
    return [max(own) - min(own) for own in starts.values() if len(own) == ranks]


def _sentence(figures: Sequence[RankFigures], charges: Sequence[RankCharge]) -> str:
    most = max(figures, key=lambda one: one.wait_ns or 0)
    if not most.wait_ns:
        return f"No rank waits for another in a median step; {len(figures)} ranks."
    by_late: Counter[int] = Counter()
    for charge in charges:
        if charge.rank == most.rank:
            by_late[charge.late_rank] += charge.ns
    late, ns = by_late.most_common(1)[0]
    worst = next(c for c in charges if (c.rank, c.late_rank) == (most.rank, late))
    share = f" ({most.wait_ns / most.elapsed_ns:.0%} of it)" if most.elapsed_ns else ""
    others = "" if len(by_late) == 1 else f", {ns / sum(by_late.values()):.0%} of that for"
    return (
        f"Rank {most.rank} waits {numbers.duration(most.wait_ns)} a median step{share}"
        f"{others or ' for'} rank {late}; {worst.ns / ns:.0%} of that passes "
        f"{_where(worst.account, late)}."
    )


def _where(account: str, late: int) -> str:
    return {
        "device_queue": f"on rank {late}'s device, behind what it had to run before",
        "between_steps": f"between rank {late}'s steps",
    }.get(account, f"in rank {late}'s {account}")


def _abstains(connection: Connection, run_id: str) -> str:
    codes = ("collectives_unpaired", "no_collectives")
    found = [one for one in queries.quality(connection, run_id) if one.code in codes]
    why = found[0].message if found else "no collective of theirs was launched in a step"
    return f"Nothing is said of waits between ranks: {why}."
