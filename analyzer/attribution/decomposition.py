"""Spans of each launch and the paper's decomposition: dFT, dCT, dKT, T_launch, TKLQT.

Works on a linked trace, a floor and the replay figures of its kernels; reads no table.
Integer nanoseconds; in arrays UNKNOWN stands for unknown and becomes NULL in the store.
Source: TaxBreak (arXiv:2603.12465), SKIP (arXiv:2504.11750); where we go further
docs/measurement.md says so.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from analyzer.attribution import classification
from analyzer.attribution.events import DEVICE_KINDS, LinkedTrace
from analyzer.attribution.intervals import (
    Bools,
    Groups,
    Ints,
    Measure,
    disjoint,
    ordinals,
    running_max,
)

# No duration is this small: a NULL in an integer array.
UNKNOWN = np.iinfo(np.int64).min
FLOOR_PERCENTILE = 5
FEWEST_CLEAN_SAMPLES = 20

_GRAPH = classification.LAUNCH_KINDS.index("graph")
_KERNEL_LAUNCH = classification.LAUNCH_KINDS.index("kernel")
_KERNEL = DEVICE_KINDS.index("kernel")
_GRAPH_REPLAY = DEVICE_KINDS.index("graph")


@dataclass
class Floor:
    """The launch floor: what an empty kernel costs to launch.

    Attributes:
        by_api: Floor of each launch API in ns (p50 of the null kernel); empty if not measured.
        source: "null_kernel" | "trace" | "none".
        ns: The floor where no API tells (most used API's, or the trace's estimate); UNKNOWN if
            none.
    """

    source: str
    ns: int
    by_api: dict[str, int]


@dataclass
class Launches:
    """One entry for each kernel launch and graph launch that was executed, in order of start.

    `first` is the first kernel (index among device events, -1 if none); durations in ns, UNKNOWN =
    NULL. A graph replay recorded as one block has unknown kernels, of unknown time.
    """

    call: Ints
    step: Ints
    first: Ints
    kernels: Ints
    is_graph: Bools
    t_py: Ints
    t_dispatch: Ints
    t_dispatch_raw: Ints
    t_dispatch_inner: Ints
    t_launch: Ints
    is_clean: Bools
    t_exec: Ints
    is_library: Bools
    is_library_paper: Bools
    dkt: Ints
    dft: Ints
    dct: Ints
    dct_paper: Ints
    t_base: Ints
    replay_dispatch: Ints
    replay_launch: Ints
    dkt_fw: Ints


def known(values: Ints) -> Bools:
    """Which entries are not NULL."""
    return values != UNKNOWN


def spans(a: LinkedTrace) -> Launches:
    """T_py, T_dispatch, T_launch and T_exec of each launch (docs/measurement.md, "Spans")."""
    calls, ops, device = a.calls, a.ops, a.device
    executed = (
        ((calls.kind == _KERNEL_LAUNCH) | (calls.kind == _GRAPH)) & (calls.capture < 0) & ~calls.bad
    )
    call = np.flatnonzero(executed)
    call = call[np.lexsort((calls.index[call], calls.start[call]))]
    n = len(call)

    first, kernels, t_exec = _first_kernels(a, call)
    has = first >= 0
    t_launch = np.full(n, UNKNOWN, np.int64)
    t_launch[has] = device.start[first[has]] - calls.start[call[has]]
    owner, starts = _opaque_replays(a)
    opaque = np.isin(call, owner)
    kernels[opaque] = t_exec[opaque] = UNKNOWN
    opaque &= np.isin(call, owner[known(starts)])
    t_launch[opaque] = starts[np.searchsorted(owner, call[opaque])] - calls.start[call[opaque]]
    bad_first = has & device.bad[np.maximum(first, 0)] if len(device.bad) else np.zeros(n, bool)
    t_launch[bad_first] = UNKNOWN
    clean = np.zeros(n, bool)
    before = _stream_busy_until(a)
    if len(device.start):
        usable = known(t_launch)
        busy = before[first[usable]]
        clean[usable] = (busy != UNKNOWN) & (busy <= calls.start[call[usable]])

    outer, inner = calls.outermost[call], calls.op[call]
    in_op = outer >= 0
    raw = np.full(n, UNKNOWN, np.int64)
    net = np.full(n, UNKNOWN, np.int64)
    from_inner = np.full(n, UNKNOWN, np.int64)
    t_py = np.full(n, UNKNOWN, np.int64)
    if in_op.any():
        begin, is_first = _dispatch_begin(a, call)
        begin, is_first = begin[in_op], is_first[in_op]
        at = call[in_op]
        raw[in_op] = calls.start[at] - begin
        net[in_op] = raw[in_op] - _no_translation_between(a, at, begin)
        from_inner[in_op] = calls.start[at] - ops.start[inner[in_op]]
        t_py[in_op] = np.where(is_first, _gaps(a)[outer[in_op]], 0)
    name = np.where(has, device.name[first] if len(device.name) else -1, -1)
    evidence, paper = _library(a, name)
    nothing = np.full(n, UNKNOWN, np.int64)
    graph = calls.kind[call] == _GRAPH
    return Launches(
        call=call,
        step=calls.step[call],
        first=first,
        kernels=kernels,
        is_graph=graph,
        t_py=t_py,
        t_dispatch=net,
        t_dispatch_raw=raw,
        t_dispatch_inner=from_inner,
        t_launch=t_launch,
        is_clean=clean,
        t_exec=t_exec,
        is_library=evidence & ~graph,
        is_library_paper=paper & ~graph,
        dkt=np.array(nothing),
        dft=np.array(nothing),
        dct=np.array(nothing),
        dct_paper=np.array(nothing),
        t_base=np.array(nothing),
        replay_dispatch=np.array(nothing),
        replay_launch=np.array(nothing),
        dkt_fw=np.array(nothing),
    )


def _first_kernels(a: LinkedTrace, call: Ints) -> tuple[Ints, Ints, Ints]:
    """First kernel, number of kernels and their summed duration, of each call."""
    device = a.device
    kernels = np.flatnonzero((device.call >= 0) & (device.kind == _KERNEL))
    kernels = kernels[
        np.lexsort((device.start[kernels], device.bad[kernels], device.call[kernels]))
    ]
    owner = device.call[kernels]
    begin = np.searchsorted(owner, call)
    stop = np.searchsorted(owner, call, "right")
    count = stop - begin
    first = np.full(len(call), -1, np.int64)
    first[count > 0] = kernels[begin[count > 0]]
    running = np.concatenate(([0], np.cumsum((device.end - device.start)[kernels])))
    return first, count.astype(np.int64), running[stop] - running[begin]


def _opaque_replays(a: LinkedTrace) -> tuple[Ints, Ints]:
    """The calls whose graph replay was recorded as one block, sorted, and when it started; UNKNOWN
    if its time is bad.
    """
    device = a.device
    replays = np.flatnonzero((device.kind == _GRAPH_REPLAY) & (device.call >= 0))
    start = np.where(device.bad[replays], UNKNOWN, device.start[replays])
    # Known starts first: of several replays the first counts.
    order = np.lexsort((start, ~known(start), device.call[replays]))
    owner, first = np.unique(device.call[replays][order], return_index=True)
    return owner, start[order][first]


def _stream_busy_until(a: LinkedTrace) -> Ints:
    """For each device event: until when earlier events of its stream run; UNKNOWN for the first."""
    device = a.device
    result = np.full(len(device.start), UNKNOWN, np.int64)
    good = np.flatnonzero(~device.bad)
    order = good[np.lexsort((device.index[good], device.start[good], device.lane[good]))]
    lane = device.lane[order]
    for value in np.unique(lane).tolist():
        at = order[np.searchsorted(lane, value) : np.searchsorted(lane, value, "right")]
        reach = np.maximum.accumulate(device.end[at])
        result[at[1:]] = reach[:-1]
    return result


def _dispatch_begin(a: LinkedTrace, call: Ints) -> tuple[Ints, Bools]:
    """Where T_dispatch begins: the outermost op's start, or the end of its previous launch call.

    Kernel and graph launches only: a copy or memset on the way is taken out as memory time.
    """
    calls, ops = a.calls, a.ops
    launching = np.flatnonzero(
        np.isin(calls.kind, (_KERNEL_LAUNCH, _GRAPH))
        & ~calls.bad
        & (calls.outermost >= 0)
        & (calls.capture < 0)
    )
    order = launching[
        np.lexsort((calls.index[launching], calls.start[launching], calls.outermost[launching]))
    ]
    owner = calls.outermost[order]
    same = np.concatenate(([False], owner[1:] == owner[:-1])) if len(owner) else np.empty(0, bool)
    before = np.where(same, np.concatenate(([0], calls.end[order][:-1])), 0)
    begin = np.full(len(calls.start), 0, np.int64)
    is_first = np.zeros(len(calls.start), bool)
    begin[order] = np.where(same, before, ops.start[owner])
    begin[order] = np.minimum(begin[order], calls.start[order])
    is_first[order] = ~same  # T_py is charged to the op's first launch
    return begin[call], is_first[call]


def _no_translation_between(a: LinkedTrace, call: Ints, begin: Ints) -> Ints:
    """Time in memory, wait and module-loading calls of the call's thread in [begin, call start)."""
    calls = a.calls
    result = np.zeros(len(call), np.int64)
    threads = int(calls.thread.max(initial=-1)) + 1
    of_thread, asked = Groups(calls.thread, threads), Groups(calls.thread[call], threads)
    for thread in np.flatnonzero(asked.sizes()).tolist():
        own, mine = of_thread.places(thread), asked.places(thread)
        own = own[~calls.bad[own]]
        which, start, end = disjoint(calls.start[own], calls.end[own])
        skip = calls.no_translation[own[which]]
        between = Measure(start[skip], end[skip])
        result[mine] = between.within(begin[mine], calls.start[call[mine]])
    return result


def _gaps(a: LinkedTrace) -> Ints:
    """T_py of each outermost op: since the previous outermost op or call of its thread ended, or
    one of another launching thread: only one thread runs Python at a time.
    """
    ops, calls = a.ops, a.calls
    result = np.full(len(ops.start), UNKNOWN, np.int64)
    outer = np.flatnonzero((ops.outermost == np.arange(len(ops.start))) & ~ops.bad)
    good = np.flatnonzero(~calls.bad)
    thread = np.concatenate((ops.thread[outer], calls.thread[good]))
    end = np.concatenate((ops.end[outer], calls.end[good]))
    # An op begins before the call in it, at one time as well.
    order = np.lexsort(
        (
            np.arange(len(thread)) >= len(outer),
            np.concatenate((ops.start[outer], calls.start[good])),
            thread,
        )
    )
    thread = thread[order]
    reach = running_max(thread, end[order])
    reach = np.concatenate(([UNKNOWN], reach[:-1]))[: len(thread)]
    reach[np.diff(thread, prepend=-1) != 0] = UNKNOWN
    step_start = np.array([s.start for s in a.steps] + [a.whole.start], np.int64)
    launching = np.zeros(int(thread.max(initial=0)) + 1, bool)
    launching[calls.thread[(calls.kind > 0) & ~calls.bad]] = True
    at = np.flatnonzero((order < len(outer)) & launching[thread])
    own = outer[order[at]]  # ops come first
    since = np.maximum(reach[at], step_start[ops.step[own]])  # step -1 takes the whole trace's
    if launching.sum() > 1:
        since = np.maximum(since, _last_end_elsewhere(a, launching, own))
    result[own] = np.maximum(ops.start[own] - since, 0)
    return result


def _last_end_elsewhere(a: LinkedTrace, launching: Bools, op: Ints) -> Ints:
    """When, at or before the start of each op, an op or call of another launching thread last
    ended; UNKNOWN if never.
    """
    ops, calls = a.ops, a.calls
    some_op = launching[ops.thread] & ~ops.bad & ~ops.region
    some_call = launching[calls.thread] & ~calls.bad
    end = np.concatenate((ops.end[some_op], calls.end[some_call]))
    thread = np.concatenate((ops.thread[some_op], calls.thread[some_call]))
    order = np.argsort(end, kind="stable")
    end, thread = np.append(end[order], UNKNOWN), np.append(thread[order], -1)
    # Place of the last end of another thread than that of each end; -1 is UNKNOWN's.
    changes = np.diff(thread, prepend=-1) != 0
    other = np.maximum.accumulate(np.where(changes, np.arange(len(end)), 0)) - 1
    at = np.searchsorted(end[:-1], ops.start[op], "right") - 1
    return end[np.where(thread[at] == ops.thread[op], other[at], at)]


def _library(a: LinkedTrace, name: Ints) -> tuple[Bools, Bools]:
    distinct, inverse = ordinals(name)
    strings = a.trace.strings
    ids: list[int] = distinct.tolist()
    evidence = np.array([i >= 0 and classification.is_library_evidence(strings[i]) for i in ids])
    paper = np.array([i >= 0 and classification.is_library_paper(strings[i]) for i in ids])
    if not len(ids):
        return np.empty(0, bool), np.empty(0, bool)
    return evidence[inverse], paper[inverse]


def clean_gaps(launches: Launches) -> Ints:
    """T_launch of clean launches: kernel launches whose stream was idle. Graph launches are left
    out.
    """
    return launches.t_launch[launches.is_clean & ~launches.is_graph & known(launches.t_launch)]


def trace_floor(samples: Ints) -> Floor:
    """Estimate the floor from clean launch gaps: their 5th percentile, from 20 samples on."""
    if len(samples) < FEWEST_CLEAN_SAMPLES:
        return Floor("none", UNKNOWN, {})
    ns = percentile(samples, FLOOR_PERCENTILE)
    # Kernels that start before their launch tell of two clocks, not of a floor.
    return Floor("trace", ns, {}) if ns >= 0 else Floor("none", UNKNOWN, {})


def percentile(samples: Ints, percent: float) -> int:
    """The sample at that share of the sorted samples (rank rounded down): a value that was
    measured.
    """
    ordered = np.sort(samples)
    return int(ordered[min(int(len(ordered) * percent / 100), len(ordered) - 1)])


def median_ns(values: Ints) -> int:
    """Median to the nearest ns, half up."""
    ordered = np.sort(values)
    half = len(ordered) // 2
    if len(ordered) % 2:
        return int(ordered[half])
    return (int(ordered[half - 1]) + int(ordered[half]) + 1) // 2


def decompose(a: LinkedTrace, launches: Launches, floor: Floor) -> None:
    """Fill dFT, dCT, dKT and dKT_fw of each launch, in place: docs/measurement.md, "Decomposition".

    `replay_dispatch` and `replay_launch` are set before, where a replay was matched.
    """
    calls, strings = a.calls, a.trace.strings
    api_floor = np.full(len(launches.call), floor.ns, np.int64)
    for api, ns in floor.by_api.items():
        api_floor[[strings[i] == api for i in calls.name[launches.call].tolist()]] = ns
    duration = (calls.end - calls.start)[launches.call]
    launches.dkt = np.where(launches.is_graph, duration, api_floor)
    translated = known(launches.t_dispatch)
    plain = translated & ~launches.is_graph
    base_dispatch = np.where(
        known(launches.replay_dispatch), launches.replay_dispatch, launches.t_dispatch
    )
    _, step = ordinals(launches.step)
    launches.t_base = _base(step, ~launches.is_library & plain, base_dispatch)
    paper_base = _base(step, ~launches.is_library_paper & plain, base_dispatch)
    dct = _dct(launches, launches.t_base, launches.is_library)
    dct_paper = _dct(launches, paper_base, launches.is_library_paper)
    launches.dct = np.where(translated, dct, launches.dct)
    launches.dct_paper = np.where(translated, dct_paper, launches.dct_paper)
    both = translated & known(launches.dct)
    launches.dft[both] = (launches.t_py + launches.t_dispatch - launches.dct)[both]
    measured = known(launches.replay_launch) & known(launches.dkt) & ~launches.is_graph
    launches.dkt_fw[measured] = np.maximum(launches.replay_launch - launches.dkt, 0)[measured]


def _base(step: Ints, where: Bools, dispatch: Ints) -> Ints:
    """T_base of each launch: the median of its step's, to the nearest ns, half up; of those
    `where`. UNKNOWN if there is none.

    Args:
        step: From 0 on.
    """
    steps = int(step.max(initial=-1)) + 1
    of_step, values = step[where], dispatch[where]
    order = np.lexsort((values, of_step))
    first = np.searchsorted(of_step[order], np.arange(steps))
    number = np.bincount(of_step, minlength=steps)
    values = np.append(values[order], 0)
    upper = values[np.minimum(first + number // 2, len(values) - 1)]
    lower = values[np.maximum(first + (number - 1) // 2, 0)]
    return np.where(number > 0, (lower + upper + 1) // 2, UNKNOWN)[step]


def _dct(launches: Launches, base: Ints, library: Bools) -> Ints:
    above = np.maximum(launches.t_dispatch - base, 0)
    return np.where(library, np.where(base == UNKNOWN, UNKNOWN, above), 0)
