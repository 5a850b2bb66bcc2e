"""A gate for somebody's CI: a condition on a figure of a run, judged against the base's."""

from __future__ import annotations

import operator
import re
from collections.abc import Sequence
from dataclasses import fields

from analyzer.attribution import classification
from analyzer.errors import AnalyzerError
from analyzer.queries.costs import AccountTime, Costs, Totals
from analyzer.queries.records import Latency
from analyzer.reports.evidence import AT_LEAST, AT_MOST, NOT_JUDGED, bound_of
from analyzer.reports.records import (
    ComparedRun,
    Comparison,
    Gate,
    GatedComparison,
    Pair,
    PhaseMeans,
)

_CONDITION = re.compile(
    r"\s*([\w.]+)\s*(<=|>=|<|>)\s*([+-]?)\s*([\d.]+(?:[eE][+-]?\d+)?)\s*(%?)\s*"
)
SLOWER = "slower"  # the condition that weighs the noise
_OPERATORS = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}
_SHOWN = {AT_LEAST: " what is shown", AT_MOST: " what is shown", NOT_JUDGED: ""}
_LATENCIES = ("ttft", "tpot", "itl", "prefill_step", "decode_step")


def _names(record: type[Costs] | type[Totals] | type[AccountTime] | type[Latency]) -> list[str]:
    return [field.name for field in fields(record)]


def metric(run: ComparedRun, name: str) -> float | None:
    """A figure of a run by its name: per step, a ledger account, HDBI, or a latency percentile.

    Names: `elapsed_ns`, `orchestration_ns`, `kernels`, ... (mean of a step); `hdbi`, `hdbi_busy`;
    `phases.decode.elapsed_ns`, `phases.decode.median_orchestration_ns`; `totals.kernels`
    (everything recorded); `ledger.framework.ns`, `ledger.framework.exposed_ns`;
    `latency.tpot.p50_ns`.

    Raises:
        AnalyzerError: There is no metric of that name.
    """
    if name in ("hdbi", "hdbi_busy"):
        return getattr(run, name)
    if name in _names(Costs):
        return getattr(run.per_step, name)
    match name.split("."):
        case ["totals", key] if key in _names(Totals) and key != "floor_source":
            return getattr(run.totals, key)
        case ["phases", phase, key] if key in _names(PhaseMeans):
            return getattr(run.phases.get(phase), key, None)
        case ["ledger", account, key] if account in classification.ACCOUNTS and key in _names(
            AccountTime
        ):
            return getattr(run.ledger.get(account), key, None)
        case ["latency", which, key] if which in _LATENCIES:
            known = key in _names(Latency)
            return getattr((run.latency or {}).get(which), key, None) if known else None
        case _:
            pass
    known = ", ".join(
        [
            *_names(Costs),
            "hdbi",
            "hdbi_busy",
            "totals.KEY",
            "phases.PHASE.KEY",
            "ledger.ACCOUNT.ns",
            "ledger.ACCOUNT.exposed_ns",
            "latency.tpot.p50_ns",
        ]
    )
    raise AnalyzerError(f"there is no metric {name!r}; there are: {known}.")


def judge(condition: str, base: ComparedRun, other: ComparedRun) -> Gate:
    """Judge `METRIC > +5%` (change against the base) or `METRIC > 300` (the other run's value).

    A gate on a figure that the trace cannot support is not judged.

    Raises:
        AnalyzerError: The condition cannot be read, or the metric is unknown in a run: a gate that
            cannot judge must not pass.
    """
    match = _CONDITION.fullmatch(condition)
    if not match:
        raise AnalyzerError(
            f"{condition!r} is no condition; write METRIC > +5% or METRIC > 300, for instance "
            '--fail-if "orchestration_ns > +5%".'
        )
    name, sign, minus, number, percent = match.groups()
    limit = float(number) * (-1 if minus == "-" else 1)
    before, after = metric(base, name), metric(other, name)
    for run in (base, other) if percent else (other,):
        bound = bound_of(run.evidence, name)
        if bound:
            reason = f"{name} of {run.name} is {bound.kind}{_SHOWN[bound.kind]}: {bound.reason}"
            return Gate(other.name, condition, before, after, failed=False, not_judged=reason)
    if after is None or (percent and before is None):
        missing = other.name if after is None else base.name
        raise AnalyzerError(f"{name} is unknown in {missing}, so {condition!r} cannot be judged.")
    if percent:
        if before == 0 and after != 0:
            raise AnalyzerError(
                f"{name} is 0 in {base.name}, so a change in percent has no meaning."
            )
        value = (after / before - 1) * 100 if before else 0.0
    else:
        value = after
    failed = bool(_OPERATORS[sign](value, limit))
    return Gate(other.name, condition, before, after, failed, not_judged=None)


def _slower(other: ComparedRun, pair: Pair) -> Gate:
    """Judge `slower`: a phase's step became slower, by more than noise explains."""
    doubts = [phase for phase, time in pair.times.items() if time.outcome == NOT_JUDGED]
    slower = [time for time in pair.times.values() if time.outcome == "slower"]
    worst = max(slower or pair.times.values(), key=lambda t: t.relative or 0.0, default=None)
    why = None
    if not slower and (doubts or worst is None):
        why = pair.verdict
    return Gate(
        other.name,
        SLOWER,
        worst.before_ns if worst else None,
        worst.after_ns if worst else None,
        failed=bool(slower),
        not_judged=why,
    )


def judge_all(comparison: Comparison, conditions: Sequence[str]) -> GatedComparison:
    """Judge each condition for each run against the first.

    Raises:
        AnalyzerError: As `judge`.
    """
    base, *others = comparison.runs
    pairs = zip(others, comparison.pairs, strict=True)
    gates = [
        _slower(other, pair) if condition.strip() == SLOWER else judge(condition, base, other)
        for other, pair in pairs
        for condition in conditions
    ]
    return GatedComparison(**vars(comparison), gates=gates)
