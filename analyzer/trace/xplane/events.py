"""Planes to events: what names and stats of XLA's profiler mean.

Categories and names are spelled as Kineto spells them. The host's trace marks are operators where
XLA or JAX wrote them, annotations where a user did. The operator of a kernel is the HLO operation
that it carries; its own time on the host is not recorded, so it covers the calls made for it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from analyzer.trace.columns import HAS_BYTES, HAS_CORRELATION, HAS_DUR, HAS_TS
from analyzer.trace.events import DEVICE_CATEGORIES, is_call_category
from analyzer.trace.reader import ReadOptions
from analyzer.trace.stream import TraceError
from analyzer.trace.tabular.report import OP, Category, Column, Events, Report, config_text
from analyzer.trace.tabular.tables import MISSING, PIECE_ROWS
from analyzer.trace.xplane.space import Event, Line, Plane, Stats, Value, line_of

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
_MARKS = ("cpu_op", "user_annotation", "step_annotation", "python_function")
_LAUNCHED = ("kernel", "gpu_memcpy", "gpu_memset")
# The category of a device event by the first of these stats that it has.
_BY_STAT = {
    "kernel_details": "kernel",
    "memcpy_details": "gpu_memcpy",
    "Memset_details": "gpu_memset",
    "cuda_graph_exec_id": "gpu_graph",
    "hlo_op": "kernel",
}
_NOT_RUN = re.compile(r"Memory(?:Alloc|Free|Residency)|Host(?:Unr|R)egister|Overhead")


@dataclass
class _Rows:
    """Events of one kind, as lists until there are enough for a piece."""

    category: Category
    columns: dict[str, list[int]] = field(default_factory=dict[str, list[int]])

    def add(self, **values: int) -> None:
        for name, value in values.items():
            self.columns.setdefault(name, []).append(value)
        if len(self.columns["start"]) >= PIECE_ROWS:
            self.flush()

    def flush(self) -> None:
        if not self.columns:
            return
        columns: dict[str, Column] = {n: np.array(v, np.int64) for n, v in self.columns.items()}
        columns["process"] = np.zeros(len(columns["start"]), np.int64)
        self.category.add(**columns)
        self.columns = {}


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
        self._rows: dict[str, _Rows] = {}

    def add(self, plane: Plane) -> Iterator[int]:
        """Take the events of a plane; yields the bytes of each of its lines behind it.

        Raises:
            WireError: The plane is damaged.
            TraceError: There are more events than are read.
        """
        gpu = _GPU.fullmatch(plane.name)
        is_other = _OTHER_DEVICE.match(plane.name) is not None
        if not gpu and not is_other and plane.name not in _HOST_THREADS:
            return
        names, stats = plane.event_names(), Stats(plane.stat_names())
        for data in plane.lines:
            line = line_of(data)
            marks = _Marks()
            for event in line.events():
                self._count_one()
                name = names.get(event.name_id, "")
                if not gpu and is_other:
                    self.other_devices += 1
                elif not -_MOST_NS < event.start < event.start + max(event.dur, 1) < _MOST_NS:
                    self.report.without_time += 1
                    self._count("X", "trace")
                elif gpu:
                    self._add_device(int(gpu[1]), line, name, event, stats.of(event.stats))
                else:
                    self._add_host(line, name, event, stats.of(event.stats), marks)
            self._add_marks(line, marks)
            yield len(data)

    def finished(self) -> Report:
        """Return all events, with an operator around each call that is known to be one's."""
        for rows in self._rows.values():
            rows.flush()
        found = {name: rows.category.events(0) for name, rows in self._rows.items()}
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

    def _count(self, ph: str, category: str) -> None:
        self.report.counts[0][ph, category] += 1

    def _add(self, category: str, **values: int) -> None:
        if category not in self._rows:
            self._rows[category] = _Rows(Category(category))
        self._rows[category].add(**values)

    def _id(self, text: Value | None) -> int:
        return self.report.texts.id(text) if isinstance(text, str) and text else -1

    def _add_device(
        self, gpu: int, line: Line, name: str, event: Event, stats: dict[str, Value]
    ) -> None:
        stream = _STREAM.match(line.name)
        # Other lines repeat the streams' events by module or step.
        category = _device_category(name, stats) if stream else "trace"
        self._count("X", category)
        if not stream or category not in DEVICE_CATEGORIES:
            return
        size, config, correlation = MISSING, "", _number(stats, "correlation_id")
        if category == "kernel":
            config = _config(stats.get("kernel_details"))
        elif category != "gpu_graph":
            details = _details(stats.get("memcpy_details") or stats.get("Memset_details"))
            size = _integer(details.get("size") or details.get("num_bytes"))
            name = _copy_name(name) if category == "gpu_memcpy" else "Memset"
        device, on = self._id(str(gpu)), self._id(stream[1])
        self._add(
            category,
            start=event.start,
            dur=event.dur,
            name=self._id(name) if name else self._id("unknown"),
            correlation=correlation,
            flags=_flags(correlation) | (HAS_BYTES if size != MISSING else 0),
            bytes=size,
            config=self._id(config),
            device=device,
            stream=on,
            pid=device,
            tid=on,
            op=self._id(stats.get("hlo_op")),
        )

    def _add_host(
        self, line: Line, name: str, event: Event, stats: dict[str, Value], marks: _Marks
    ) -> None:
        correlation = _number(stats, "correlation_id")
        if correlation != MISSING:
            name = _GRAPH_NUMBER.sub("", name)
            category = "cuda_driver" if _DRIVER_CALL.match(name) else "cuda_runtime"
            self._count("X", category)
            self._add(
                category,
                start=event.start,
                dur=event.dur,
                tid=self._id(str(line.id)),
                name=self._id(name or "unknown"),
                correlation=correlation,
                flags=_flags(correlation),
                op=self._id(stats.get("hlo_op")),
            )
        elif name.startswith(_PYTHON):
            self._count("X", "python_function")
            if self._options.keep_python:
                marks.add("python_function", event, self._id(name[1:] or "unknown"))
        elif line.name.startswith(_OVERHEAD_LINES) or name in _OVERHEADS:
            self._count("X", "overhead")
        elif event.dur == 0:
            self._count("i", "xla_instant")
        elif (step := _number(stats, "step_num")) != MISSING:
            marks.add("step_annotation", event, self._id(f"{name}#{step}"))
        elif "hlo_op" in stats or _OWN_MARK.match(name):
            marks.add("cpu_op", event, self._id(name or "unknown"))
        else:
            marks.add("user_annotation", event, self._id(name or "unknown"))

    def _add_marks(self, line: Line, marks: _Marks) -> None:
        tid = self._id(str(line.id))
        for category, columns in marks.by_category():
            number = len(columns["start"])
            self.report.count(np.zeros(number, np.int64), "X", category)
            if category not in self._rows:
                self._rows[category] = _Rows(Category(category))
            self._rows[category].category.add(
                **columns,
                process=np.zeros(number, np.int64),
                tid=np.full(number, tid, np.int64),
                flags=np.full(number, HAS_TS | HAS_DUR, np.int64),
            )


class _Marks:
    """The marks of one thread, until it is known which of them lie within XLA's."""

    def __init__(self) -> None:
        self._rows: list[tuple[int, int, int, int]] = []

    def add(self, category: str, event: Event, name: int) -> None:
        self._rows.append((event.start, event.dur, name, _MARKS.index(category)))

    def by_category(self) -> Iterator[tuple[str, dict[str, Column]]]:
        if not self._rows:
            return
        start, dur, name, kind = np.array(self._rows, np.int64).T
        order = np.lexsort((-dur, start))
        start, dur, name, kind = start[order], dur[order], name[order], kind[order]
        own_end = np.where(kind == _MARKS.index("cpu_op"), start + dur, -_MOST_NS)
        before = np.concatenate(([-_MOST_NS], np.maximum.accumulate(own_end)[:-1]))
        is_within = (kind == _MARKS.index("user_annotation")) & (start + dur <= before)
        kind = np.where(is_within, _MARKS.index("cpu_op"), kind)
        for number, category in enumerate(_MARKS):
            at = kind == number
            if at.any():
                yield category, {"start": start[at], "dur": dur[at], "name": name[at]}


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


def _number(stats: dict[str, Value], name: str) -> int:
    value = stats.get(name)
    return value if isinstance(value, int) else MISSING


def _integer(text: str | None) -> int:
    return int(text) if text and _DIGITS.fullmatch(text) else MISSING


def _flags(correlation: int) -> int:
    return HAS_TS | HAS_DUR | (HAS_CORRELATION if correlation != MISSING else 0)
