"""Two runs that were recorded in turns: trace k of one beside trace k of the other.

What the host's speed did between the first trace and the last met both runs alike, and a pair of
traces lies within seconds. So the median of the pairs' ratios is the fairest figure that two
recordings give. Integer nanoseconds; ratios are of the second run to the first.
"""

from __future__ import annotations

import json
from pathlib import Path
from statistics import median
from typing import Any

from schemas.run_directory import TurnsTaken, manifest_from_dict

# Of a ratio, in order: what is shown is the first that both runs know.
_TIMES = (("orchestration_ns", "T_Orchestration"), ("elapsed_ns", "profiled step"))


def in_turns(a: dict[str, Any], b: dict[str, Any]) -> bool:
    """Does each of two runs (rows as of `queries.run`) say that it took turns with the other?"""
    return all(
        other.get("recording_id") in [partner.run_id for partner in _turns(run)]
        for run, other in ((a, b), (b, a))
    )


def _turns(run: dict[str, Any]) -> list[Any]:
    if not run.get("manifest"):
        return []
    manifest = manifest_from_dict(json.loads(run["manifest"]), Path(run["name"]))
    return manifest.turns.partners if isinstance(manifest.turns, TurnsTaken) else []


def ratios(a: dict[str, Any], b: dict[str, Any]) -> dict[str, Any] | None:
    """Compare trace by trace two runs that were recorded in turns; None for others.

    Args:
        a, b: As of `report.figures`; b is compared with a.

    Keys: phases (by phase: pairs, the number of them; orchestration and elapsed, the medians of
    orchestration_ratios and elapsed_ratios, which hold for each pair of traces the ratio of their
    median steps; None where a run does not know it), sentence.
    """
    if not in_turns(a["run"], b["run"]):
        return None
    phases: dict[str, dict[str, Any]] = {}
    for phase in a["phases"]:
        sides = [_by_trace(value["steps"], phase) for value in (a, b)]
        pairs = list(zip(*sides, strict=False))
        if pairs:
            entry: dict[str, Any] = {"pairs": len(pairs)}
            for key, _ in _TIMES:
                found, name = _ratios(pairs, key), key.removesuffix("_ns")
                entry |= {name: median(found) if found else None, f"{name}_ratios": found}
            phases[phase] = entry
    return {"phases": phases, "sentence": _sentence(a["run"]["name"], b["run"]["name"], phases)}


def _by_trace(steps: list[dict[str, Any]], phase: str) -> list[dict[str, float | None]]:
    """The median step of a phase in each trace, in the order of recording."""
    found: dict[int, list[dict[str, Any]]] = {}
    for step in steps:
        if step["phase"] == phase:
            found.setdefault(step["trace_id"], []).append(step)
    return [
        {
            key: None if any(s[key] is None for s in own) else median(s[key] for s in own)
            for key, _ in _TIMES
        }
        for _, own in sorted(found.items())
    ]


def _ratios(
    pairs: list[tuple[dict[str, float | None], dict[str, float | None]]], key: str
) -> list[float] | None:
    times = [(one[key], two[key]) for one, two in pairs]
    known = [two / one for one, two in times if one and two is not None]  # a ratio to 0 is none
    return known if len(known) == len(pairs) else None


def _sentence(base: str, other: str, phases: dict[str, dict[str, Any]]) -> str:
    parts: list[str] = []
    for phase, entry in phases.items():
        shown = [(entry[key.removesuffix("_ns")], name) for key, name in _TIMES]
        ratio, name = next(((r, n) for r, n in shown if r is not None), (None, ""))
        if ratio is not None:
            parts.append(f"{phase} {name} {ratio:.3f}")
    most = max((entry["pairs"] for entry in phases.values()), default=0)
    if not parts:
        return "Recorded in turns, but no phase has times in both runs."
    if base == other:  # two recordings of the same thing, as a rule
        base, other = "the first run", "the second run"
    plural = "" if most == 1 else "s"
    return (
        f"Recorded in turns: ratio of {other} to {base}, the median of {most} pair{plural} of "
        f"traces, which the host's speed moves least: {', '.join(parts)}."
    )
