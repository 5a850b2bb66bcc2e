"""CUDA-graph replays take op and shapes from the captured launches, in time order, checked by name.

A replay is one launch call with many kernels and no op. The capture is in the same trace or in one
that was named for it. AMD's calls carry the kernel name, so names are compared, and a capture may
hold a few launches that its replays lack; NVIDIA's do not, so only the kinds (kernel, memcpy,
memset) and the count can be. The finding says which, and what is left over.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from analyzer.attribution import classification, evidence
from analyzer.attribution.events import DEVICE_KINDS, LinkedTrace
from analyzer.trace.events import Finding

# A replay may lack one in so many of its captured launches, if the names of all others agree.
MOST_LACKING = 100


@dataclass
class Captured:
    """One capture: its launches in time order, as texts that outlive their trace."""

    names: list[str | None]
    kinds: list[str]
    ops: list[str | None]
    shapes: list[str | None]


def captures(source: LinkedTrace) -> list[Captured]:
    """The captures of a trace, in time order."""
    calls, ops, strings = source.calls, source.ops, source.trace.strings
    result: list[Captured] = []
    for number in range(int(calls.capture.max(initial=-1)) + 1):
        at = np.flatnonzero(calls.capture == number)
        at = at[np.lexsort((calls.index[at], calls.start[at]))]
        if not len(at):
            continue
        inner = calls.op[at]
        op_names = [strings[ops.name[i]] if i >= 0 else None for i in inner.tolist()]
        shapes = [
            strings[ops.shape[i]] if i >= 0 and ops.shape[i] >= 0 else None for i in inner.tolist()
        ]
        result.append(
            Captured(
                names=[strings[i] if i >= 0 else None for i in calls.kernel_name[at].tolist()],
                kinds=[classification.LAUNCH_KINDS[k] for k in calls.kind[at].tolist()],
                ops=op_names,
                shapes=shapes,
            )
        )
    return result


def resolve_replay_ops(target: LinkedTrace, captured: Sequence[Captured]) -> None:
    """Give the kernels of graph replays the op and shapes of their captured launches.

    Those that have them by the capture of their graph node keep them.

    New texts are appended to `target.trace.strings`. Adds a finding that counts what resolved.
    """
    calls, device, trace = target.calls, target.device, target.trace
    members = np.flatnonzero(device.graph_index >= 0)
    if not len(members):
        return
    members = members[np.lexsort((device.graph_index[members], device.call[members]))]
    replays, begins, counts = np.unique(device.call[members], return_index=True, return_counts=True)
    ids: dict[str, int] = {}

    def text_id(text: str | None) -> int:
        if text is None:
            return -1
        if text not in ids:
            ids[text] = len(trace.strings)
            trace.strings.append(text)
        return ids[text]

    has_op = device.replay_op[members] >= 0
    if has_op.all() and (device.capture_thread[members] < 0).all():
        trace.findings.append(evidence.found("graph_ops_named", len(members)))
        return
    by_node = int(has_op.sum())
    resolved = by_name = left_over = 0
    last = -1
    for i in np.argsort(calls.start[replays], kind="stable").tolist():
        events = members[begins[i] : begins[i] + counts[i]]
        if (device.replay_op[events] >= 0).any():
            continue
        name_ids: list[int] = device.name[events].tolist()
        kind_ids: list[int] = device.kind[events].tolist()
        names = [trace.strings[i] for i in name_ids]
        kinds = [DEVICE_KINDS[k] for k in kind_ids]
        found = _repeated(names, kinds, captured, last)
        if found is None:
            continue
        last = found.number
        ops, shapes = captured[last].ops, captured[last].shapes
        device.replay_op[events] = [text_id(ops[place]) for place in found.places]
        device.replay_shape[events] = [text_id(shapes[place]) for place in found.places]
        resolved += len(events)
        by_name += len(events) * found.by_name
        left_over = max(left_over, len(ops) - len(events))
    trace.findings.append(
        _resolution(len(members), by_node, resolved, by_name, left_over, bool(captured))
    )


def _resolution(
    total: int, by_node: int, resolved: int, by_name: int, left_over: int, has_capture: bool
) -> Finding:
    """How many device events of graph replays got their op, and why not all."""
    resolved += by_node
    if resolved == total:
        how = "names agree"
        if by_node:
            how = "each by the capture of its graph node"
        elif by_name < resolved:
            how = "matched by order and kind: the calls name no kernel"
        if left_over:
            how += f"; {left_over} captured launch{'es' * (left_over > 1)} left over: not replayed"
        return evidence.found("graph_ops", resolved, total=total, how=how)
    why = "the trace holds no capture; name one with --capture-trace"
    if by_node:
        why = "no operator stands around the capture of their nodes"
    elif has_capture:
        why = "no capture in the trace matches them"
    return evidence.found("graph_without_capture", total - resolved, total=total, why=why)


@dataclass(frozen=True)
class _Repeated:
    """The capture that a replay repeats.

    Attributes:
        number: Its place among the captures.
        places: The captured launch of each event of the replay.
        by_name: Whether names agreed; else only order and kinds.
    """

    number: int
    places: list[int]
    by_name: bool


def _repeated(
    names: list[str], kinds: list[str], captured: Sequence[Captured], last: int
) -> _Repeated | None:
    """The capture that a replay of these events repeats; `last` is that of the replay before."""
    in_order = list(range(len(names)))
    # Piecewise graphs replay in the order in which they were captured.
    in_turn = [(last + 1 + i) % len(captured) for i in range(len(captured))]
    for number in in_turn:
        capture = captured[number]
        if len(capture.kinds) != len(names):
            continue
        if any(capture.names):
            agree = _agree(capture.names, names)
            places = in_order if agree else _by_occurrence(capture.names, names)
            if places is not None:
                return _Repeated(number, places, True)
        elif capture.kinds == kinds:
            return _Repeated(number, in_order, False)
    for number in in_turn:
        places = _but_a_few(captured[number], names, kinds)
        if places is not None:
            return _Repeated(number, places, True)
    return None


def _but_a_few(capture: Captured, names: list[str], kinds: list[str]) -> list[int] | None:
    """Places of the events among captured launches of which the replay lacks one in a hundred."""
    lacking = len(capture.kinds) - len(names)
    if not any(capture.names) or not 0 < lacking <= max(1, len(names) // MOST_LACKING):
        return None
    places: list[int] = []
    for place, (name, kind) in enumerate(zip(capture.names, capture.kinds, strict=True)):
        at = len(places)
        if at < len(names) and (name == names[at] or (name is None and kind == kinds[at])):
            places.append(place)
    return places if len(places) == len(names) else None


def _agree(captured: list[str | None], replayed: list[str]) -> bool:
    return all(a is None or a == b for a, b in zip(captured, replayed, strict=True))


def _by_occurrence(captured: list[str | None], replayed: list[str]) -> list[int] | None:
    """The captured launch of each event if streams interleave otherwise: by name, the n-th is the
    n-th; None if the names differ.
    """
    if Counter(captured) != Counter(replayed):
        return None
    places: dict[str | None, list[int]] = defaultdict(list)
    for place, name in enumerate(captured):
        places[name].append(place)
    taken: Counter[str] = Counter()
    result: list[int] = []
    for name in replayed:
        result.append(places[name][taken[name]])
        taken[name] += 1
    return result
