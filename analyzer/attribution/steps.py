"""The steps of a trace: what marks them, and which step each event belongs to.

In order of precedence: the collector's marks, annotations that were asked for, the marks of a
serving engine (`step_dialects.py`), torch.profiler's, repetition (`repetition.py`); else the whole
trace is one step. One source a trace.
"""

from __future__ import annotations

import fnmatch
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from analyzer.attribution import evidence, step_dialects
from analyzer.attribution.events import Annotations, LinkedTrace, Step, StepSource
from analyzer.attribution.intervals import Bools, Ints, Measure, Nest
from analyzer.attribution.repetition import find_repetition
from analyzer.attribution.step_dialects import CAPTURE, ENGINES, IDLE, StepMark
from analyzer.trace.events import Finding

COLLECTOR, ASKED, PROFILER, REPETITION, WHOLE = (
    "hostbound",
    "annotation",
    "profiler",
    "repetition",
    "trace",
)
SOURCES = (COLLECTOR, ASKED, *ENGINES, PROFILER, REPETITION, WHOLE)
# The phase of a step that no engine marked is the first of these words in its name.
PHASES = ("prefill", "decode", "capture")


def find_steps(linked: LinkedTrace, patterns: Sequence[str]) -> None:
    """Fill `linked.steps`, and say in `linked.step_source` what told them.

    Args:
        patterns: Shell patterns of the names that mark steps; may be empty.

    Adds findings: patterns that match nothing or are not followed, marks that are no steps.
    """
    annotations = linked.annotations
    own = _matching(annotations, ("hostbound.*",))
    asked = _matching(annotations, patterns) if patterns else []
    marks = _engine_marks(annotations)
    source = ASKED if asked else WHOLE
    if own:
        source = COLLECTOR
        chosen = [i for i in asked if i in set(own)]
        if asked and not chosen:
            linked.trace.findings.append(evidence.found("own_marks_first", len(asked)))
        steps = [_step(annotations, i) for i in chosen or own]
    elif asked:
        steps = [_step(annotations, i) for i in asked]
    elif any(mark.is_step for mark in marks.values()):
        source, steps = _engine_steps(linked, annotations, marks)
    # A profiler that records an engine's capture of graphs counts a step of its own.
    elif any(mark.phase == CAPTURE for mark in marks.values()):
        steps = []
    elif profiled := _profiled(annotations):
        source, steps = PROFILER, [_step(annotations, i) for i in profiled]
    elif found := find_repetition(linked):
        linked.steps = found.steps
        linked.step_source = StepSource(REPETITION, confidence=found.confidence)
        steps = []
    else:
        steps = []
    if steps:
        linked.steps = _numbered(steps)
        linked.step_source = StepSource(source, confidence=1.0)
    elif not linked.steps:
        linked.steps = [linked.whole]
    if patterns and not asked:
        linked.trace.findings.append(_no_match(linked, annotations, patterns))
    _say_apart(linked, annotations, marks)


def _profiled(annotations: Annotations) -> list[int]:
    """The steps that a profiler was told of."""
    return np.flatnonzero(annotations.is_step).tolist() or _matching(
        annotations, ("ProfilerStep#*",)
    )


def _matching(annotations: Annotations, patterns: Sequence[str]) -> list[int]:
    """Which annotations have a name that matches a pattern."""
    names = set(filter(_matcher(patterns), set(annotations.names)))
    return [i for i, name in enumerate(annotations.names) if name in names]


def _step(annotations: Annotations, i: int, mark: StepMark | None = None) -> Step:
    name = annotations.names[i]
    return Step(
        name=name,
        phase=mark.phase if mark else _phase(name),
        index=0,
        start=int(annotations.start[i]),
        end=int(annotations.end[i]),
        thread=int(annotations.thread[i]),
        mark=mark,
    )


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


def _numbered(steps: list[Step]) -> list[Step]:
    """Steps in order of start, each with its number in its phase."""
    steps = sorted(steps, key=lambda step: step.start)
    counter: Counter[str] = Counter()
    for step in steps:
        step.index = counter[step.phase]
        counter[step.phase] += 1
    return steps


def _engine_marks(annotations: Annotations) -> dict[int, StepMark]:
    """What the annotations say that an engine wrote, by place."""
    parsed = {name: step_dialects.parse(name) for name in set(annotations.names)}
    found = ((i, parsed[name]) for i, name in enumerate(annotations.names))
    return {i: mark for i, mark in found if mark}


def _engine_steps(
    linked: LinkedTrace, annotations: Annotations, marks: dict[int, StepMark]
) -> tuple[str, list[Step]]:
    """The engine whose marks are innermost, and its innermost marks as steps."""
    places = np.array(sorted(marks), np.int64)
    end = annotations.end[places]
    nest = Nest(annotations.thread[places], annotations.start[places], end, places)
    parent = nest.parents()
    parent[end > end[parent]] = -1  # it begins in the other but ends after it
    is_step = np.array([marks[i].is_step for i in places.tolist()])
    leaf = is_step & ~_holds(parent, is_step)
    engine = Counter(marks[i].engine for i in places[leaf].tolist()).most_common(1)[0][0]
    own = is_step & np.array([marks[i].engine == engine for i in places.tolist()])
    chosen = own & ~_holds(parent, own)
    steps: list[Step] = []
    for at in np.flatnonzero(chosen).tolist():
        step = _step(annotations, int(places[at]), marks[int(places[at])])
        step.outer = annotations.names[places[parent[at]]] if parent[at] >= 0 else None
        steps.append(step)
    outer = np.flatnonzero(is_step & ~chosen & _holds(parent, chosen))
    if len(outer):
        first = int(places[outer[0]])
        linked.trace.findings.append(
            evidence.found(
                "outer_marks",
                len(outer),
                engine=ENGINES[engine],
                first=annotations.names[first],
                first_ms=int(annotations.end[first] - annotations.start[first]) / 1e6,
            )
        )
    return engine, steps


def _holds(parent: Ints, inner: Bools) -> Bools:
    """Which marks enclose one of `inner`, at any depth."""
    holds = np.zeros(len(parent), bool)
    above = np.unique(parent[inner])
    while len(above := above[above >= 0]):
        above = above[~holds[above]]
        holds[above] = True
        above = np.unique(parent[above])
    return holds


def _no_match(linked: LinkedTrace, annotations: Annotations, patterns: Sequence[str]) -> Finding:
    seen = sorted({re.sub(r"\d+", "N", name) for name in annotations.names})[:8]
    has = f"It has: {', '.join(seen)}" if seen else "It has no annotations"
    asked = ", ".join(patterns)
    if linked.step_source.name == WHOLE:
        return evidence.found("no_step_annotation", patterns=asked, has=has)
    told = step_dialects.ENGINES.get(linked.step_source.name, linked.step_source.name)
    return evidence.found("other_step_annotation", patterns=asked, source=told, has=has)


def _say_apart(linked: LinkedTrace, annotations: Annotations, marks: dict[int, StepMark]) -> None:
    """Say how many marks are no steps: captures of graphs, engines without work."""
    for phase, code in ((CAPTURE, "capture_marks"), (IDLE, "idle_marks")):
        places = [i for i, mark in marks.items() if mark.phase == phase]
        if places:
            total = sum(int(annotations.end[i] - annotations.start[i]) for i in places)
            first = annotations.names[places[0]]
            linked.trace.findings.append(
                evidence.found(code, len(places), first=first, total_ms=total / 1e6)
            )


def measure_coverage(linked: LinkedTrace) -> None:
    """Set the share of launches that are in steps, and say so where no mark told the steps."""
    calls, source = linked.calls, linked.step_source
    executed = (calls.kind > 0) & ~calls.bad & (calls.capture < 0)
    if executed.any():
        source.coverage = float((calls.step[executed] >= 0).mean())
    if source.name == REPETITION:
        phases = Counter(step.phase for step in linked.steps)
        linked.trace.findings.append(
            evidence.found(
                "steps_by_repetition",
                len(linked.steps),
                phases=", ".join(f"{n} {phase}" for phase, n in phases.items()),
                coverage=f"{100 * (source.coverage or 0.0):.0f} %",
                warm_up=sum(step.is_warm_up for step in linked.steps),
            )
        )


@dataclass(frozen=True)
class Between:
    """From one step to the next on its thread.

    Attributes:
        period_ns: Start to start.
        ns: End to start: scheduling, sampling on the host, output; negative if steps overlap.
        exposed_ns: Of it, while no device was busy; None if no device was seen.
    """

    period_ns: int
    ns: int
    exposed_ns: int | None


def between_steps(linked: LinkedTrace, busy: Measure | None) -> list[Between | None]:
    """What lies between each step and the next one of its thread; None behind the last.

    Args:
        busy: Times at which any device is busy; None if none was seen.
    """
    found: list[Between | None] = [None] * len(linked.steps)
    if not len(linked.device.start):
        busy = None
    start = np.array([step.start for step in linked.steps], np.int64)
    end = np.array([step.end for step in linked.steps], np.int64)
    thread = np.array([step.thread for step in linked.steps], np.int64)
    order = np.argsort(thread, kind="stable")
    same = thread[order][1:] == thread[order][:-1]
    earlier, later = order[:-1][same], order[1:][same]
    low, high = end[earlier], np.maximum(start[later], end[earlier])
    exposed: list[int | None] = [None] * len(earlier)
    if busy is not None:
        exposed = (high - low - busy.within(low, high)).tolist()
    period, ns = start[later] - start[earlier], start[later] - low
    for at, i in enumerate(earlier.tolist()):
        found[i] = Between(int(period[at]), int(ns[at]), exposed[at])
    return found


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
    _set_threads(
        steps,
        (calls.step[launching], calls.thread[launching]),
        (calls.step, calls.thread),
        (ops.step, ops.thread),
    )
    if not any(step is linked.whole for step in steps):
        everything = (np.where(calls.bad, -1, 0), np.where(ops.bad, -1, 0))
        _set_threads(
            [linked.whole],
            (everything[0][launching], calls.thread[launching]),
            (everything[0], calls.thread),
            (everything[1], ops.thread),
        )


def _set_threads(steps: Sequence[Step], *events: tuple[Ints, Ints]) -> None:
    """Give each step the thread with most events of the first kind that it has any of.

    Args:
        events: Step (-1: none) and thread of each event, a pair for each kind.
    """
    missing = set(range(len(steps)))
    for step_of, thread in events:
        inside = step_of >= 0
        threads = int(thread.max(initial=0)) + 1
        pairs, times = np.unique(step_of[inside] * threads + thread[inside], return_counts=True)
        order = np.lexsort((-pairs, times))  # the last of a step is its busiest, the first of those
        busiest = dict(
            zip((pairs[order] // threads).tolist(), (pairs[order] % threads).tolist(), strict=True)
        )
        for i in missing & set(busiest):
            steps[i].thread = busiest[i]
        missing -= set(busiest)


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
