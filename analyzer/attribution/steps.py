"""The steps of a trace: what marks them, and which step each event belongs to.

Steps are marked by annotations whose names match a pattern. A trace without any is one step.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Sequence

import numpy as np

from analyzer.attribution import evidence
from analyzer.attribution.events import Annotations, LinkedTrace, Step
from analyzer.attribution.intervals import Ints, Nest

# Groups of annotation patterns by who writes them; the first group that matches anything is used.
STEP_PATTERNS = (
    ("hostbound.*",),  # the collector
    ("ProfilerStep#*",),  # torch.profiler with a schedule
)
# A step's phase is the first of these words in its name.
PHASES = ("prefill", "decode", "capture")


def find_steps(linked: LinkedTrace, annotations: Annotations, patterns: Sequence[str]) -> None:
    """Fill `linked.steps` from annotations; the whole trace is one step if none marks any.

    Args:
        patterns: Shell patterns of the names that mark steps; empty: those of STEP_PATTERNS.

    Adds a finding if `patterns` match nothing.
    """
    names = annotations.names
    for group in [tuple(patterns)] if patterns else STEP_PATTERNS:
        steps = _annotated_steps(annotations, group)
        if steps:
            linked.steps, linked.step_globs = steps, group
            return
    if patterns:
        seen = sorted({re.sub(r"\d+", "N", name) for name in names})[:8]
        has = f"It has: {', '.join(seen)}" if seen else "It has no annotations"
        linked.trace.findings.append(
            evidence.found("no_step_annotation", patterns=", ".join(patterns), has=has)
        )
    linked.steps.append(linked.whole)


def _annotated_steps(annotations: Annotations, patterns: Sequence[str]) -> list[Step]:
    """A step for each annotation that matches a pattern, in order of start."""
    is_marked = _matcher(patterns)
    found = [i for i, name in enumerate(annotations.names) if is_marked(name)]
    steps: list[Step] = []
    counter: dict[str, int] = {}
    for i in sorted(found, key=lambda i: int(annotations.start[i])):
        phase = _phase(annotations.names[i])
        index = counter.get(phase, 0)
        counter[phase] = index + 1
        start, end = int(annotations.start[i]), int(annotations.end[i])
        thread = int(annotations.thread[i])
        steps.append(Step(annotations.names[i], phase, index, start, end, thread))
    return steps


def _matcher(patterns: Sequence[str]) -> Callable[[str], bool]:
    """A test whether a name matches a shell pattern, or with its brackets taken as they stand.

    `step[DECODE bs=1]` is a name that a serving engine writes, and matches itself.
    """
    literal = [pattern.replace("[", "[[]") for pattern in patterns]
    compiled = [re.compile(fnmatch.translate(pattern)) for pattern in (*patterns, *literal)]
    return lambda name: any(pattern.match(name) for pattern in compiled)


def _phase(name: str) -> str:
    lowered = name.lower()
    return next((phase for phase in PHASES if phase in lowered), "step")


def assign_steps(linked: LinkedTrace) -> None:
    """Set the step of each op, call and device event, and the main thread of each step."""
    steps, ops, calls, device = linked.steps, linked.ops, linked.calls, linked.device
    if steps == [linked.whole]:  # closed: an event of no length may start at its end
        ops.step = np.where(ops.bad, -1, 0)
        calls.step = np.where(calls.bad, -1, 0)
    else:
        ops.step = np.where(ops.bad, -1, _step_at(steps, ops.thread, ops.start))
        calls.step = np.where(calls.bad, -1, _step_at(steps, calls.thread, calls.start))
    device.step = np.where(device.call >= 0, calls.step[device.call] if len(calls.step) else -1, -1)
    launching = calls.kind > 0
    for i, step in enumerate([*steps, linked.whole]):
        if step is linked.whole and i < len(steps):
            continue
        inside = (calls.step == i) if i < len(steps) else ~calls.bad
        for candidates in (
            calls.thread[inside & launching],
            calls.thread[inside],
            ops.thread[(ops.step == i) if i < len(steps) else ~ops.bad],
        ):
            if len(candidates):
                step.thread = int(np.bincount(candidates).argmax())
                break
    if steps == [linked.whole]:
        inside_any = calls.thread[launching & ~calls.bad]
        if len(inside_any):
            linked.whole.thread = int(np.bincount(inside_any).argmax())


def _step_at(steps: Sequence[Step], thread: Ints, time: Ints) -> Ints:
    """Index of the step that holds each time (the one that starts last); -1 outside.

    A thread with steps of its own has no other's; one without (autograd) is in whatever step of the
    process runs at the time.
    """
    if not steps:
        return np.full(len(time), -1, np.int64)
    start = np.array([s.start for s in steps], np.int64)
    end = np.array([s.end for s in steps], np.int64)
    marked = np.array([s.thread for s in steps], np.int64)
    number = np.arange(len(steps))
    anywhere = np.zeros(len(steps), np.int64)
    result = Nest(anywhere, start, end, number).innermost(np.zeros(len(time), np.int64), time)
    if len(np.unique(marked)) > 1:
        own = np.isin(thread, marked)
        result[own] = Nest(marked, start, end, number).innermost(thread[own], time[own])
    return result
