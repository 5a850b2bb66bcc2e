"""Cuts of a sequence at a candidate's places: which stretches repeat, and whether they are steps.

Layers repeat too: a cut that leaves launches unexplained before and behind its repetitions has cut
parts of a step, unless the host pauses between them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from analyzer.attribution.intervals import Bools, Ints
from analyzer.attribution.repetition.sequence import FEWEST_REPETITIONS, LaunchSequence

LEAST_COVERAGE = 0.8  # of the launches between the first repetition and the last
ALIKE = 0.9  # share of launches that two repetitions have in common
SAME_WORK = 0.6  # share of ops that a repetition and its prefill have in common
FEWEST_AS_OFTEN = 5  # names of ops that both call as often, if they have fewer ops in common
NOT, BY_GAP, BY_WAIT = range(3)
_MOST_WAITS = 3  # synchronising calls of a step that stands between pauses
_GAP = 3  # a pause is this much longer than any other gap of the step
_BASE = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True)
class Cut:
    """One way to cut the sequence.

    Attributes:
        first, last: Each repetition is [first, last) of the sequence.
        prefills: The same of what stands before a run of repetitions and does their work at
            another size.
        warm_up: What stands before all and does their work at their size, with more launches.
        reference: A typical repetition.
        alike: Mean share of launches that the repetitions have in common with it.
        covered: Share of the sequence in repetitions and prefills.
        pause: How the host pauses between repetitions: BY_WAIT, BY_GAP or NOT.
    """

    first: Ints
    last: Ints
    prefills: list[tuple[int, int]]
    warm_up: tuple[int, int] | None
    reference: tuple[int, int]
    alike: float
    covered: float
    pause: int


def cut_at(sequence: LaunchSequence, anchors: Ints) -> Cut | None:
    """Cut at the anchors, moved to where the host pauses; None if that gives no steps."""
    lengths = np.diff(anchors)
    typical = _typical(anchors, lengths)
    if typical is None:
        return None
    a = int(anchors[typical])
    length = int(lengths[typical])
    launches = int(sequence.launch[a : a + length].sum())
    if launches < 2 and not sequence.graph[a : a + length].any():
        return None
    same = anchors[:-1][lengths == length]
    offset, pause = _pause(sequence, same, length)
    n = len(sequence.token)
    borders = anchors + offset
    borders = np.concatenate(([borders[0] - length], borders, [borders[-1] + length]))
    slack = max(length // 20, 1)
    borders = borders[(borders >= -slack) & (borders <= n + slack)].clip(0, n)
    reference = (a, a + length)
    shares = _shares(sequence.token, borders, reference)
    good = shares >= ALIKE
    if int(good.sum()) < FEWEST_REPETITIONS:
        return None
    first, last = borders[:-1][good], borders[1:][good]
    between = int(sequence.launch[first[0] : last[-1]].sum())
    inside = _launches(sequence, first, last)
    if int(inside.sum()) < LEAST_COVERAGE * between:
        return None
    cut = Cut(first, last, [], None, reference, float(shares[good].mean()), 0.0, pause)
    return _explained(sequence, cut)


def _typical(anchors: Ints, lengths: Ints) -> int | None:
    """Which stretch between anchors is as long as most others; None if too few are about as long.

    Repetitions that differ in length by more than ALIKE allows are not alike: most candidates end
    here.
    """
    if len(lengths) < FEWEST_REPETITIONS - 1:
        return None
    _, first, times = np.unique(lengths, return_index=True, return_counts=True)
    typical = int(first[times.argmax()])
    about = np.flatnonzero(_about(lengths, int(lengths[typical])))
    span = int(anchors[about[-1] + 1] - anchors[about[0]])
    return typical if int(lengths[about].sum()) >= LEAST_COVERAGE**2 * span else None


def _about(lengths: Ints, length: int) -> Bools:
    return (lengths >= ALIKE * length) & (lengths <= length / ALIKE)


def _pause(sequence: LaunchSequence, same: Ints, length: int) -> tuple[int, int]:
    """How far behind the anchor the host pauses, and how."""
    places = same[:, None] + np.arange(length)[None, :]
    places = places[: max(1, 200_000 // length)]
    before = places - 1
    held = before >= 0
    gap = np.where(held, sequence.start[places] - sequence.end[before], 0)
    gap = np.median(gap, axis=0)
    waited = (held & ~sequence.launch[before]).mean(axis=0) > 0.5
    if 0 < int(waited.sum()) <= _MOST_WAITS:
        return int(np.flatnonzero(waited)[gap[waited].argmax()]), BY_WAIT
    longest = int(gap.argmax())
    others = np.delete(gap, longest)
    pauses = bool(len(others)) and bool(gap[longest] > _GAP * max(others.max(), 1.0))
    return longest, BY_GAP if pauses else NOT


def _shares(token: Ints, borders: Ints, reference: tuple[int, int]) -> np.ndarray:
    """Share of tokens that each stretch between borders has in common with the reference."""
    low, high = reference
    lengths = np.diff(borders)
    # Most are the same tokens; only the others are counted token by token.
    weight = token.astype(np.uint64) * _BASE
    weight = np.concatenate(([np.uint64(0)], np.cumsum(weight ^ (weight >> np.uint64(31)))))
    sums = weight[borders[1:]] - weight[borders[:-1]]
    same = (lengths == high - low) & (sums == weight[[high]] - weight[[low]])
    shares = same.astype(float)
    others = np.flatnonzero(~same & _about(lengths, high - low))
    if len(others):
        counted = np.isin(np.arange(len(lengths)), others)
        places = borders[0] + np.flatnonzero(np.repeat(counted, lengths))
        of_stretch = np.repeat(np.arange(len(others)), lengths[others])
        wanted = np.bincount(token[low:high], minlength=int(token.max()) + 1)
        pairs, times = np.unique(of_stretch * len(wanted) + token[places], return_counts=True)
        common = np.minimum(times, wanted[pairs % len(wanted)])
        shared = np.bincount(pairs // len(wanted), weights=common, minlength=len(others))
        shares[others] = shared / np.maximum(lengths[others], high - low)
    return shares


def _launches(sequence: LaunchSequence, first: Ints, last: Ints) -> Ints:
    before = np.concatenate(([0], np.cumsum(sequence.launch)))
    return before[last] - before[first]


def _explained(sequence: LaunchSequence, cut: Cut) -> Cut | None:
    """The cut with its prefills; None if what it leaves out says that it cut parts of a step."""
    n = len(sequence.token)
    begins = np.concatenate(([0], cut.last))
    ends = np.concatenate((cut.first, [n]))
    prefills: list[tuple[int, int]] = []
    warm_up: tuple[int, int] | None = None
    unexplained = [0, 0, 0]  # launches before, between and behind the repetitions
    for i, (begin, end) in enumerate(zip(begins.tolist(), ends.tolist(), strict=True)):
        if end <= begin:
            continue
        before = i < len(cut.first)  # repetitions, and with their work
        if before and _does_same_work(sequence, cut, begin, end):
            if not same_size(sequence, (begin, end), cut.reference):
                prefills.append((begin, end))
                continue
            if i == 0 and cut.pause == BY_WAIT:
                warm_up = (begin, end)
                continue
            if sequence.launch[begin:end].sum() > 2 * sequence.launch[slice(*cut.reference)].sum():
                prefills.append((begin, end))  # small kernels of one size, but far more of them
                continue
        if not _is_part(sequence.token, cut, begin, end):
            side = 0 if i == 0 else 2 if i == len(cut.first) else 1
            unexplained[side] += int(sequence.launch[begin:end].sum())
    few = int(sequence.launch[slice(*cut.reference)].sum()) / 20
    left_out = [number > few for number in unexplained]
    many = left_out[1] or (left_out[0] and left_out[2])
    if (many or (any(left_out) and not cut.pause)) and not _waits_outside_ops(sequence, cut):
        return None
    inside = int((cut.last - cut.first).sum()) + sum(end - begin for begin, end in prefills)
    return replace(cut, prefills=prefills, warm_up=warm_up, covered=inside / n)


def _waits_outside_ops(sequence: LaunchSequence, cut: Cut) -> bool:
    """Whether the program itself synchronises between repetitions, not an op on its way."""
    before = cut.first[cut.first > 0] - 1
    on_top = ~sequence.launch[before] & ~sequence.in_op[before]
    return bool(len(before)) and bool(on_top.mean() >= ALIKE)


def _is_part(token: Ints, cut: Cut, begin: int, end: int) -> bool:
    """Whether a stretch at either end of the sequence is a repetition that was cut off."""
    length = end - begin
    low, high = int(cut.first[0]), int(cut.last[0])
    if length >= high - low:
        return False
    like = token[high - length : high] if begin == 0 else token[low : low + length]
    return bool((token[begin:end] == like).mean() >= ALIKE)


def _does_same_work(sequence: LaunchSequence, cut: Cut, begin: int, end: int) -> bool:
    """Whether a stretch calls the ops of a repetition, at whatever size."""
    low, high = cut.reference
    kernels = int(sequence.kernels[low:high].sum())
    if sequence.graph[low:high].any() and not sequence.graph[begin:end].any():
        # Pieces of a step are graphs too; after a step the host waits.
        return cut.pause == BY_WAIT and int(sequence.kernels[begin:end].sum()) > kernels / 2
    names, of_place = np.unique(
        np.concatenate((sequence.op[low:high], sequence.op[begin:end])), return_inverse=True
    )
    wanted = np.bincount(of_place[: high - low], minlength=len(names))
    given = np.bincount(of_place[high - low :], minlength=len(names))
    if np.minimum(wanted, given).sum() >= SAME_WORK * max(high - low, end - begin):
        return True
    # Of a mixture of experts a prefill calls more of them: but what else is in a step it calls as
    # often. Of several layers in one stretch nothing is.
    shared = (wanted > 0) & (given > 0)
    as_often = int((shared & (wanted == given)).sum())
    return bool(
        as_often >= FEWEST_AS_OFTEN
        and shared.sum() >= SAME_WORK * len(names)
        and 2 * as_often >= shared.sum()
    )


def same_size(
    sequence: LaunchSequence, stretch: tuple[int, int], reference: tuple[int, int]
) -> bool:
    """Whether most of what a stretch launches, the reference launches at the same size."""
    return bool(
        np.isin(sequence.sized[slice(*stretch)], sequence.sized[slice(*reference)]).mean() > 0.5
    )
