"""Ascend's events under Kineto's categories, and what started what as correlations.

A kernel's launch is the moment at which its operator handed it over. Without a task queue that is
the call of CANN that the kernel's connection names. With one, an operator only enqueues: another
thread takes the task from the queue and calls CANN, so the launch is the enqueue whose task the
call was made for. Where a trace has only the flow from operator to kernel, the operator is known
and no launch.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from analyzer.trace.ascend.scanner import AscendScanner, Link, Point
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
_NO_CONNECTION = (b"", b"4294967295")  # the latter is -1 in 32 bits

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
    texts = _Texts(trace)
    rows = trace.rows
    pids: list[int] = np.unique(rows["pid"]).tolist()
    roles = {pid: processes.get(trace.strings[pid], "") for pid in pids}
    named: list[str] = [trace.strings[i] for i in rows["category"].tolist()]
    names: list[str] = [trace.strings[i] for i in rows["name"].tolist()]
    links = [scanner.links.get(i, _NO_LINK) for i in rows["index"].tolist()]
    made = [
        _category(roles[pid], category, link.task_type, name)
        for pid, category, link, name in zip(rows["pid"].tolist(), named, links, names, strict=True)
    ]
    events = _Events.of(rows, roles, named, links, made)
    launches = _Launches(rows, events, scanner, links)
    rows["category"] = [texts.id(category) for category in made]
    _share_process(rows, events)
    launches.find()
    _recount(trace, named, made)
    _write_links(trace, launches)
    _tell(trace, made, launches)


_NO_LINK = Link(b"", b"", "")


class _Texts:
    """New texts of a trace."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._ids = {text: i for i, text in enumerate(trace.strings)}

    def id(self, text: str) -> int:
        if text not in self._ids:
            self._ids[text] = len(self._trace.strings)
            self._trace.strings.append(text)
        return self._ids[text]


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


@dataclass
class _Events:
    """Places of rows by what they are."""

    ops: list[int] = field(default_factory=list[int])
    enqueues: list[int] = field(default_factory=list[int])
    dequeues: list[int] = field(default_factory=list[int])
    calls: list[int] = field(default_factory=list[int])
    device: list[int] = field(default_factory=list[int])

    @classmethod
    def of(
        cls,
        rows: Rows,
        roles: Mapping[int, str],
        named: list[str],
        links: list[Link],
        made: list[str],
    ) -> _Events:
        events = cls()
        lists = {"cpu_op": events.ops, "enqueue": events.enqueues, "dequeue": events.dequeues}
        for place, (pid, name, kind) in enumerate(
            zip(rows["pid"].tolist(), named, made, strict=True)
        ):
            if roles[pid] == _HARDWARE:
                if kind != "npu_sync":
                    events.device.append(place)
            elif roles[pid] == _CANN:
                events.calls.append(place)
            elif name in lists:
                lists[name].append(place)
        return events


def _share_process(rows: Rows, events: _Events) -> None:
    """Give the calls of CANN the process of their thread's operators: CANN's is only for show."""
    host = events.ops + events.enqueues + events.dequeues
    by_thread: dict[int, set[int]] = defaultdict(set)
    all_pids: set[int] = set(rows["pid"][host].tolist())
    for pid, tid in zip(rows["pid"][host].tolist(), rows["tid"][host].tolist(), strict=True):
        by_thread[tid].add(pid)
    for place in events.calls:
        found = by_thread.get(int(rows["tid"][place]), all_pids)
        found = found if len(found) == 1 else all_pids
        if len(found) == 1:
            (rows["pid"][place],) = found


class _Launches:
    """Finds the call and the operator that started each event of the device.

    Attributes:
        call: Place of the launch by place of the device's event.
        op: Place of the operator, likewise, where a flow tells.
        loose: Flows that link nothing.
    """

    def __init__(
        self, rows: Rows, events: _Events, scanner: AscendScanner, links: list[Link]
    ) -> None:
        self._rows, self._events, self._links = rows, events, links
        self.call: dict[int, int] = {}
        self.op: dict[int, int] = {}
        self.loose = 0
        # Flows name processes as they are written, so they are followed before those are shared.
        self._flow_call = self._follow(scanner, "HostToDevice", events.calls)
        self.op = self._follow(scanner, "async_npu", events.ops)

    def _follow(self, scanner: AscendScanner, category: str, sources: list[int]) -> dict[int, int]:
        """The source of each event of the device that a flow of a category leads to."""
        begins, ends = self._by_point(sources), self._by_point(self._events.device)
        found: dict[int, int] = {}
        for (named, _), points in scanner.flows.items():
            if named != category:
                continue
            starts, stops = points.get("s", []), points.get("f", [])
            for start, stop in zip(starts, stops, strict=False):
                source, target = begins.get(start), ends.get(stop)
                if source is None or target is None:
                    self.loose += category == "async_npu"
                else:
                    found[target] = source
            self.loose += abs(len(starts) - len(stops)) * (category == "async_npu")
        return found

    def _by_point(self, places: list[int]) -> dict[Point, int]:
        """Events by where they begin; of several the shortest, which is the innermost."""
        some = self._rows[places]
        order = np.argsort(-some["dur"], kind="stable")
        columns = (some[name][order].tolist() for name in ("pid", "tid", "ts"))
        points = (Point(*point) for point in zip(*columns, strict=True))
        return dict(zip(points, np.array(places, np.int64)[order].tolist(), strict=True))

    def find(self) -> None:
        """Find the launch of each event of the device; processes are shared by now."""
        by_connection = self._calls_by_connection()
        enqueues = {
            self._links[i].queued: i for i in self._events.enqueues if self._links[i].queued
        }
        dequeues = _Ranges(self._rows, self._events.dequeues)
        for place in self._events.device:
            call = self._flow_call.get(place, by_connection.get(self._links[place].connection))
            if call is None:
                continue
            taken = dequeues.around(self._rows, call)
            queued = self._links[taken].queued if taken is not None else b""
            self.call[place] = enqueues.get(queued, call)
        self._find_by_operator()

    def _calls_by_connection(self) -> dict[bytes, int]:
        found: dict[bytes, int] = {}
        for place in sorted(self._events.calls, key=lambda i: -int(self._rows["ts"][i])):
            connection = self._links[place].connection
            if connection not in _NO_CONNECTION:
                found[connection] = place
        return found

    def _find_by_operator(self) -> None:
        """What no call of CANN tells: the operator's enqueue, if it has one or one for each."""
        waiting: dict[int, list[int]] = defaultdict(list)
        for place, op in self.op.items():
            if place not in self.call:
                waiting[op].append(place)
        if not waiting or not self._events.enqueues:
            return
        enqueues = _Ranges(self._rows, self._events.enqueues)
        for op, places in waiting.items():
            inside = enqueues.within(self._rows, op)
            if len(inside) == 1:
                inside *= len(places)
            if len(inside) == len(places):
                places.sort(key=lambda place: int(self._rows["ts"][place]))
                self.call |= dict(zip(places, inside, strict=True))


class _Ranges:
    """Events of each thread in order of their begin; those of a thread do not overlap."""

    def __init__(self, rows: Rows, places: list[int]) -> None:
        self._by_thread: dict[tuple[int, int], tuple[list[int], list[int]]] = {}
        for place in sorted(places, key=lambda place: int(rows["ts"][place])):
            starts, of_thread = self._by_thread.setdefault(_thread(rows, place), ([], []))
            starts.append(int(rows["ts"][place]))
            of_thread.append(place)

    def around(self, rows: Rows, place: int) -> int | None:
        """The event in which another one of its thread begins."""
        starts, places = self._by_thread.get(_thread(rows, place), ([], []))
        at = bisect_right(starts, time := int(rows["ts"][place])) - 1
        if at < 0 or time > starts[at] + int(rows["dur"][places[at]]):
            return None
        return places[at]

    def within(self, rows: Rows, place: int) -> list[int]:
        """The events that begin in another one of their thread."""
        starts, places = self._by_thread.get(_thread(rows, place), ([], []))
        start = int(rows["ts"][place])
        low = bisect_right(starts, start - 1)
        return places[low : bisect_right(starts, start + int(rows["dur"][place]))]


def _thread(rows: Rows, place: int) -> tuple[int, int]:
    return int(rows["pid"][place]), int(rows["tid"][place])


# -- what is left in the trace


def _recount(trace: Trace, named: list[str], made: list[str]) -> None:
    """Count the events under the categories that they have now."""
    counts = Counter(trace.counts)
    counts -= Counter(("X", category) for category in named)
    counts += Counter(("X", category) for category in made)
    trace.counts = dict(counts)


def _write_links(trace: Trace, launches: _Launches) -> None:
    """Number the launches, and give each event of the device its launch's number."""
    rows = trace.rows
    targets = np.array(list(launches.call), np.int64)
    calls = np.array(list(launches.call.values()), np.int64)
    rows["correlation"][targets] = rows["correlation"][calls] = calls + 1
    rows["flags"][np.concatenate((targets, calls))] |= HAS_CORRELATION
    # Processes that are told apart later take rows by themselves: no row may name another then.
    if len({int(rows["pid"][op]) for op in launches.op.values()}) != 1:
        return
    captured = np.full(len(rows), -1, np.int64)
    for place, op in launches.op.items():
        call = launches.call.get(place)
        start, end = int(rows["ts"][op]), int(rows["ts"][op] + rows["dur"][op])
        if (
            call is None
            or _thread(rows, call) != _thread(rows, op)
            or not start <= int(rows["ts"][call]) < end
        ):
            captured[place] = op
    trace.captured_in = captured


def _tell(trace: Trace, made: list[str], launches: _Launches) -> None:
    in_no_figure = ("npu_sync", "npu_dequeue", *_VIEWS.values())
    counts = Counter(category for category in made if category in in_no_figure)
    if counts:
        named = ", ".join(f"{count} {category}" for category, count in sorted(counts.items()))
        told = finding(_FINDINGS, "npu_views", sum(counts.values()), named=named)
        trace.findings.append(told)
    unlaunched = len(launches.op.keys() - launches.call.keys())
    for code, count in (("npu_no_launch", unlaunched), ("loose_flows", launches.loose)):
        if count:
            trace.findings.append(finding(_FINDINGS, code, count))
