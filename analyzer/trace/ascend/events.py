"""Ascend's events under Kineto's categories, and what started what as correlations.

A kernel's launch is the moment at which its operator handed it over. Without a task queue that is
the call of CANN that the kernel's connection names. With one, an operator only enqueues: another
thread takes the task from the queue and calls CANN, so the launch is the enqueue whose task the
call was made for. Where a trace has only the flow from operator to kernel, the operator is known
and no launch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from analyzer.trace.ascend.scanner import FLOWS, NONE, AscendScanner, Ints
from analyzer.trace.columns import HAS_CORRELATION, Rows
from analyzer.trace.events import FindingKind, Trace, finding

_HARDWARE, _CANN = "Ascend Hardware", "CANN"
# Processes that show the device's work once more, by collective or by what overlaps.
_VIEWS = {
    "Communication": "npu_communication",
    "HCCL": "npu_communication",
    "Overlap Analysis": "npu_overlap",
}
# Categories of the process "Python". Operators and ranges are told apart by their names.
_HOST = {"cpu_op": "operator", "enqueue": "cann_runtime", "dequeue": "npu_dequeue"}
# Tasks that only wait, signal or mark, by the begin of their type or name.
_NO_WORK = (
    "EVENT_", "NOTIFY_", "PROFILING_", "LABEL_", "STREAM_", "CAPTURE_", "PLACE_HOLDER",
    "WRITE_VALUE", "MEM_WAIT", "MEM_WRITE", "CMO", "MODEL_",
)  # fmt: skip
_COPY = ("MEMCPY", "SDMA", "PCIE_DMA")
_NO_CONNECTION = (NONE, 0xFFFFFFFF)  # the latter is -1 in 32 bits

_FINDINGS = {
    "npu_views": FindingKind(
        "note",
        "{count} events ({named}) only wait, or show work of the device once more; they are in no "
        "figure",
    ),
    "loose_flows": FindingKind(
        "warning", "{count} flows have no event at one of their ends and link nothing"
    ),
    "npu_no_launch": FindingKind(
        "note",
        "{count} kernels have a flow from their operator and no call that launched them: their "
        "operator is known, their launch is not",
    ),
}


def as_kineto(trace: Trace, scanner: AscendScanner, processes: Mapping[str, str]) -> None:
    """Rewrite a trace's rows in place: categories, correlations, and who launched what.

    Args:
        processes: Name of each process by its id's JSON text.
    """
    rows = trace.rows
    events = _Events.of(trace, scanner, processes)
    launches = _Launches(rows, events, scanner)
    _share_process(rows, events)
    launches.find()
    _recount(trace, rows["category"], events.category)
    rows["category"] = events.category
    _write_links(rows, launches)
    trace.captured_in = _operators_elsewhere(rows, launches)
    _tell(trace, events.category, launches)


def _category(role: str, category: str, task_type: str, name: str) -> str:
    if role == _HARDWARE:
        kinds = [text.upper().replace(" ", "_") for text in (task_type, name) if text]
        if any(kind.startswith(_NO_WORK) for kind in kinds):
            return "npu_sync"
        if any(part in kind for kind in kinds for part in _COPY):
            return "gpu_memcpy"
        return "gpu_memset" if any("MEMSET" in kind for kind in kinds) else "kernel"
    if role == _CANN:
        return "cann_runtime"
    return _VIEWS.get(role) or _HOST.get(category, category)


@dataclass(frozen=True)
class _Events:
    """What the rows are.

    Attributes:
        category: Text id of each row's new category.
        connection, queued: Number of each row's ids, NONE without.
        ops, enqueues, dequeues, calls, device: Places of rows.
    """

    category: Ints
    connection: Ints
    queued: Ints
    ops: Ints
    enqueues: Ints
    dequeues: Ints
    calls: Ints
    device: Ints

    @classmethod
    def of(cls, trace: Trace, scanner: AscendScanner, processes: Mapping[str, str]) -> _Events:
        rows, strings = trace.rows, trace.strings
        linked = scanner.links.column("index")
        at = np.minimum(np.searchsorted(linked, rows["index"]), max(len(linked) - 1, 0))
        has = linked[at] == rows["index"] if len(linked) else np.zeros(len(rows), bool)

        def of_links(name: str) -> Ints:
            values = np.full(len(rows), NONE, np.int64)
            values[has] = scanner.links.column(name)[at[has]]
            return values

        # Few kinds of rows stand for all: process, category, type of task and name tell.
        keys = np.stack([rows["pid"], rows["category"], of_links("task"), rows["name"]], 1)
        kinds, kind = np.unique(keys, axis=0, return_inverse=True)
        kind = kind.reshape(-1)
        ids = {text: i for i, text in enumerate(strings)}
        roles: list[str] = []
        named: list[str] = []
        made: list[int] = []
        rows_of_ids: list[list[int]] = kinds.tolist()
        for texts in rows_of_ids:
            pid, category, task, name = (strings[i] if i >= 0 else "" for i in texts)
            roles.append(processes.get(pid, ""))
            named.append(category)
            new = _category(roles[-1], category, task, name)
            if new not in ids:
                ids[new] = len(strings)
                strings.append(new)
            made.append(ids[new])
        role, old, category = np.array(roles)[kind], np.array(named)[kind], np.array(made)[kind]
        is_host = (role != _HARDWARE) & (role != _CANN)
        return cls(
            category=category,
            connection=of_links("connection"),
            queued=of_links("queued"),
            ops=np.flatnonzero(is_host & (old == "cpu_op")),
            enqueues=np.flatnonzero(is_host & (old == "enqueue")),
            dequeues=np.flatnonzero(is_host & (old == "dequeue")),
            calls=np.flatnonzero(role == _CANN),
            device=np.flatnonzero((role == _HARDWARE) & (category != ids.get("npu_sync", NONE))),
        )


def _share_process(rows: Rows, events: _Events) -> None:
    """Give the calls of CANN the process of their thread's operators: CANN's is only for show."""
    pid, tid, calls = rows["pid"], rows["tid"], events.calls
    host = np.concatenate((events.ops, events.enqueues, events.dequeues))
    if not len(host):
        return
    pairs = np.unique(np.stack((tid[host], pid[host]), 1), axis=0)
    tids, first, count = np.unique(pairs[:, 0], return_index=True, return_counts=True)
    at = np.minimum(np.searchsorted(tids, tid[calls]), len(tids) - 1)
    is_known = (tids[at] == tid[calls]) & (count[at] == 1)
    only = pid[host[0]] if len(np.unique(pairs[:, 1])) == 1 else pid[calls]
    pid[calls] = np.where(is_known, pairs[first[at], 1], only)


class _Launches:
    """Finds the call and the operator that started each event of the device.

    Attributes:
        call, op: Place of the launch, and of the operator where a flow tells, of each row; NONE
            for others.
        loose: Flows that link nothing.
    """

    def __init__(self, rows: Rows, events: _Events, scanner: AscendScanner) -> None:
        self._rows, self._events = rows, events
        self.loose = 0
        # Flows name processes as they are written, so they are followed before those are shared.
        self.call, _ = self._follow(scanner, "HostToDevice", events.calls)
        self.op, self.loose = self._follow(scanner, "async_npu", events.ops)

    def _follow(self, scanner: AscendScanner, category: str, sources: Ints) -> tuple[Ints, int]:
        """The source of each event of the device that a flow of a category leads to.

        Returns:
            Its place for each row, and how many flows have no event at an end.
        """
        found = np.full(len(self._rows), NONE, np.int64)
        of_category = scanner.flows.column("category") == FLOWS.index(category)
        names = ("id", "is_last", "pid", "tid", "ts")
        id_, is_last, *point = (scanner.flows.column(name)[of_category] for name in names)
        start, stop = _pairs(id_, is_last)
        source = self._at_points(sources, [column[start] for column in point])
        target = self._at_points(self._events.device, [column[stop] for column in point])
        whole = (source != NONE) & (target != NONE)
        found[target[whole]] = source[whole]
        return found, len(id_) - len(start) - int(whole.sum())

    def _at_points(self, places: Ints, point: list[Ints]) -> Ints:
        """The event that begins at each point, of several the shortest: the innermost."""
        rows = self._rows[places]
        own = np.stack([rows[name].astype(np.int64) for name in ("pid", "tid", "ts")], 1)
        both = np.concatenate((own, np.stack(point, 1)))
        _, number = np.unique(both, axis=0, return_inverse=True)
        number = number.reshape(-1)
        at = np.full(len(number) + 1, NONE, np.int64)
        longest_first = np.argsort(-rows["dur"], kind="stable")
        at[number[: len(places)][longest_first]] = places[longest_first]
        return at[number[len(places) :]]

    def find(self) -> None:
        """Find the launch of each event of the device; processes are shared by now."""
        events, device = self._events, self._events.device
        unknown = device[self.call[device] == NONE]
        by_time = events.calls[np.argsort(self._rows["ts"][events.calls], kind="stable")]
        by_time = by_time[~np.isin(events.connection[by_time], _NO_CONNECTION)]
        self.call[unknown] = _first_with(
            events.connection[unknown], events.connection[by_time], by_time
        )
        started = device[self.call[device] != NONE]
        dequeue = self._around(events.dequeues, self.call[started])
        started, dequeue = started[dequeue != NONE], dequeue[dequeue != NONE]
        enqueues = events.enqueues[events.queued[events.enqueues] != NONE]
        enqueue = _first_with(events.queued[dequeue], events.queued[enqueues], enqueues)
        self.call[started[enqueue != NONE]] = enqueue[enqueue != NONE]
        self._find_by_operator()

    def _around(self, ranges: Ints, places: Ints) -> Ints:
        """The range in which each of some rows begins, on its thread; ranges do not overlap."""
        rows, thread = self._rows, _threads(self._rows)
        both = np.concatenate((ranges, places))
        is_range = np.arange(len(both)) < len(ranges)
        order = np.lexsort((~is_range, rows["ts"][both], thread[both]))
        # Where the last range before each stands, the first of all if none does.
        before = np.maximum.accumulate(np.where(is_range[order], np.arange(len(both)), 0))
        around = np.empty(len(both), np.int64)
        around[order] = both[order[before]]
        around = around[len(ranges) :]
        end = rows["ts"][around] + rows["dur"][around]
        inside = (thread[around] == thread[places]) & (rows["ts"][places] <= end)
        return np.where(inside & np.isin(around, ranges), around, NONE)

    def _find_by_operator(self) -> None:
        """What no call of CANN tells: the operator's enqueue, if it has one or one for each."""
        device = self._events.device
        waiting = device[(self.call[device] == NONE) & (self.op[device] != NONE)]
        enqueues = self._events.enqueues
        if not len(waiting) or not len(enqueues):
            return
        ts, thread = self._rows["ts"], _threads(self._rows)
        waiting = waiting[np.lexsort((ts[waiting], self.op[waiting]))]
        enqueues = enqueues[np.lexsort((ts[enqueues], thread[enqueues]))]
        begin = np.flatnonzero(np.diff(self.op[waiting], prepend=NONE))
        for places in np.split(waiting, begin[1:]):
            op = self.op[places[0]]
            low, high = (
                np.searchsorted(thread[enqueues], thread[op], s) for s in ("left", "right")
            )
            of_thread = enqueues[low:high]
            low = np.searchsorted(ts[of_thread], ts[op])
            high = np.searchsorted(ts[of_thread], ts[op] + self._rows["dur"][op], "right")
            inside = of_thread[low:high]
            if len(inside) in (1, len(places)):
                self.call[places] = inside


def _pairs(id_: Ints, is_last: Ints) -> tuple[Ints, Ints]:
    """Begins and ends of flows: the n-th begin of an id belongs to its n-th end."""
    _, number = np.unique(id_, return_inverse=True)
    keys: list[Ints] = []
    ends: list[Ints] = []
    for end in (0, 1):
        places = np.flatnonzero(is_last == end)
        places = places[np.argsort(number[places], kind="stable")]
        of_id = number[places]
        keys.append(of_id * len(id_) + np.arange(len(of_id)) - np.searchsorted(of_id, of_id))
        ends.append(places)
    _, begin, end = np.intersect1d(*keys, assume_unique=True, return_indices=True)
    return ends[0][begin], ends[1][end]


def _first_with(wanted: Ints, known: Ints, places: Ints) -> Ints:
    """The first place whose number is the wanted one; NONE without one."""
    if not len(known):
        return np.full(len(wanted), NONE, np.int64)
    numbers, first = np.unique(known, return_index=True)
    at = np.minimum(np.searchsorted(numbers, wanted), len(numbers) - 1)
    return np.where((numbers[at] == wanted) & (wanted != NONE), places[first[at]], NONE)


def _threads(rows: Rows) -> Ints:
    """One number for process and thread of each row."""
    return (rows["pid"].astype(np.int64) << 32) | (rows["tid"].astype(np.int64) & 0xFFFFFFFF)


# -- what is left in the trace


def _recount(trace: Trace, old: npt.NDArray[np.int32], new: Ints) -> None:
    """Count the events under the categories that they have now."""
    counts = Counter(trace.counts)
    for ids, sign in ((old, -1), (new, 1)):
        for i, number in zip(
            *(a.tolist() for a in np.unique(ids, return_counts=True)), strict=True
        ):
            counts["X", trace.strings[i]] += sign * number
    trace.counts = {key: count for key, count in counts.items() if count}


def _write_links(rows: Rows, launches: _Launches) -> None:
    """Number the launches, and give each event of the device its launch's number."""
    started = np.flatnonzero(launches.call != NONE)
    calls = launches.call[started]
    rows["correlation"][started] = rows["correlation"][calls] = calls + 1
    rows["flags"][started] |= HAS_CORRELATION
    rows["flags"][calls] |= HAS_CORRELATION


def _operators_elsewhere(rows: Rows, launches: _Launches) -> Ints | None:
    """The operator of each event of the device whose launch does not stand in it."""
    op, call = launches.op, launches.call
    known = np.flatnonzero(op != NONE)
    # Processes that are told apart later take rows by themselves: no row may name another then.
    if len(np.unique(rows["pid"][op[known]])) != 1:
        return None
    thread, ts = _threads(rows), rows["ts"]
    op, call = op[known], call[known]
    inside = (call != NONE) & (thread[call] == thread[op]) & (ts[op] <= ts[call])
    inside &= ts[call] < ts[op] + rows["dur"][op]
    result = np.full(len(rows), NONE, np.int64)
    result[known[~inside]] = op[~inside]
    return result


def _tell(trace: Trace, category: Ints, launches: _Launches) -> None:
    in_no_figure = ("npu_sync", "npu_dequeue", *dict.fromkeys(_VIEWS.values()))
    ids = {name: trace.strings.index(name) for name in in_no_figure if name in trace.strings}
    counts = {name: int((category == i).sum()) for name, i in sorted(ids.items())}
    if sum(counts.values()):
        named = ", ".join(f"{count} {name}" for name, count in counts.items() if count)
        told = finding(_FINDINGS, "npu_views", sum(counts.values()), named=named)
        trace.findings.append(told)
    unlaunched = int(((launches.op != NONE) & (launches.call == NONE)).sum())
    for code, count in (("npu_no_launch", unlaunched), ("loose_flows", launches.loose)):
        if count:
            trace.findings.append(finding(_FINDINGS, code, count))
