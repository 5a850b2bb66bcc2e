"""Steps of a trace that nothing marks: where the launches of the launching thread repeat.

The sequence is made of launches and synchronising calls, told apart by the names of kernel and op,
never by sizes: a cache that grows leaves it as it is. Short stretches that occur equally often
stand at the same place of each repetition; each such number of occurrences is one candidate for
cutting the sequence. Layers repeat too: a candidate that leaves launches unexplained before and
behind its repetitions is a part of a step unless the host pauses between them. All work grows with
the launches (times their logarithm), not with their square.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from analyzer.attribution.classification import ACCOUNTS, LAUNCH_KINDS
from analyzer.attribution.events import Calls, LinkedTrace, Step
from analyzer.attribution.intervals import Bools, Ints, ordinals

FEWEST_REPETITIONS = 3
LEAST_COVERAGE = 0.8  # of the launches between the first repetition and the last
ALIKE = 0.9  # share of launches that two repetitions have in common
SAME_WORK = 0.6  # share of a repetition's ops that its prefill has too
SLOWER_BY = 3  # a first repetition this many median spreads above the median is a warm-up
_GRAM_LENGTHS = (1, 4, 16)
_MOST_CANDIDATES = 16  # for each length of stretch
_MOST_WAITS = 3  # synchronising calls of a step that stands between pauses
_GAP = 3  # a pause is this much longer than any other gap of the step
_NOT, _BY_GAP, _BY_WAIT = range(3)
_WAIT, _GRAPH = ACCOUNTS.index("wait"), LAUNCH_KINDS.index("graph")
_BASE = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True)
class Found:
    """Steps found by repetition.

    Attributes:
        steps: In order of start.
        confidence: Share of launches that the repetitions have in common, from 0 to 1.
    """

    steps: list[Step]
    confidence: float


@dataclass(frozen=True)
class _Sequence:
    """Launches and waits of the launching thread, in order of time.

    Attributes:
        thread: Ordinal of the thread.
        call: Place in the trace's calls.
        token: Ordinal of what was launched, by kernel and op; of a wait, by call and op.
        op: Ordinal of the op's name.
        in_op: Whether it is called in an op.
        sized: Ordinal of what was launched, and how large.
        launch: Whether it is a launch; else it is a wait.
        graph: Whether it launches a graph.
        kernels: Device events that it started.
        start, end: Of the call, in ns.
    """

    thread: int
    call: Ints
    token: Ints
    op: Ints
    in_op: Bools
    sized: Ints
    launch: Bools
    graph: Bools
    kernels: Ints
    start: Ints
    end: Ints


@dataclass(frozen=True)
class _Cut:
    """One way to cut the sequence.

    Attributes:
        first, last: Each repetition is [first, last) of the sequence.
        prefills: The same of what stands before a run of repetitions and does their work at
            another size.
        reference: A typical repetition.
        alike: Mean share of launches that the repetitions have in common with it.
        covered: Share of the sequence in repetitions and prefills.
        pause: How the host pauses between repetitions: _BY_WAIT, _BY_GAP or _NOT.
    """

    first: Ints
    last: Ints
    prefills: list[tuple[int, int]]
    reference: tuple[int, int]
    alike: float
    covered: float
    pause: int


def find_repetition(linked: LinkedTrace) -> Found | None:
    """Cut a trace where its launches repeat; None if they do not.

    Args:
        linked: With links and captures; steps are not needed.
    """
    sequence = _sequence(linked)
    if sequence is None:
        return None
    cuts = [cut for anchors in _candidates(sequence.token) if (cut := _cut(sequence, anchors))]
    if not cuts:
        return None
    most = max(cut.covered for cut in cuts)
    # Of cuts that explain as much, one whose repetitions stand between pauses; the finest of them.
    best = max(
        (cut for cut in cuts if cut.covered > most - 0.01),
        key=lambda cut: (cut.pause, len(cut.first) * (1 if cut.pause == _BY_WAIT else -1)),
    )
    return Found(_steps(linked, sequence, best), best.alike)


def _sequence(linked: LinkedTrace) -> _Sequence | None:
    calls, device = linked.calls, linked.device
    good = ~calls.bad & (calls.capture < 0)
    launching = good & (calls.kind > 0)
    if int(launching.sum()) < FEWEST_REPETITIONS:
        return None
    thread = int(np.bincount(calls.thread[launching]).argmax())
    own = np.flatnonzero(good & (calls.thread == thread) & ((calls.kind > 0) | _waits(calls)))
    own = own[np.argsort(calls.start[own], kind="stable")]
    launch = calls.kind[own] > 0
    # A host that polls waits a varying number of times.
    again = np.concatenate(([False], ~launch[1:] & ~launch[:-1]))
    own, launch = own[~again], launch[~again]
    event = _first_event(linked)[own]
    none = np.full(len(own), -1, np.int64)
    named = np.append(device.name, -1)[event]
    config = np.append(device.config, -1)[event]
    op = calls.op[own]
    op_name = np.where(op >= 0, linked.ops.name[op], -1) if len(linked.ops.name) else none
    graph = calls.kind[own] == _GRAPH
    kernels = np.where(launch, calls.device_events[own], 0)
    token = _ordinals(launch, np.where(event >= 0, named, -2 - calls.name[own]), op_name)
    token = _ordinals(token, np.where(graph, kernels, 0))
    return _Sequence(
        thread=thread,
        call=own,
        token=token,
        op=_ordinals(launch, op_name),
        in_op=op >= 0,
        sized=_ordinals(token, config),
        launch=launch,
        graph=graph,
        kernels=kernels,
        start=calls.start[own],
        end=calls.end[own],
    )


def _waits(calls: Calls) -> Bools:
    return (calls.account == _WAIT) & (calls.kind == 0)


def _first_event(linked: LinkedTrace) -> Ints:
    """Place of the first device event of each call; -1 without one."""
    device = linked.device
    first = np.full(len(linked.calls.start), -1, np.int64)
    owned = np.flatnonzero(device.call >= 0)
    backwards = owned[np.argsort(device.start[owned], kind="stable")][::-1]
    first[device.call[backwards]] = backwards
    return first


def _ordinals(*columns: Ints | Bools) -> Ints:
    """A small number for each distinct row."""
    result = np.zeros(len(columns[0]), np.int64)
    for column in columns:
        distinct, of_column = ordinals(column.astype(np.int64))
        _, result = ordinals(result * max(len(distinct), 1) + of_column)
    return result


def _candidates(token: Ints) -> Iterator[Ints]:
    """Places of a stretch, for each number of times that many stretches occur."""
    seen: set[tuple[int, int]] = set()
    length, value = 1, token.astype(np.uint64)
    while length <= _GRAM_LENGTHS[-1] and len(value) >= FEWEST_REPETITIONS:
        if length in _GRAM_LENGTHS:
            for places in _regular(value):
                key = (len(places), int(places[1] - places[0]))
                if key not in seen:
                    seen.add(key)
                    yield places
        value = (value[:-length] * _BASE) ^ (value[length:] + (value[:-length] >> np.uint64(29)))
        length *= 2


def _regular(value: np.ndarray) -> Iterator[Ints]:
    """For each number of occurrences, places of the value that recurs most evenly."""
    _, of_place, times = np.unique(value, return_inverse=True, return_counts=True)
    order = np.argsort(of_place, kind="stable")
    begin = np.cumsum(times) - times
    gaps = np.diff(order, prepend=0).astype(float)
    gaps[begin] = 0
    total = np.add.reduceat(gaps, begin)
    squares = np.add.reduceat(gaps * gaps, begin)
    often = np.flatnonzero(times >= FEWEST_REPETITIONS)
    if not len(often):
        return
    mean = total[often] / (times[often] - 1)
    uneven = squares[often] / (times[often] - 1) / (mean * mean)
    rank = np.lexsort((uneven, times[often]))
    numbers, at, weight = np.unique(times[often][rank], return_index=True, return_counts=True)
    share = weight * numbers
    for i in np.argsort(-share, kind="stable")[:_MOST_CANDIDATES].tolist():
        chosen = int(often[rank[at[i]]])
        yield order[begin[chosen] : begin[chosen] + times[chosen]]


def _cut(sequence: _Sequence, anchors: Ints) -> _Cut | None:
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
    cut = _Cut(first, last, [], reference, float(shares[good].mean()), 0.0, pause)
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


def _pause(sequence: _Sequence, same: Ints, length: int) -> tuple[int, int]:
    """How far behind the anchor the host pauses, and how."""
    places = same[:, None] + np.arange(length)[None, :]
    places = places[: max(1, 200_000 // length)]
    before = places - 1
    held = before >= 0
    gap = np.where(held, sequence.start[places] - sequence.end[before], 0)
    gap = np.median(gap, axis=0)
    waited = (held & ~sequence.launch[before]).mean(axis=0) > 0.5
    if 0 < int(waited.sum()) <= _MOST_WAITS:
        return int(np.flatnonzero(waited)[gap[waited].argmax()]), _BY_WAIT
    longest = int(gap.argmax())
    others = np.delete(gap, longest)
    pauses = bool(len(others)) and bool(gap[longest] > _GAP * max(others.max(), 1.0))
    return longest, _BY_GAP if pauses else _NOT


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


def _launches(sequence: _Sequence, first: Ints, last: Ints) -> Ints:
    before = np.concatenate(([0], np.cumsum(sequence.launch)))
    return before[last] - before[first]


def _explained(sequence: _Sequence, cut: _Cut) -> _Cut | None:
    """The cut with its prefills; None if what it leaves out says that it cut parts of a step."""
    n = len(sequence.token)
    begins = np.concatenate(([0], cut.last))
    ends = np.concatenate((cut.first, [n]))
    prefills: list[tuple[int, int]] = []
    unexplained = [0, 0, 0]  # launches before, between and behind the repetitions
    for i, (begin, end) in enumerate(zip(begins.tolist(), ends.tolist(), strict=True)):
        if end <= begin:
            continue
        if i < len(cut.first) and _is_prefill(sequence, cut, begin, end):
            prefills.append((begin, end))
        elif not _is_part(sequence.token, cut, begin, end):
            side = 0 if i == 0 else 2 if i == len(cut.first) else 1
            unexplained[side] += int(sequence.launch[begin:end].sum())
    few = int(sequence.launch[slice(*cut.reference)].sum()) / 20
    left_out = [number > few for number in unexplained]
    many = left_out[1] or (left_out[0] and left_out[2])
    if (many or (any(left_out) and not cut.pause)) and not _waits_outside_ops(sequence, cut):
        return None
    inside = int((cut.last - cut.first).sum()) + sum(end - begin for begin, end in prefills)
    return replace(cut, prefills=prefills, covered=inside / n)


def _waits_outside_ops(sequence: _Sequence, cut: _Cut) -> bool:
    """Whether the program itself synchronises between repetitions, not an op on its way."""
    before = cut.first[cut.first > 0] - 1
    on_top = ~sequence.launch[before] & ~sequence.in_op[before]
    return bool(len(before)) and bool(on_top.mean() >= ALIKE)


def _is_part(token: Ints, cut: _Cut, begin: int, end: int) -> bool:
    """Whether a stretch at either end of the sequence is a repetition that was cut off."""
    length = end - begin
    low, high = int(cut.first[0]), int(cut.last[0])
    if length >= high - low:
        return False
    like = token[high - length : high] if begin == 0 else token[low : low + length]
    return bool((token[begin:end] == like).mean() >= ALIKE)


def _is_prefill(sequence: _Sequence, cut: _Cut, begin: int, end: int) -> bool:
    """Whether a stretch does the work of a repetition, at another size."""
    low, high = cut.reference
    kernels = int(sequence.kernels[low:high].sum())
    if sequence.graph[low:high].any() and not sequence.graph[begin:end].any():
        # Pieces of a step are graphs too; after a step the host waits.
        return cut.pause == _BY_WAIT and int(sequence.kernels[begin:end].sum()) > kernels / 2
    names, of_place = np.unique(
        np.concatenate((sequence.op[low:high], sequence.op[begin:end])), return_inverse=True
    )
    wanted = np.bincount(of_place[: high - low], minlength=len(names))
    given = np.bincount(of_place[high - low :], minlength=len(names))
    if np.minimum(wanted, given).sum() < SAME_WORK * (high - low):
        return False
    return not _same_size(sequence, (begin, end), cut.reference)


def _same_size(sequence: _Sequence, stretch: tuple[int, int], reference: tuple[int, int]) -> bool:
    """Whether most of what a stretch launches, the reference launches at the same size."""
    return bool(
        np.isin(sequence.sized[slice(*stretch)], sequence.sized[slice(*reference)]).mean() > 0.5
    )


def _steps(linked: LinkedTrace, sequence: _Sequence, cut: _Cut) -> list[Step]:
    stretches = list(zip(cut.first.tolist(), cut.last.tolist(), strict=True))
    # A prefill of a small model may launch the same kernels, larger.
    same = [_same_size(sequence, stretch, cut.reference) for stretch in stretches]
    if 2 * sum(same) <= len(same):
        same = [True] * len(same)
    prefills = cut.prefills + [s for s, is_same in zip(stretches, same, strict=True) if not is_same]
    word = "decode" if prefills else "step"
    phases = [(*stretch, "prefill") for stretch in prefills]
    phases += [(*s, word) for s, is_same in zip(stretches, same, strict=True) if is_same]
    counter: Counter[str] = Counter()
    steps: list[Step] = []
    for phase, start, end in _windows(linked, sequence, sorted(phases)):
        index = counter[phase]
        counter[phase] += 1
        steps.append(Step(f"{phase}#{index}", phase, index, start, end, sequence.thread))
    _name_warm_up([step for step in steps if step.phase == word])
    return steps


def _windows(
    linked: LinkedTrace, sequence: _Sequence, stretches: list[tuple[int, int, str]]
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
