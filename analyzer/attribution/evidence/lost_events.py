"""Device events that should be there: of graph launches, of other launches, within graph replays.

Every kernel launch, graph launch and copy that ran has a device event in a whole trace (so in all
real ones that are known); a memset of no bytes has none.
"""

from __future__ import annotations

from collections import Counter

import numpy as np

from analyzer.attribution.events import DEVICE_KINDS
from analyzer.attribution.evidence.check import Seen, counted
from analyzer.attribution.evidence.material import GRAPH, KERNEL, MEMCPY, MEMSET, Material
from analyzer.attribution.intervals import Ints

_OPAQUE = DEVICE_KINDS.index("graph")


def graph_launches(m: Material) -> Seen:
    """Graph launches without any device event."""
    launched = int((m.executed & (m.linked.calls.kind == GRAPH)).sum())
    silent = len(m.silent(GRAPH))
    found = (
        f"{silent:,} of {counted(launched, 'graph launch', 'graph launches')} "
        f"{'have' if silent > 1 else 'has'} no device events"
    )
    return _lost(m, silent, launched, found) if silent else Seen(0, launched, "")


def dropped_events(m: Material) -> Seen:
    """Kernel launches and copies without device event, replays that lack some, buffers lost."""
    calls = m.linked.calls
    launched = int((m.executed & np.isin(calls.kind, (KERNEL, MEMCPY))).sum())
    silent = np.concatenate((m.silent(KERNEL), m.silent(MEMCPY)))
    device = m.linked.device
    if (device.correlation == 0).any():  # it may be one of these
        silent = m.silent(KERNEL)
    short = _short_replays(m)
    dropped = sum(f.count for f in m.finding("buffers_dropped"))
    messages = dropped + sum(f.count for f in m.finding("profiler_messages"))
    parts: list[str] = []
    if len(silent):
        parts.append(
            f"{len(silent):,} of {counted(launched, 'kernel launch and copy', 'launches')} "
            f"{'have' if len(silent) > 1 else 'has'} no device event"
        )
        late = int((calls.start[silent] > _last_answered(m)).sum())
        if late:
            parts[-1] += f", {'all' if late == len(silent) else f'{late:,}'} at the trace's end"
    if len(short):
        parts.append(
            f"{counted(len(short), 'graph replay')} {'lack' if len(short) > 1 else 'lacks'} events "
            "that like replays have"
        )
    if messages:
        parts.append(
            f"the profiler says that it lost events ({counted(messages, 'message')})"
            if dropped
            else f"the profiler left {counted(messages, 'warning')} of its own"
        )
    count = len(silent) + len(short) + messages
    if count:
        sure = len(silent) > 0 or dropped > 0 or not _may_be_whole(m, short)
        return _lost(m, count, int(m.executed.sum()), "; ".join(parts), is_unknown=not sure)
    memsets = len(m.silent(MEMSET))
    if memsets:
        return Seen(
            memsets,
            int((m.executed & (calls.kind == MEMSET)).sum()),
            f"{counted(memsets, 'memset call')} without device event: of no bytes, or lost",
            at_least=("device_time", "step_time", *_window(m)),
            at_most=("device_idle",),
            not_judged=m.and_balance("launch_time"),
            is_unknown=True,
        )
    return Seen(0, launched, "")


def opaque_graphs(m: Material) -> Seen:
    """Graph replays that were recorded as one block each."""
    opaque = int((m.linked.device.kind == _OPAQUE).sum())
    launched = int((m.executed & (m.linked.calls.kind == GRAPH)).sum())
    if not opaque:
        return Seen(0, launched, "")
    found = f"{counted(opaque, 'graph replay')} recorded as one block each, without kernels"
    return Seen(opaque, max(launched, opaque), found, not_judged=("hdbi",))


def _lost(m: Material, count: int, total: int, found: str, *, is_unknown: bool = False) -> Seen:
    """What lost device events touch: device time is more, idle less; what joins both is unknown."""
    return Seen(
        count,
        total,
        found,
        at_least=("device_time", "launches", "step_time", *_window(m)),
        at_most=("device_idle",),
        # Whose kernel is unknown may be a library's: T_base and what stands on it change.
        not_judged=("hdbi", "launch_time", "host_cost"),
        is_unknown=is_unknown,
    )


def _window(m: Material) -> tuple[str, ...]:
    """Where nothing marks steps the host's time runs to the last event, which may be lost."""
    return ("host_time",) if m.linked.step_source.name == "trace" else ()


def _last_answered(m: Material) -> int:
    """Start of the last launch that has a device event."""
    calls = m.linked.calls
    return int(calls.start[m.executed & (calls.device_events > 0)].max(initial=-(2**63)))


def _short_replays(m: Material) -> Ints:
    """Graph replays, as places in time, whose events are like another's but not the same.

    A graph that is replayed more than once shows the same kernels each time; one that is seen once,
    and shares most of its kernels with others or has some of theirs alone, has probably lost some.
    """
    signatures = [Counter(names) for names in _replays(m)]
    seen = Counter(frozenset(one.items()) for one in signatures)
    odd = [i for i, one in enumerate(signatures) if seen[frozenset(one.items())] == 1]
    distinct = [Counter(dict(items)) for items in seen]
    return np.array(
        [
            i
            for i in odd
            if any(_is_part(signatures[i], other) for other in distinct if other != signatures[i])
        ],
        np.int64,
    )


def _replays(m: Material) -> list[list[int]]:
    """Names of the events of each graph replay, in order of the launches."""
    device, calls = m.linked.device, m.linked.calls
    at = np.flatnonzero(device.graph_index >= 0)
    order = at[np.lexsort((device.graph_index[at], calls.start[device.call[at]]))]
    names: dict[int, list[int]] = {}
    for call, name in zip(device.call[order].tolist(), device.name[order].tolist(), strict=True):
        names.setdefault(call, []).append(name)
    return list(names.values())


def _is_part(one: Counter[int], other: Counter[int]) -> bool:
    """Whether one replay has nothing that the other lacks, or both have most in common."""
    shared = (one & other).total()
    return shared == one.total() or shared * 2 >= (one | other).total()


def _may_be_whole(m: Material, short: Ints) -> bool:
    """Whether odd replays may be graphs of their own: the first and last piece of a model's."""
    calls = m.linked.calls
    graph = m.executed & (calls.kind == GRAPH)
    steps = calls.step[graph & (calls.step >= 0)]
    one_a_step = len(m.linked.steps) > 1 and len(np.unique(steps)) == len(steps)
    ends = {0, int((graph & (calls.device_events > 0)).sum()) - 1}
    return not one_a_step and set(short.tolist()) <= ends
