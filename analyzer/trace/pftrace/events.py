"""Packets to events: slices of tracks from their begin and their end, work of a GPU as it is.

PyTorch has written three dialects. First every event was a slice, told apart by what is noted of
it; then GPU work became render stages; then host slices got categories. All three are read.
Source: pytorch, `torch/csrc/profiler/cupti/monitor_pftrace.cpp` and `cuspy/cuspy_pftrace.cpp`;
google/perfetto, `track_event.proto`, `track_descriptor.proto`, `gpu_render_stage_event.proto`.
"""

from __future__ import annotations

from array import array
from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from analyzer.trace.columns import (
    HAS_BYTES,
    HAS_CORRELATION,
    HAS_DUR,
    HAS_EXTERNAL,
    HAS_TS,
    ROW,
    Rows,
)
from analyzer.trace.events import IGNORED_CATEGORIES, is_known_category
from analyzer.trace.pftrace import annotations, packets
from analyzer.trace.pftrace.annotations import Interned, Values, noted, noted_text
from analyzer.trace.wire import WireError, fields, signed

_BEGIN, _END = 1, 2
_CORRELATES = 3000  # of a slice: the events of the GPU that it started
_STAGE_CATEGORIES = {
    b"Kernel": "kernel",
    b"Memcpy": "gpu_memcpy",
    b"Memset": "gpu_memset",
    b"Annotation": "gpu_user_annotation",
    b"EventRecord": "graph_event_node",
    b"HostNode": "graph_host_node",
}
_NO_CATEGORY = "operator"  # operators and ranges, to be told apart by their names
_OVERHEAD_PID = 0x7FFFFFFF  # -1 in 31 bits


_PIECE = 1 << 16

Row = tuple[int, ...]  # in the order of `columns.ROW`


class Packed:
    """Rows, the most of them packed: a tuple takes ten times the memory."""

    def __init__(self) -> None:
        self._last: list[Row] = []
        self._done: list[Rows] = []
        self._packed = 0

    def __len__(self) -> int:
        return self._packed + len(self._last)

    def add(self, row: Row) -> None:
        self._last.append(row)
        if len(self._last) == _PIECE:
            self._pack()

    def all(self) -> Rows:
        self._pack()
        return np.concatenate([np.empty(0, ROW), *self._done])

    def _pack(self) -> None:
        self._done.append(np.array(self._last, ROW))
        self._packed += len(self._last)
        self._last = []


@dataclass
class Marks:
    """Begins or ends of slices, in the order of the file."""

    track: array[int] = field(default_factory=lambda: array("q"))
    time: array[int] = field(default_factory=lambda: array("q"))
    packet: array[int] = field(default_factory=lambda: array("q"))

    def add(self, track: int, time: int, packet: int) -> None:
        self.track.append(track)
        self.time.append(time)
        self.packet.append(packet)


class Texts:
    """Texts by ordinal."""

    def __init__(self) -> None:
        self._ids: dict[str, int] = {"": 0}

    def id(self, text: str) -> int:
        """The ordinal of a text; -1 of an empty one."""
        return self._ids.setdefault(text, len(self._ids)) if text else -1

    def all(self) -> list[str]:
        return list(self._ids)


class Decoder:
    """Takes packets one by one.

    Attributes:
        slices: Rows of what has a begin, without a duration; `begins` has their tracks and times.
        work: Rows of what has a duration: work of the GPU.
        counts: Events by (ph, category), those of slices left out.
        grouped: Time goes back between slices: each begin's end comes in the order of the begins.
        unflagged_ends: Ends do not say that they belong to a sequence, as those of PyTorch.
        packets: Packets so far.
        metadata: What this program wrote of the trace, as a JSON text.
    """

    def __init__(self) -> None:
        self.texts = Texts()
        self.slices, self.work = Packed(), Packed()
        self.begins, self.ends = Marks(), Marks()
        self.counts = Counter[tuple[str, str]]()
        self.is_pytorch = self.grouped = self.unflagged_ends = False
        self.damaged_packets = self.unnamed = self.dependencies = 0
        self.metadata = ""
        self._tracks: dict[int, tuple[str, str]] = {}
        self._states: dict[int, Interned] = {}
        self._last: dict[int, int] = {}
        self.packets = 0
        self._started_by: dict[int, int] = {}  # correlation by event of the GPU
        self._started: dict[int, int] = {}  # event of the GPU by place in `work`

    def add(self, packet: bytes) -> None:
        """Take the next packet; a damaged one is counted and left out."""
        self.packets += 1
        try:
            self._add(packet)
        except WireError:
            self.damaged_packets += 1

    def _add(self, packet: bytes) -> None:
        time = sequence = flags = 0
        data: dict[int, bytes] = {}
        for number, value in fields(packet):
            if isinstance(value, bytes):
                data[number] = value
            elif number == packets.TIMESTAMP:
                time = signed(value)
            elif number == packets.SEQUENCE:
                sequence = value
            elif number == packets.SEQUENCE_FLAGS:
                flags = value
            elif number == packets.STATE_CLEARED and value:
                flags |= packets.CLEARED
        if flags & packets.CLEARED or sequence not in self._states:
            self._states[sequence] = Interned()
        interned = self._states[sequence]
        if packets.INTERNED in data:
            _intern(data[packets.INTERNED], interned)
        if packets.TRACK_DESCRIPTOR in data:
            self._describe(data[packets.TRACK_DESCRIPTOR])
        if packets.TRACK_EVENT in data:
            self._track_event(data[packets.TRACK_EVENT], time, sequence, flags, interned)
        elif packets.RENDER_STAGE in data:
            self._render_stage(data[packets.RENDER_STAGE], time, interned)
        elif packets.COUNTER in data:
            self.counts["C", "gpu_counter"] += 1

    # -- tracks and slices

    def _describe(self, descriptor: bytes) -> None:
        """Keep the process and the thread of a track; no name, no command line."""
        uuid, pid, tid = 0, "", ""
        for number, value in fields(descriptor):
            if number == 1 and isinstance(value, int):
                uuid = value
            elif number in (3, 4) and isinstance(value, bytes):
                for inner, id_ in fields(value):
                    if inner == 1 and isinstance(id_, int):
                        pid = str(signed(id_))
                    elif inner == 2 and number == 4 and isinstance(id_, int):
                        tid = str(signed(id_))
        self._tracks[uuid] = (pid, tid)

    def track(self, uuid: int) -> tuple[str, str]:
        """Return the process and the thread of a track; a track without one stands for itself."""
        return self._tracks.get(uuid, ("", str(uuid)))

    def _track_event(
        self, event: bytes, time: int, sequence: int, flags: int, interned: Interned
    ) -> None:
        kind = track = 0
        name: bytes | None = None
        category = b""
        notes: list[bytes] = []
        started: list[bytes | int] = []
        for number, value in fields(event):
            if isinstance(value, int):
                if number == 9:
                    kind = value
                elif number == 11:
                    track = signed(value)
                elif number == 10:
                    name = interned.names.get(value)
                elif number == 3 and not category:
                    category = interned.categories.get(value, b"")
            elif number == 4:
                notes.append(value)
            elif number == 23:
                name = value
            elif number == 22 and not category:
                category = value
            elif number == _CORRELATES:
                started += [of_gpu for inner, of_gpu in fields(value) if inner == 1]
        if kind == _END:
            self._in_order(sequence, time)
            self.unflagged_ends |= not flags
            self.ends.add(track, time, self.packets)
            return
        values: Values = {}
        for note in notes:
            noted(note, interned, values)
        if kind != _BEGIN:
            self.metadata = values.get(annotations.METADATA, self.metadata)
            self.counts["C" if kind == 4 else "i", annotations.decoded(category)] += 1
            return
        self._in_order(sequence, time)
        self.unnamed += name is None
        text = annotations.decoded(name or b"unknown")
        kind = annotations.decoded(category) or self._kind(text, values, track)
        self.is_pytorch |= "cbid" in values or _is_pytorch(kind) or annotations.is_operators(values)
        pid, tid = self.track(track)
        part = annotations.part(values)
        at = (f'"[{part}] {pid}"' if part else pid), tid
        self.slices.add(self._row(time, 0, kind, text, values, at))
        self.begins.add(track, time, self.packets)
        correlation = annotations.whole(values, "correlation")
        if correlation is not None:
            numbers = [of_gpu for of_gpu in started if isinstance(of_gpu, int)]
            self._started_by |= dict.fromkeys(numbers, correlation)

    def _in_order(self, sequence: int, time: int) -> None:
        self.grouped |= time < self._last.get(sequence, time)
        self._last[sequence] = time

    def _kind(self, name: str, values: Values, track: int) -> str:
        """The category of a slice that has none, by what is noted of it."""
        if "cuda_sync_kind" in values:
            return "cuda_sync"
        if "cbid" in values:
            return (
                "cuda_driver" if name.startswith("cu") and name[2:3].isupper() else "cuda_runtime"
            )
        if "grid" in values or "registers per thread" in values:
            return "kernel"
        if "copy kind" in values:
            return "gpu_memcpy"
        if "memory kind" in values:
            return "gpu_memset"
        if annotations.is_python(values):
            return "python_function"
        return "overhead" if self.track(track)[0] == str(_OVERHEAD_PID) else _NO_CATEGORY

    def _row(
        self, time: int, dur: int, category: str, name: str, values: Values, at: tuple[str, str]
    ) -> Row:
        self.counts["X", category] += 1
        numbers = (
            annotations.whole(values, "correlation"),
            annotations.external(values),
            annotations.whole(values, "bytes"),
        )
        flags = HAS_TS | HAS_DUR
        for number, flag in zip(numbers, (HAS_CORRELATION, HAS_EXTERNAL, HAS_BYTES), strict=True):
            flags |= 0 if number is None else flag
        texts = (
            category,
            name,
            *at,
            annotations.device(values),
            annotations.stream(values),
            annotations.shape(values),
            annotations.config(values),
            values.get("kernel", "").strip('"'),
        )
        return (
            time,
            dur,
            0,
            *(number or 0 for number in numbers),
            *(self.texts.id(text) for text in texts),
            flags,
        )

    # -- work of the GPU

    def _render_stage(self, stage: bytes, time: int, interned: Interned) -> None:
        numbers: dict[int, int] = {}
        values: Values = {}
        name: bytes | None = None
        for number, value in fields(stage):
            if number == 18:
                self.dependencies += 1 if isinstance(value, int) else len(list(value))
            elif isinstance(value, int):
                numbers[number] = value
            elif number == 17:
                name = value
            elif number == 6:
                pair = dict(fields(value))
                key, noted_value = pair.get(1), pair.get(2)
                if isinstance(key, bytes) and isinstance(noted_value, bytes):
                    noted_text(key, noted_value, values)
            elif number == 21:
                _launch(value, interned, values)
        stage_name, is_compute = interned.stages.get(numbers.get(14, 0), (b"", False))
        lane, _ = interned.stages.get(numbers.get(13, 0), (b"", False))
        category = _STAGE_CATEGORIES.get(stage_name, "kernel" if is_compute else "gpu_stage")
        name = name or interned.names.get(numbers.get(20, 0)) or interned.kernels.get(
            numbers.get(19, 0)
        )  # fmt: skip
        values.setdefault("device id", str(signed(numbers.get(11, 0))))
        values.setdefault("stream id", _stream_of(lane, numbers.get(13, 0)))
        if "correlation" not in values and 1 in numbers:
            self._started[len(self.work)] = numbers[1]
        self.is_pytorch |= _is_pytorch(category)
        text = annotations.decoded(name or stage_name or b"unknown")
        at = annotations.device(values), annotations.stream(values)
        self.work.add(self._row(time, signed(numbers.get(2, 0)), category, text, values, at))

    def linked_work(self) -> Rows:
        """The work of the GPU; what does not tell its correlation has that of the call that names
        it.
        """
        work = self.work.all()
        for place, of_gpu in self._started.items():
            correlation = self._started_by.get(of_gpu)
            if correlation is not None:
                work["correlation"][place] = correlation
                work["flags"][place] |= HAS_CORRELATION
        return work


def _is_pytorch(category: str) -> bool:
    """Whether only PyTorch has events of a category."""
    known = is_known_category(category) and category not in IGNORED_CATEGORIES
    return known and category != _NO_CATEGORY


def _intern(data: bytes, interned: Interned) -> None:
    """Add the texts of an `InternedData`."""
    tables = {
        1: interned.categories,
        2: interned.names,
        3: interned.keys,
        29: interned.values,
        1000: interned.kernels,
        1001: interned.arguments,
    }
    for number, entry in fields(data):
        if not isinstance(entry, bytes):
            continue
        if number in tables:
            parts = dict(fields(entry))
            text = parts.get(3) if number == 1000 and 3 in parts else parts.get(2)
            if isinstance(text, bytes) and isinstance(iid := parts.get(1), int):
                tables[number][iid] = text
        elif number == 24:
            parts = dict(fields(entry))
            text = parts.get(2)
            if isinstance(text, bytes) and isinstance(iid := parts.get(1), int):
                interned.stages[iid] = (text, parts.get(4) == 2)


def _launch(launch: bytes, interned: Interned, values: Values) -> None:
    """Note grid, block, shared memory and registers of a `ComputeKernelLaunch`."""
    for number, value in fields(launch):
        if not isinstance(value, bytes):
            continue
        parts = dict(fields(value))
        if number in (1, 2):
            sides = [str(parts.get(side, 1)) for side in (1, 2, 3)]
            values["grid" if number == 1 else "block"] = f"[{', '.join(sides)}]"
        elif number == 3:
            key = parts.get(2)
            name = key if isinstance(key, bytes) else interned.arguments.get(_int(parts.get(1)))
            if name == b"registers_per_thread":
                values["registers per thread"] = str(_int(parts.get(4, parts.get(3))))


def _int(value: int | bytes | None) -> int:
    return value if isinstance(value, int) else 0


def _stream_of(lane: bytes, iid: int) -> str:
    """The number of the stream in a lane's name, else the lane itself."""
    head, _, tail = lane.rpartition(b"stream ")
    is_stream = tail.isdigit() and (not head or head.endswith(b"] "))
    return str(int(tail)) if is_stream and len(tail) < 20 else str(iid)
