"""The steps of the best cut: their phases, their windows on the host, and which are warm-up."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np

from analyzer.attribution.events import LinkedTrace, Step
from analyzer.attribution.repetition.candidates import candidates
from analyzer.attribution.repetition.cuts import BY_WAIT, Cut, cut_at, same_size
from analyzer.attribution.repetition.sequence import LaunchSequence, launch_sequence

SLOWER_BY = 3  # a first repetition this many median spreads above the median is a warm-up


@dataclass(frozen=True)
class Found:
    """Steps found by repetition.

    Attributes:
        steps: In order of start.
        confidence: Share of launches that the repetitions have in common, from 0 to 1.
    """

    steps: list[Step]
    confidence: float


def find_repetition(linked: LinkedTrace) -> Found | None:
    """Cut a trace where its launches repeat; None if they do not.

    Args:
        linked: With links and captures; steps are not needed.
    """
    sequence = launch_sequence(linked)
    if sequence is None:
        return None
    cuts = [cut for anchors in candidates(sequence.token) if (cut := cut_at(sequence, anchors))]
    if not cuts:
        return None
    most = max(cut.covered for cut in cuts)
    # Of cuts that explain as much, one whose repetitions stand between pauses; the finest of them.
    best = max(
        (cut for cut in cuts if cut.covered > most - 0.01),
        key=lambda cut: (cut.pause, len(cut.first) * (1 if cut.pause == BY_WAIT else -1)),
    )
    return Found(_steps(linked, sequence, best), best.alike)


def _steps(linked: LinkedTrace, sequence: LaunchSequence, cut: Cut) -> list[Step]:
    stretches = list(zip(cut.first.tolist(), cut.last.tolist(), strict=True))
    # A prefill of a small model may launch the same kernels, larger.
    same = [same_size(sequence, stretch, cut.reference) for stretch in stretches]
    if 2 * sum(same) <= len(same):
        same = [True] * len(same)
    prefills = cut.prefills + [s for s, is_same in zip(stretches, same, strict=True) if not is_same]
    word = "decode" if prefills else "step"
    phases = [(*stretch, "prefill") for stretch in prefills]
    phases += [(*s, word) for s, is_same in zip(stretches, same, strict=True) if is_same]
    if cut.warm_up:
        phases.append((*cut.warm_up, word))
    counter: Counter[str] = Counter()
    steps: list[Step] = []
    for phase, start, end in _windows(linked, sequence, sorted(phases)):
        index = counter[phase]
        counter[phase] += 1
        steps.append(Step(f"{phase}#{index}", phase, index, start, end, sequence.thread))
    steps[0].is_warm_up = cut.warm_up is not None
    _name_warm_up([step for step in steps if step.phase == word and not step.is_warm_up])
    return steps


def _windows(
    linked: LinkedTrace, sequence: LaunchSequence, stretches: list[tuple[int, int, str]]
) -> list[tuple[str, int, int]]:
    """Host times of stretches: each from the end of the one before it, if nothing is between."""
    ops, outermost = linked.ops, linked.calls.outermost[sequence.call]
    windows: list[tuple[str, int, int]] = []
    for number, (begin, end, phase) in enumerate(stretches):
        first, last = int(outermost[begin]), int(outermost[end - 1])
        start = int(sequence.start[begin])
        if first >= 0 and (begin == 0 or ops.start[first] >= sequence.end[begin - 1]):
            start = int(ops.start[first])
        stop = int(sequence.end[end - 1])
        if last >= 0 and (end == len(outermost) or ops.end[last] <= sequence.start[end]):
            stop = max(stop, int(ops.end[last]))
        if number and stretches[number - 1][1] == begin:
            start = windows[-1][2]
        windows.append((phase, start, stop))
    return windows


def _name_warm_up(steps: list[Step]) -> None:
    """Mark first steps that are slower than the rest; never more than half of them."""
    times = np.array([step.end - step.start for step in steps], float)
    middle = float(np.median(times))
    spread = float(np.median(np.abs(times - middle)))
    for step, time in zip(steps[: len(steps) // 2], times.tolist(), strict=False):
        if time <= middle + SLOWER_BY * max(spread, middle / 100):
            return
        step.is_warm_up = True
