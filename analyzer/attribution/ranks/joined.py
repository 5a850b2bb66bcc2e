"""The ranks of a run, from their traces to what each waited; findings say what cannot be told."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from analyzer.attribution.accounts import Owned
from analyzer.attribution.decomposition import median_ns
from analyzer.attribution.events import LinkedTrace
from analyzer.attribution.ranks.clocks import LEAST_GOOD_SHARE, Alignment, align
from analyzer.attribution.ranks.collectives import Collectives, find_collectives
from analyzer.attribution.ranks.members import Rank, missing, ranks_of
from analyzer.attribution.ranks.waits import Charge, Charger, Waits, find_waits
from analyzer.trace.events import Finding, FindingKind, finding

FINDINGS = {
    "ranks_missing": FindingKind(
        "note",
        "{count} of {world} ranks are not in this run ({which}): who waits for them cannot be told",
    ),
    "rank_twice": FindingKind(
        "note",
        "{count} ranks have another number of traces than the others; the traces of a rank are "
        "taken in order, and what has no partner is in no figure of ranks",
    ),
    "no_collectives": FindingKind(
        "note",
        "the {count} ranks share no collective, so neither their clocks nor their waits are known",
    ),
    "collectives_unpaired": FindingKind(
        "warning",
        "{count} of {shared} collectives are no pairs (ends of the n-th and the n-th are up to "
        "{worst_ms:.1f} ms apart after the offset of the clocks): these are not the same "
        "collectives, so nothing is said of waits between ranks",
    ),
    "some_unpaired": FindingKind(
        "note",
        "{count} of {shared} collectives are no pairs and are in no figure of ranks",
    ),
}


@dataclass(frozen=True)
class JoinedRanks:
    """One trace of each rank, put together.

    Attributes:
        ranks: In order of rank; places of ranks below are places here.
        collectives: Of all ranks.
        aligned: Clocks, and which collectives are pairs.
        waits: None where too few are.
        charges: Of the waits.
        ahead_ns: How far the host of each rank runs ahead: from the end of a collective's launch
            call to its start, median; None without calls.
    """

    ranks: list[Rank]
    collectives: Collectives
    aligned: Alignment
    waits: Waits | None
    charges: list[Charge]
    ahead_ns: list[int | None]


def join_ranks(
    linked: Sequence[LinkedTrace], owned: Callable[[int, int], Owned]
) -> tuple[list[JoinedRanks], list[Finding]]:
    """Put the ranks of a run together, one entry a repetition; empty if its traces are no ranks.

    Args:
        linked: The run's timed traces.
        owned: The stretches of a thread (ordinal) of one of them, by place.
    """
    ranks = ranks_of(linked)
    absent, world = missing(linked)
    findings = (
        [finding(FINDINGS, "ranks_missing", len(absent), world=world, which=_spans(absent))]
        if absent
        else list[Finding]()
    )
    if not ranks:
        return [], findings
    repetitions = {r.repetition for r in ranks}
    whole = {r.rank for r in ranks}
    sets = [[r for r in ranks if r.repetition == i] for i in sorted(repetitions)]
    if odd := {rank for own in sets for rank in whole - {r.rank for r in own}}:
        findings.append(finding(FINDINGS, "rank_twice", len(odd)))
    joined = [_join(own, linked, owned) for own in sets if len(own) > 1]
    return joined, findings + [one for own in joined for one in _findings(own)]


def _join(
    ranks: list[Rank], linked: Sequence[LinkedTrace], owned: Callable[[int, int], Owned]
) -> JoinedRanks:
    own = [linked[r.trace] for r in ranks]
    found = find_collectives(own)
    aligned = align(found, len(ranks))
    waits: Waits | None = None
    charges: list[Charge] = []
    if (aligned.good_share or 0) >= LEAST_GOOD_SHARE:
        waits = find_waits(found, aligned)
        of_rank: Callable[[int, int], Owned] = lambda place, thread: owned(  # noqa: E731
            ranks[place].trace, thread
        )
        charges = Charger(own, of_rank, found, aligned, waits).charges()
    return JoinedRanks(ranks, found, aligned, waits, charges, _ahead(own, found))


def _ahead(linked: Sequence[LinkedTrace], found: Collectives) -> list[int | None]:
    result: list[int | None] = []
    for member, one in enumerate(linked):
        event = found.event[found.member == member]
        call = one.device.call[event]
        ahead = (one.device.start[event] - np.append(one.calls.end, 0)[call])[call >= 0]
        result.append(median_ns(ahead) if len(ahead) else None)
    return result


def _findings(joined: JoinedRanks) -> list[Finding]:
    aligned = joined.aligned
    shared, good = int(aligned.shared.sum()), int(aligned.good.sum())
    if not shared:
        return [finding(FINDINGS, "no_collectives", len(joined.ranks))]
    if shared == good:
        return []
    code = "some_unpaired" if joined.waits else "collectives_unpaired"
    worst_ms = aligned.worst_ns / 1e6
    return [finding(FINDINGS, code, shared - good, shared=shared, worst_ms=worst_ms)]


def _spans(numbers: Sequence[int]) -> str:
    """Numbers in order as spans: 2-7, 9."""
    spans: list[list[int]] = []
    for number in numbers:
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in spans[:8])
