"""How fast the host was while a run was recorded, and what that means for a comparison.

The collector times a fixed piece of work beside each trace and has one request without profiler
before it; both are in the manifest, which the store keeps whole. Integer nanoseconds: more is
slower. Unknown, as in every run of another recorder, is None.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any, cast

from analyzer.queries.records import Run
from analyzer.reports.records import HostSpeed, UnprofiledStep
from schemas.manifest import Manifest

# Two speeds farther apart than this make host times incomparable.
ALIKE = 0.03
# Interleaved runs met every speed of the host, so only medians that really differ are warned of
# (docs/decisions/0007).
ALIKE_INTERLEAVED = 0.10


def speed_of(run: Run) -> HostSpeed | None:
    """What the manifest of a run says of its host's speed; None if nothing."""
    manifest = run.recorded
    if manifest is None or manifest.host_speed is None:
        return None
    speed, speeds = manifest.host_speed, manifest.trace_speeds_ns()
    return HostSpeed(
        definition=speed.definition,
        traces_ns=_median(speeds),
        trace_low_ns=min(speeds, default=None),
        trace_high_ns=max(speeds, default=None),
        latency_ns=_median(speed.latency_ns),
        floor_ns=_median(speed.floor_ns or []),
        beside=_inflation(manifest),
    )


def _median(values: Sequence[int]) -> int | None:
    return round(median(values)) if values else None


def _inflation(manifest: Manifest) -> dict[str, UnprofiledStep]:
    """By phase: the un-profiled step before the traces, and how much longer profiled ones took."""
    found: dict[str, list[tuple[int, int]]] = {}
    for trace in manifest.traces:
        pairs = list(zip(trace.step_wall_ns, trace.unprofiled_step_wall_ns or (), strict=False))
        if trace.role == "trace":
            for phase, pair in zip(phases_of(manifest, len(pairs)), pairs, strict=False):
                found.setdefault(phase, []).append(pair)
    return {
        phase: UnprofiledStep(
            _median([unprofiled for _, unprofiled in pairs]),
            median(profiled / unprofiled for profiled, unprofiled in pairs),
        )
        for phase, pairs in found.items()
    }


def phases_of(manifest: Manifest, steps: int) -> list[str]:
    """The phase of each step of a trace; none if the plan in the manifest has other steps."""
    result: list[str] = []
    for part in manifest.phases:
        plan = cast("dict[str, Any]", part if isinstance(part, dict) else {})
        phase, count = plan.get("phase"), plan.get("steps")
        if not isinstance(phase, str) or type(count) is not int or not 0 <= count <= steps:
            return []
        result += [phase] * count
    return result if len(result) == steps else []


def _python(run: Run) -> list[str]:
    """Major and minor version; a calibration in Python depends on it."""
    return run.library_versions.get("python", "").split(".")[:2]


def differences(a: Run, b: Run, *, interleaved: bool = False) -> list[str]:
    """Lines on what a host of another speed has to do with the differences of two runs.

    Args:
        a, b: b is the one that is compared with a.
        interleaved: They are variants of one group, and have ratios of pairs.
    """
    one, two = speed_of(a), speed_of(b)
    if one is None or two is None or one.definition != two.definition:
        return []
    if a.cpu != b.cpu or _python(a) != _python(b):
        return []
    base, other = a.name, b.name
    if base == other:  # two recordings of the same thing, as a rule
        base, other = "the first run", "the second run"
    found: list[str] = []
    for before, after, during, times, estimate in (
        (one.traces_ns, two.traces_ns, "the traces", "profiled host times", _estimate(one, two)),
        (one.latency_ns, two.latency_ns, "the latency requests", "un-profiled step times", None),
    ):
        if before is None or after is None:
            continue
        ratio = max(before, after) / min(before, after)
        if ratio - 1 <= (ALIKE_INTERLEAVED if interleaved else ALIKE):
            continue
        line = (
            f"the host ran {ratio:.2f} times {'slower' if after > before else 'faster'} during "
            f"{during} of {other} than of {base}: differences of {times} below that are not "
            f"{other}'s doing"
        )
        if estimate is not None:
            line += (
                ". The ratios of pairs of traces, above, bear that best"
                if interleaved
                else estimate
            )
        found.append(line)
    return found


def _estimate(one: HostSpeed, two: HostSpeed) -> str:
    """Profiled over un-profiled steps, which a change of speed moves far less than either."""
    parts = [
        f"{phase} {one.beside[phase].inflation:.2f} and {entry.inflation:.2f}"
        for phase, entry in two.beside.items()
        if phase in one.beside
    ]
    if not parts:
        return ""
    return (
        ". Estimate free of that: a profiled step over the un-profiled one just before it, "
        + "; ".join(parts)
    )
