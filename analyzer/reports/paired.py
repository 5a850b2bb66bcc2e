"""Two runs that were recorded in turns: trace k of one beside trace k of the other.

What the host's speed did between the first trace and the last met both runs alike, and a pair of
traces lies within seconds. So the median of the pairs' ratios is the fairest figure that two
recordings give. Integer nanoseconds; ratios are of the second run to the first.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import comb
from statistics import median
from typing import Any

from analyzer.reports import host_speed
from schemas.run_directory import Partner

_TIMES = {
    "orchestration": "T_Orchestration",
    "elapsed": "profiled step",
    "unprofiled": "un-profiled step beside it",
}


def in_turns(a: dict[str, Any], b: dict[str, Any]) -> bool:
    """Does each of two runs (rows as of `queries.run`) say that it took turns with the other?"""
    return all(
        other.get("recording_id") in [partner.run_id for partner in _turns(run)]
        for run, other in ((a, b), (b, a))
    )


def _turns(run: dict[str, Any]) -> list[Partner]:
    manifest = host_speed.manifest_of(run)
    return [] if manifest is None or manifest.turns is None else manifest.turns.partners


def ratios(a: dict[str, Any], b: dict[str, Any]) -> dict[str, Any] | None:
    """Compare trace by trace two runs that were recorded in turns; None for others.

    Args:
        a, b: As of `report.figures`; b is compared with a.

    Keys: phases (by phase: pairs, the number of them; orchestration, elapsed and unprofiled, the
    medians of orchestration_ratios, elapsed_ratios and unprofiled_ratios, which hold for each pair
    of traces the ratio of their median steps, with orchestration_interval and so on as of
    `interval`; None where a run does not know it), sentence.
    """
    if not in_turns(a["run"], b["run"]):
        return None
    sides = [(value["steps"], _beside(value["run"])) for value in (a, b)]
    phases: dict[str, dict[str, Any]] = {}
    for phase in a["phases"]:
        pairs = list(zip(*(_by_trace(*side, phase) for side in sides), strict=False))
        if pairs:
            phases[phase] = {"pairs": len(pairs)}
            for key in _TIMES:
                found = _ratios(pairs, key)
                phases[phase][key] = median(found) if found else None
                phases[phase][f"{key}_interval"] = interval(found or [])
                phases[phase][f"{key}_ratios"] = found
    return {"phases": phases, "sentence": _sentence(a["run"]["name"], b["run"]["name"], phases)}


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
    steps: list[dict[str, Any]], beside: list[dict[str, list[int]]], phase: str
) -> list[dict[str, float | None]]:
    """The median step of a phase in each trace, in the order of recording, by keys of _TIMES."""
    traces: dict[int, list[dict[str, Any]]] = {}
    for step in steps:
        if step["phase"] == phase:
            traces.setdefault(step["trace_id"], []).append(step)
    if len(beside) != len(traces):
        beside = [{} for _ in traces]
    return [
        {
            "orchestration": _median([step["orchestration_ns"] for step in own]),
            "elapsed": _median([step["elapsed_ns"] for step in own]),
            "unprofiled": _median(unprofiled.get(phase, [])),
        }
        for (_, own), unprofiled in zip(sorted(traces.items()), beside, strict=True)
    ]


def _beside(run: dict[str, Any]) -> list[dict[str, list[int]]]:
    """The un-profiled steps just before each trace, by phase."""
    found: list[dict[str, list[int]]] = []
    manifest = host_speed.manifest_of(run)
    if manifest is None:
        return found
    for trace in manifest.traces:
        if trace.role == "trace":
            walls: dict[str, list[int]] = {}
            unprofiled = trace.unprofiled_step_wall_ns or []
            phases = host_speed.phases_of(manifest, len(unprofiled))
            for wall, phase in zip(unprofiled, phases, strict=False):
                walls.setdefault(phase, []).append(wall)
            found.append(walls)
    return found


def _median(times: Sequence[float | None]) -> float | None:
    known = [time for time in times if time is not None]
    return median(known) if known and len(known) == len(times) else None


def _ratios(
    pairs: list[tuple[dict[str, float | None], dict[str, float | None]]], key: str
) -> list[float] | None:
    times = [(one[key], two[key]) for one, two in pairs]
    known = [two / one for one, two in times if one and two is not None]  # a ratio to 0 is none
    return known if len(known) == len(pairs) else None


def _sentence(base: str, other: str, phases: dict[str, dict[str, Any]]) -> str:
    parts: list[str] = []
    for phase, entry in phases.items():
        first = "elapsed" if entry["orchestration"] is None else "orchestration"
        shown = [key for key in (first, "unprofiled") if entry[key] is not None]
        figures = [f"{_TIMES[key]} {entry[key]:.3f}{_between(entry, key)}" for key in shown]
        parts += [f"{phase} {', '.join(figures)}"] if figures else []
    if not parts:
        return "Recorded in turns, but no phase has times in both runs."
    if base == other:  # two recordings of the same thing, as a rule
        base, other = "the first run", "the second run"
    most = max(entry["pairs"] for entry in phases.values())
    has_bounds = any(entry[f"{key}_interval"] for entry in phases.values() for key in _TIMES)
    return (
        f"Recorded in turns: ratio of {other} to {base}, the median of {most} "
        f"pair{'' if most == 1 else 's'} of traces, which the host's speed moves least: "
        f"{'; '.join(parts)}{'; in brackets 90 % confidence' if has_bounds else ''}."
    )


def _between(entry: dict[str, Any], key: str) -> str:
    bounds = entry[f"{key}_interval"]
    return "" if bounds is None else f" ({bounds[0]:.3f} to {bounds[1]:.3f})"
