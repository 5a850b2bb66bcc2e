"""Planes to events: what names and stats of XLA's profiler mean.

Categories and names are spelled as Kineto spells them. The host's trace marks are operators where
XLA or JAX wrote them, annotations where a user did. The operator of a kernel is the HLO operation
that it carries; its own time on the host is not recorded, so it covers the calls made for it.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from analyzer.trace.columns import HAS_BYTES, HAS_CORRELATION, HAS_DUR, HAS_TS
from analyzer.trace.events import DEVICE_CATEGORIES, is_call_category
from analyzer.trace.reader import ReadOptions
from analyzer.trace.stream import TraceError
from analyzer.trace.tabular.report import OP, Category, Column, Events, Report, config_text
from analyzer.trace.tabular.tables import MISSING, Ints
from analyzer.trace.xplane.space import Line, Plane, Stats, Value, line_of

_GPU = re.compile(r"/device:GPU:(\d{1,6})")
_OTHER_DEVICE = re.compile(r"/device:(?!CUSTOM)|/virtualdevice:")
_HOST_THREADS = ("/host:CPU", "/host:CUPTI", "/host:ROCTRACER", "/host:python-tracer")
# Lines of calls alone: what has no correlation there is the profiler's own.
_OVERHEAD_LINES = "Host Threads/"
_OVERHEADS = ("<UNKNOWN>", "BUFFER_FLUSH", "INSTRUMENTATION", "RESOURCE", "DRIVER_COMPILER")
_STREAM = re.compile(r"Stream #(\d{1,18})")
_GRAPH_NUMBER = re.compile(r" \(CudaGraph:\d+\)$")
_PYTHON = "$"
# What JAX and XLA mark; anything that lies within one is theirs too.
_OWN_MARK = re.compile(
    r"\w+(?:<[^>]*>)?::|PjitFunction\(|PJRT_|Pjit|Pjrt|[Xx]la|Thunk|DevicePut|ParseArguments"
    r"|MemoryAllocation|MemoryDeallocation|RecordUsage|ThreadpoolListener|end: "
)
_DETAIL = re.compile(r"(\w+):\s*(\S+)")
_COPY_KINDS = {
    "MemcpyH2D": "HtoD",
    "MemcpyD2H": "DtoH",
    "MemcpyD2D": "DtoD",
    "MemcpyP2P": "PtoP",
    "CopyHostToDevice": "HtoD",
    "CopyDeviceToHost": "DtoH",
    "CopyDeviceToDevice": "DtoD",
}
_MOST_NS = 1 << 62
_DIGITS = re.compile(r"\d{1,18}")
_DRIVER_CALL = re.compile(r"cu[A-Z]")
_CATEGORIES = (
    *("kernel", "gpu_memcpy", "gpu_memset", "gpu_graph"),
    *("cuda_runtime", "cuda_driver"),
    *("cpu_op", "user_annotation", "step_annotation", "python_function"),
    # In no figure.
    *("instant", "overhead", "trace", "unknown device event"),
)
_LAUNCHED = ("kernel", "gpu_memcpy", "gpu_memset")
# The category of a device event by the first of these stats that it has.
_BY_STAT = {
    "kernel_details": "kernel",
    "memcpy_details": "gpu_memcpy",
    "Memset_details": "gpu_memset",
    "cuda_graph_exec_id": "gpu_graph",
    "hlo_op": "kernel",
}
_STATS = (*_BY_STAT, "step_num")
_NOT_RUN = re.compile(r"Memory(?:Alloc|Free|Residency)|Host(?:Unr|R)egister|Overhead")


@dataclass(frozen=True)
class _Kind:
    """What all events have that differ in time and correlation alone.

    Attributes:
        is_kept: Else the events are counted only.
    """

    category: str
    is_kept: bool = False
    name: int = -1
    op: int = -1
    bytes: int = MISSING
    config: int = -1


class ProfileEvents:
    """The events of one profile (one process), by category.

    Attributes:
        read: Events so far, kept or not.
        other_devices: Events of devices that are no GPUs; they are not kept.
    """

    def __init__(self, path: Path, options: ReadOptions) -> None:
        self.report = Report()
        self.read = 0
        self.other_devices = 0
        self._path = path
        self._options = options
        self._categories: dict[str, Category] = {}

    def add(self, plane: Plane) -> Iterator[int]:
        """Take the events of a plane; yields the bytes of each of its lines behind it.

        Raises:
            WireError: The plane is damaged.
            TraceError: There are more events than are read.
        """
        gpu = _GPU.fullmatch(plane.name)
        is_other = not gpu and _OTHER_DEVICE.match(plane.name) is not None
        if not gpu and not is_other and plane.name not in _HOST_THREADS:
            return
        names, stats = plane.event_names(), Stats(plane.stat_names(), _STATS)
        for data in plane.lines:
            line = line_of(data)
            stream = _STREAM.match(line.name)
            kinds: list[_Kind] = []
            known: dict[tuple[object, ...], int] = {}
            rows = _Rows()
            for name_id, start, dur, correlation, encoded in line.events(stats):
                self._count_one()
                if is_other:
                    self.other_devices += 1
                    continue
                if not -_MOST_NS < start < start + max(dur, 1) < _MOST_NS:
                    self.report.without_time += 1
                    self.report.counts[0]["X", "trace"] += 1
                    continue
                key = (name_id, correlation is None, dur == 0, *encoded)
                kind = known.get(key)
                if kind is None:
                    name, own = names.get(name_id, ""), stats.of(encoded)
                    if gpu:
                        made = self._device_kind(name, own, is_stream=stream is not None)
                    elif correlation is None:
                        made = self._mark_kind(name, own, line, is_instant=dur == 0)
                    else:
                        made = self._call_kind(name, own)
                    kind = known[key] = len(kinds)
                    kinds.append(made)
                rows.add(start, dur, MISSING if correlation is None else correlation, kind)
            self._add_rows(rows, kinds, gpu[1] if gpu else "", stream[1] if stream else line.id)
            yield len(data)

    def finished(self) -> Report:
        """Return all events, with an operator around each call that is known to be one's."""
        found = {name: category.events(0) for name, category in self._categories.items()}
        device = [found[name] for name in _LAUNCHED if name in found]
        known = [self._ops(call, device) for name, call in found.items() if is_call_category(name)]
        self.report.events = [events for events in (*found.values(), *known) if len(events)]
        return self.report

    def _ops(self, call: Events, device: Sequence[Events]) -> Events:
        """An operator for each call that carries one, or whose device event does."""
        op = call.columns.pop(OP).astype(np.int64)
        texts = self.report.texts.all()
        graphs = [i for i in np.unique(call.column("name")).tolist() if "GraphLaunch" in texts[i]]
        # The kernels of a graph are of many operators.
        single = ~np.isin(call.column("name"), graphs)
        for events in device:
            correlation = events.column("correlation")
            known, first = np.unique(correlation, return_index=True)
            at = np.minimum(np.searchsorted(known, call.column("correlation")), len(known) - 1)
            has = (op < 0) & single & (known[at] == call.column("correlation"))
            op = np.where(has, events.column(OP)[first[at]], op)
        ops, has = Category("cpu_op"), op >= 0
        self.report.count(call.process[has], "X", ops.name)
        ops.add(
            process=call.process[has],
            start=call.start[has],
            dur=call.dur[has],
            tid=call.columns["tid"][has],
            name=op[has],
            flags=np.full(int(has.sum()), HAS_TS | HAS_DUR, np.int64),
        )
        return ops.events(0)

    def _count_one(self) -> None:
        self.read += 1
        most = self._options.most_events
        if most is not None and self.read > most:
            raise TraceError(
                f"{self._path} holds more than {most} events, the most that are read here; "
                "profile fewer steps."
            )

    def _add_rows(self, rows: _Rows, kinds: list[_Kind], gpu: str, on: str | int) -> None:
        """Add the events of a line: of a stream of a GPU, or of a thread."""
        if not kinds:
            return
        start, dur, correlation, kind = rows.columns()
        category = np.array([_CATEGORIES.index(k.category) for k in kinds], np.int8)[kind]
        if not gpu:
            _take_inner_marks(start, dur, category)
        flags = np.where(correlation == MISSING, 0, HAS_CORRELATION) | HAS_TS | HAS_DUR
        size = np.array([k.bytes for k in kinds], np.int64)[kind]
        columns: dict[str, Column] = {
            "start": start,
            "dur": dur,
            "correlation": correlation,
            "bytes": size,
            "flags": (flags | np.where(size == MISSING, 0, HAS_BYTES)).astype(np.int32),
        }
        for name in ("name", OP, "config"):
            columns[name] = np.array([getattr(k, name) for k in kinds], np.int32)[kind]
        device, tid = self._id(gpu), self._id(str(on))
        for number, name in enumerate(_CATEGORIES):
            at = np.flatnonzero(category == number)
            if not len(at):
                continue
            self.report.counts[0]["i" if name == "instant" else "X", name] += len(at)
            if not kinds[kind[at[0]]].is_kept:
                continue
            here = {column: values[at] for column, values in columns.items()}
            here["process"] = np.zeros(len(at), np.int32)
            here["tid"] = np.full(len(at), tid, np.int32)
            if gpu:
                here["stream"] = here["tid"]
                here["device"] = here["pid"] = np.full(len(at), device, np.int32)
            self._categories.setdefault(name, Category(name)).add(**here)

    def _id(self, text: Value | None) -> int:
        return self.report.texts.id(text) if isinstance(text, str) and text else -1

    def _device_kind(self, name: str, stats: dict[str, Value], is_stream: bool) -> _Kind:
        # Other lines repeat the streams' events by module or step.
        category = _device_category(name, stats) if is_stream else "trace"
        if category not in DEVICE_CATEGORIES:
            return _Kind(category)
        size, config = MISSING, ""
        if category == "kernel":
            config = _config(stats.get("kernel_details"))
        elif category != "gpu_graph":
            details = _details(stats.get("memcpy_details") or stats.get("Memset_details"))
            size = _integer(details.get("size") or details.get("num_bytes"))
            name = _copy_name(name) if category == "gpu_memcpy" else "Memset"
        op = self._id(stats.get("hlo_op"))
        return _Kind(category, True, self._id(name or "unknown"), op, size, self._id(config))

    def _call_kind(self, name: str, stats: dict[str, Value]) -> _Kind:
        name = _GRAPH_NUMBER.sub("", name)
        category = "cuda_driver" if _DRIVER_CALL.match(name) else "cuda_runtime"
        op = self._id(stats.get("hlo_op"))
        return _Kind(category, True, self._id(name or "unknown"), op)

    def _mark_kind(self, name: str, stats: dict[str, Value], line: Line, is_instant: bool) -> _Kind:
        if name.startswith(_PYTHON):
            text = self._id(name[1:] or "unknown")
            return _Kind("python_function", self._options.keep_python, text)
        if line.name.startswith(_OVERHEAD_LINES) or name in _OVERHEADS:
            return _Kind("overhead")
        if is_instant:
            return _Kind("instant")
        category = "user_annotation"
        step = stats.get("step_num")
        if isinstance(step, int):
            category, name = "step_annotation", f"{name}#{step}"
        elif "hlo_op" in stats or _OWN_MARK.match(name):
            category = "cpu_op"
        return _Kind(category, True, self._id(name or "unknown"))


class _Rows:
    """What differs among the events of a line."""

    def __init__(self) -> None:
        self._parts = [array("q") for _ in range(4)]

    def add(self, start: int, dur: int, correlation: int, kind: int) -> None:
        starts, durs, correlations, kinds = self._parts
        starts.append(start)
        durs.append(dur)
        correlations.append(correlation)
        kinds.append(kind)

    def columns(self) -> list[Ints]:
        return [np.array(part, np.int64) for part in self._parts]


def _take_inner_marks(start: Ints, dur: Ints, category: npt.NDArray[np.int8]) -> None:
    """Make operators of a thread's annotations within a mark of XLA's: they are XLA's too."""
    own, other = (_CATEGORIES.index(name) for name in ("cpu_op", "user_annotation"))
    marks = np.flatnonzero((category == own) | (category == other))
    marks = marks[np.lexsort((-dur[marks], start[marks]))]
    end = start[marks] + dur[marks]
    reach = np.maximum.accumulate(np.where(category[marks] == own, end, -_MOST_NS))
    category[marks[1:][end[1:] <= reach[:-1]]] = own


def _device_category(name: str, stats: dict[str, Value]) -> str:
    for stat, category in _BY_STAT.items():
        if stat in stats:
            return category
    return "overhead" if _NOT_RUN.match(name) else "unknown device event"


def _details(value: Value | None) -> dict[str, str]:
    """The parts of a text such as `regs:8 grid:2,1,1`."""
    return dict(_DETAIL.findall(value)) if isinstance(value, str) else {}


def _config(value: Value | None) -> str:
    details = _details(value)
    grid, block = (
        [_integer(part) for part in details.get(name, "").split(",")] for name in ("grid", "block")
    )
    shared = [
        _integer(details.get(name)) for name in ("static_shared", "dynamic_shared", "group_mem")
    ]
    return config_text(grid, block, shared, _integer(details.get("regs")))


def _copy_name(name: str) -> str:
    return f"Memcpy {_COPY_KINDS.get(name, 'Unknown')}"


def _integer(text: str | None) -> int:
    return int(text) if text and _DIGITS.fullmatch(text) else MISSING
