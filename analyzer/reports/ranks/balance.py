"""What waiting less would win, from a step's sums: for other ranks, and for the host between steps.

    perfect-ranks   without its waits a rank's step takes what its device and its host need; shared
                    evenly the ranks' mean. Bounds: the fastest rank's, the slowest's.
    async-schedule  the host prepares step N+1, and ends step N-1, while the device works on N: a
                    step takes the longer of both. Bounds: the launching alone against the device
                    (the rest moves to other threads), and the step as it is.

A step found by repetition begins where the one before it ended, so what lies between is in it.
Integer nanoseconds, unknown is None. Ours; see docs/measurement.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median_low

from analyzer import queries
from analyzer.queries.costs import Step
from analyzer.reports.ranks.waits import waits_of
from analyzer.store import Connection


@dataclass(frozen=True)
class Balance:
    """A phase's median step after a change; `base_ns` is what it takes now, profiled."""

    base_ns: int | None = None
    predicted_ns: int | None = None
    low_ns: int | None = None
    high_ns: int | None = None
    reason: str | None = None


def perfect_ranks(connection: Connection, run_id: str, steps: Sequence[Step]) -> Balance:
    """The steps of a phase, of all ranks, if no rank waited for another."""
    by_id = {step.step_id: step for step in steps if not step.is_warm_up}
    places: dict[tuple[int, int], list[tuple[int, int]]] = {}
    ranks: set[int] = set()
    for one in queries.rank_steps(connection, run_id):
        step, wait = by_id.get(one.step_id), waits_of(one)
        if step is None or wait is None:
            continue
        alone = max(one.elapsed_ns - one.unrecorded_ns - wait, _host_ns(step))
        recorded = one.elapsed_ns - one.unrecorded_ns
        places.setdefault((one.step_index, one.repetition), []).append((recorded, alone))
        ranks.add(one.rank)
    whole = [own for own in places.values() if len(own) == len(ranks)]
    if len(ranks) < 2 or not whole:
        return Balance(reason="no waits between ranks are known of these steps")
    alone = [[time for _, time in own] for own in whole]
    return Balance(
        base_ns=median_low([max(time for time, _ in own) for own in whole]),
        predicted_ns=median_low([sum(own) // len(own) for own in alone]),
        low_ns=median_low([min(own) for own in alone]),
        high_ns=median_low([max(own) for own in alone]),
        reason="work shared evenly; bounds: the fastest rank's step without waits, the slowest's",
    )


def async_schedule(connection: Connection, run_id: str, steps: Sequence[Step]) -> Balance:
    """The period of the steps of a phase if the host prepared the next one meanwhile."""
    periods = queries.step_periods(connection, run_id)
    found: list[tuple[int, int, int]] = []
    for step in steps:
        if step.is_warm_up or step.device_busy_ns is None or step.step_id not in periods:
            continue
        period, between = periods[step.step_id]
        host, device = _host_ns(step), step.device_busy_ns
        if between < 0:
            return Balance(reason="the steps overlap already on the host")
        found.append((period, max(host + between, device), max(host, device)))
    if not found:
        return Balance(reason="no step is followed by another, or the device was not recorded")
    base, predicted, low = (median_low(column) for column in zip(*found, strict=True))
    return Balance(
        base_ns=base,
        predicted_ns=min(predicted, base),
        low_ns=min(low, base),
        high_ns=base,
        reason="of the time from step to step (profiled), what lies between them included",
    )


def _host_ns(step: Step) -> int:
    """What the step's host needs when it waits for nothing."""
    waits = (step.ledger.get(account) for account in ("wait", "copy_wait"))
    return step.wall_ns - sum(time.ns for time in waits if time)
