"""Two runs that were recorded interleaved: trace k of one lies beside trace k of the other.

What the host's speed did between the first trace and the last met both runs alike, and a pair of
traces lies within seconds. So the median of the pairs' ratios is the fairest figure that two
recordings give. Integer nanoseconds; ratios are of the second run to the first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import comb
from statistics import median

from analyzer.queries.costs import Step
from analyzer.queries.records import Run
from analyzer.reports.host_speed import phases_of
from analyzer.reports.records import PairedPhase, PairedRatios, RunFigures


@dataclass(frozen=True)
class _Trace:
    """A trace's median step of one phase; None where a step of it is unknown."""

    orchestration: float | None
    elapsed: float | None
    unprofiled: float | None


@dataclass(frozen=True)
class _Ratios:
    """Ratios of all pairs, None if one is unknown, their median and the bounds of that."""

    ratios: list[float] | None
    median: float | None
    interval: tuple[float, float] | None


def are_interleaved(a: Run, b: Run) -> bool:
    """Are two runs different variants of one group?"""
    one, two = (run.recorded.group if run.recorded else None for run in (a, b))
    if one is None or two is None:
        return False
    return one.id == two.id and one.variant != two.variant


def ratios(a: RunFigures, b: RunFigures) -> PairedRatios | None:
    """Compare trace by trace two runs that were recorded interleaved; None for others.

    Args:
        a, b: b is compared with a.
    """
    if not are_interleaved(a.run, b.run):
        return None
    sides = [(side.steps, _unprofiled(side.run)) for side in (a, b)]
    phases: dict[str, PairedPhase] = {}
    for phase in a.phases:
        pairs = list(zip(*(_by_trace(*side, phase) for side in sides), strict=False))
        if pairs:
            phases[phase] = _phase(pairs)
    return PairedRatios(phases, _sentence(a.run.name, b.run.name, phases))


def _phase(pairs: list[tuple[_Trace, _Trace]]) -> PairedPhase:
    orchestration = _ratios([(one.orchestration, two.orchestration) for one, two in pairs])
    elapsed = _ratios([(one.elapsed, two.elapsed) for one, two in pairs])
    unprofiled = _ratios([(one.unprofiled, two.unprofiled) for one, two in pairs])
    return PairedPhase(
        pairs=len(pairs),
        orchestration=orchestration.median,
        orchestration_interval=orchestration.interval,
        orchestration_ratios=orchestration.ratios,
        elapsed=elapsed.median,
        elapsed_interval=elapsed.interval,
        elapsed_ratios=elapsed.ratios,
        unprofiled=unprofiled.median,
        unprofiled_interval=unprofiled.interval,
        unprofiled_ratios=unprofiled.ratios,
    )


def interval(values: Sequence[float]) -> tuple[float, float] | None:
    """The least and the largest median that the values speak for; None if they are too few.

    Values k and n + 1 - k of n in their order, with the largest k for which the median lies between
    them at a confidence of 90 %, whatever the distribution (Conover, Practical Nonparametric
    Statistics, section 3.2). It takes them for independent.
    """
    count, rank, outside = len(values), 0, 1
    # 5 % on each side; in integers, as the number of ways has hundreds of digits.
    while rank < count and 20 * outside <= 2**count:
        rank += 1
        outside += comb(count, rank)
    if rank == 0:
        return None
    ordered = sorted(values)
    return ordered[rank - 1], ordered[-rank]


def _by_trace(
    steps: list[Step], unprofiled: list[dict[str, list[int]]], phase: str
) -> list[_Trace]:
    """The median step of a phase in each trace, in the order of recording."""
    traces: dict[int, list[Step]] = {}
    for step in steps:
        if step.phase == phase:
            traces.setdefault(step.trace_id, []).append(step)
    if len(unprofiled) != len(traces):
        unprofiled = [{} for _ in traces]
    return [
        _Trace(
            _median([step.orchestration_ns for step in own]),
            _median([step.elapsed_ns for step in own]),
            _median(before.get(phase, [])),
        )
        for (_, own), before in zip(sorted(traces.items()), unprofiled, strict=True)
    ]


def _unprofiled(run: Run) -> list[dict[str, list[int]]]:
    """The un-profiled steps just before each trace, by phase."""
    found: list[dict[str, list[int]]] = []
    manifest = run.recorded
    if manifest is None:
        return found
    for trace in manifest.traces:
        if trace.role == "trace":
            walls: dict[str, list[int]] = {}
            unprofiled = trace.unprofiled_step_wall_ns or []
            phases = phases_of(manifest, len(unprofiled))
            for wall, phase in zip(unprofiled, phases, strict=False):
                walls.setdefault(phase, []).append(wall)
            found.append(walls)
    return found


def _median(times: Sequence[float | None]) -> float | None:
    known = [time for time in times if time is not None]
    return median(known) if known and len(known) == len(times) else None


def _ratios(pairs: Sequence[tuple[float | None, float | None]]) -> _Ratios:
    known = [two / one for one, two in pairs if one and two is not None]  # a ratio to 0 is none
    found = known if len(known) == len(pairs) else []
    return _Ratios(found or None, median(found) if found else None, interval(found))


def _sentence(base: str, other: str, phases: dict[str, PairedPhase]) -> str:
    parts: list[str] = []
    for phase, entry in phases.items():
        first = (
            ("profiled step", entry.elapsed, entry.elapsed_interval)
            if entry.orchestration is None
            else ("T_Orchestration", entry.orchestration, entry.orchestration_interval)
        )
        second = ("un-profiled step beside it", entry.unprofiled, entry.unprofiled_interval)
        shown = [
            f"{what} {ratio:.3f}{_between(bounds)}"
            for what, ratio, bounds in (first, second)
            if ratio is not None
        ]
        parts += [f"{phase} {', '.join(shown)}"] if shown else []
    if not parts:
        return "Recorded interleaved, but no phase has times in both runs."
    if base == other:  # two recordings of the same thing, as a rule
        base, other = "the first run", "the second run"
    most = max(entry.pairs for entry in phases.values())
    has_bounds = any(
        entry.orchestration_interval or entry.elapsed_interval or entry.unprofiled_interval
        for entry in phases.values()
    )
    return (
        f"Recorded interleaved: ratio of {other} to {base}, the median of {most} "
        f"pair{'' if most == 1 else 's'} of traces, which the host's speed moves least: "
        f"{'; '.join(parts)}{'; in brackets 90 % confidence' if has_bounds else ''}."
    )


def _between(bounds: tuple[float, float] | None) -> str:
    return "" if bounds is None else f" ({bounds[0]:.3f} to {bounds[1]:.3f})"
