"""How a trace was recorded: what the profiler cost, what was cut off, what stands twice."""

from __future__ import annotations

import numpy as np

from analyzer.attribution.evidence.check import FIGURES, Seen, counted
from analyzer.attribution.evidence.material import KERNEL, Material

# The profiler's part of the time, and of a step, from which on its costs are the larger part.
MOST_OVERHEAD, MOST_INFLATION = 0.5, 3.0
# Steps that belong together have so many launches at least, by their median.
WHOLE_STEP, FEWEST_STEPS = 0.5, 3
EDGE_NS = 1_000
_DAMAGE = ("truncated", "dropped_event", "no_time", "trailing_data", "metadata_after")
_REPAIRS = (
    "bad_utf8",
    "backslashes",
    "control_characters",
    "nonfinite",
    "trailing_comma",
    "odd_value",
)


def profiler_cost(m: Material) -> Seen:
    """What the profiler added to the host's work."""
    unread, whole = m.linked.unread, m.linked.whole
    wall = max(whole.end - whole.start, 1)
    share = unread.overhead_ns / wall
    stacks = m.linked.trace.counts
    functions = sum(n for (ph, cat), n in stacks.items() if ph == "X" and cat == "python_function")
    parts: list[str] = []
    if m.inflation and m.inflation >= MOST_INFLATION:
        parts.append(f"a step took {m.inflation:.1f} times as long under the profiler")
    if share >= MOST_OVERHEAD:
        parts.append(
            f"the profiler itself took {unread.overhead_ns / 1e6:,.2f} ms of {wall / 1e6:,.2f} ms"
        )
    is_dear = bool(parts)
    if functions:
        parts.append(f"{counted(functions, 'Python function')} were recorded with stacks")
    if not parts or not (is_dear or m.inflation is None):
        return Seen(functions, None, "; ".join(parts), share=share)
    return Seen(
        max(functions, 1),
        None,
        "; ".join(parts),
        at_most=("host_cost", "host_time", "step_time", "device_idle"),
        not_judged=("hdbi",) if is_dear else (),
        share=share,
        is_unknown=not is_dear,
        note=None if is_dear else "By how much is unknown: no step was timed without the profiler.",
    )


def truncated(m: Material) -> Seen:
    """Whether the file is whole."""
    damage = m.finding(*_DAMAGE)
    mended = m.finding(*_REPAIRS)
    found = "; ".join(finding.message for finding in damage or mended)
    if not damage:
        note = "What was mended is kept, and touches no figure." if mended else None
        return Seen(sum(f.count for f in mended), None, found, note=note)
    at_least = ("device_time", "launches")
    rest = tuple(name for name in FIGURES if name not in at_least)
    return Seen(sum(f.count for f in damage), None, found, at_least=at_least, not_judged=rest)


def cut_steps(m: Material) -> Seen:
    """Steps that the recording's begin or end cut off."""
    steps, window = m.linked.steps, m.linked.unread.window
    if m.linked.step_source.name in ("trace", "repetition"):
        return Seen(0, len(steps), "")
    cut = {
        number
        for number, step in enumerate(steps)
        if window and (step.start <= window[0] + EDGE_NS or step.end >= window[1] - EDGE_NS)
    } | _short_ends(m)
    if not cut:
        return Seen(0, len(steps), "")
    names = ", ".join(steps[number].name for number in sorted(cut)[:3])
    found = (
        f"{len(cut):,} of {counted(len(steps), 'step')} ({names}) "
        f"{'reach' if len(cut) > 1 else 'reaches'} beyond what was recorded"
    )
    return Seen(
        len(cut), len(steps), found, not_judged=("step_time", "host_time", "hdbi", "device_idle")
    )


def _short_ends(m: Material) -> set[int]:
    """The first and last step, if they have few of the launches that the others have."""
    steps = m.linked.steps
    if len(steps) < FEWEST_STEPS + 1 or m.linked.step_source.name != "profiler":
        return set()
    calls = m.linked.calls
    launches = m.executed & (calls.kind >= KERNEL) & (calls.step >= 0)
    counts = np.bincount(calls.step[launches], minlength=len(steps))
    least = float(np.median(counts)) * WHOLE_STEP
    return {number for number in (0, len(steps) - 1) if counts[number] < least}


def duplicates(m: Material) -> Seen:
    """Events that stand twice."""
    twice = m.linked.unread.twice
    return Seen(
        twice,
        m.linked.trace.events,
        f"{counted(twice, 'event')} stand twice, with the same times, ids and names"
        if twice
        else "",
        at_least=("launches", "device_time") if twice else (),
        note="Each counts once; what truly happened twice at one time counts once too."
        if twice
        else None,
    )


def several_traces(m: Material) -> Seen:
    """Whether the file holds one recording."""
    several = m.finding("several_documents")
    if not several:
        return Seen(0, 1, "")
    return Seen(
        1,
        1,
        f"the file holds {several[0].count} traces, one after the other",
        not_judged=("hdbi", "device_idle", "step_time", "host_time"),
        note="Sums add up all of them; steps are each one's own.",
    )
