"""A file in Perfetto's own format: for ui.perfetto.dev, and loads here.

The messages are those of PyTorch's `.pftrace`: slices with a category, and what is noted of them
under Chrome's names. The end of each slice follows its begin, so that two that touch are never
taken for one within the other.
Source: google/perfetto, `track_event.proto`, `track_descriptor.proto`; protobuf.dev, "Encoding".
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from typing import IO, Any, cast

from analyzer.render.traces.annotated import Place
from analyzer.trace.pftrace.annotations import METADATA, PART

_LOW_64 = (1 << 64) - 1
# Fields of a packet, of a track's description, of a slice, of an annotation.
_PACKET, _TIMESTAMP, _SEQUENCE, _INTERNED, _FLAGS, _DESCRIPTOR, _EVENT = 1, 8, 10, 12, 13, 60, 11
_UUID, _PROCESS, _THREAD, _PARENT, _PID, _TID = 1, 3, 4, 5, 1, 2
_PROCESS_NAME, _THREAD_NAME = 6, 5
_TYPE, _TRACK, _NAME, _CATEGORY, _FLOW, _NOTE = 9, 11, 10, 3, 47, 4
_IID, _TEXT, _CATEGORIES, _NAMES = 1, 2, 1, 2
_KEY, _BOOL, _INT, _REAL, _STRING, _ENTRY, _ITEM = 10, 2, 4, 5, 6, 11, 12
_BEGIN, _END, _INSTANT = 1, 2, 3
_CLEARED, _NEEDS_STATE = 1, 2


class PerfettoWriter:
    """Writes the events of one or several traces.

    Attributes:
        label: Of the trace whose events come next, if the file has several; noted of each.
    """

    def __init__(self, out: IO[bytes], metadata: Mapping[str, object]) -> None:
        self.label = ""
        self._out = out
        self._names: dict[str, int] = {}
        self._categories: dict[str, int] = {}
        self._processes: dict[int, int] = {}
        self._tracks: dict[Place, int] = {}
        text = json.dumps(metadata, ensure_ascii=False, separators=(",", ":"))
        note = _data(_NOTE, _annotation(METADATA, text))
        self._packet(0, _number(_TYPE, _INSTANT) + note, flags=_CLEARED)

    def finish(self) -> None:
        """The format has no end."""

    def write_name(self, what: str, pid: int, tid: int, value: str, key: str = "name") -> None:
        if key != "name":
            return
        name = f"{self.label} {json.loads(value)}".strip().encode()
        if what == "process_name":
            self._processes[pid] = uuid = self._next_uuid()
            process = _number(_PID, pid) + _data(_PROCESS_NAME, name)
            self._describe(_number(_UUID, uuid) + _data(_PROCESS, process))
        else:
            self._tracks[pid, tid] = uuid = self._next_uuid()
            parent = _number(_PARENT, self._processes[pid])
            thread = _number(_PID, pid) + _number(_TID, tid) + _data(_THREAD_NAME, name)
            self._describe(_number(_UUID, uuid) + parent + _data(_THREAD, thread))

    def write_slice(
        self, category: str, name: str, at: Place, start: int, dur: int, args: str, flows: list[int]
    ) -> None:
        new: list[bytes] = []
        track = _number(_TRACK, self._tracks[at])
        event = _number(_TYPE, _BEGIN) + track
        event += _number(_NAME, _interned(name, self._names, _NAMES, new))
        event += _number(_CATEGORY, _interned(f'"{category}"', self._categories, _CATEGORIES, new))
        event += b"".join(_fixed(_FLOW, flow) for flow in flows)
        noted = cast("dict[str, Any]", json.loads(f"{{{args}}}"))
        if self.label:
            noted[PART] = self.label
        event += b"".join(_data(_NOTE, _annotation(key, value)) for key, value in noted.items())
        self._packet(start, event, b"".join(new))
        self._packet(start + dur, _number(_TYPE, _END) + track)

    def write_arrow(self, number: int, source: Place, begin: int, target: Place, end: int) -> None:
        """Arrows are drawn by the flows of the slices."""

    def _next_uuid(self) -> int:
        return len(self._processes) + len(self._tracks) + 1

    def _describe(self, descriptor: bytes) -> None:
        self._out.write(_data(_PACKET, _data(_DESCRIPTOR, descriptor)))

    def _packet(
        self, time: int, event: bytes, interned: bytes = b"", flags: int = _NEEDS_STATE
    ) -> None:
        packet = _number(_TIMESTAMP, time) + _number(_SEQUENCE, 1) + _number(_FLAGS, flags)
        if interned:
            packet += _data(_INTERNED, interned)
        self._out.write(_data(_PACKET, packet + _data(_EVENT, event)))


def _interned(name: str, known: dict[str, int], table: int, new: list[bytes]) -> int:
    """The number of a JSON text; a new one is added to `new`, as an entry of a table of texts."""
    number = known.get(name)
    if number is None:
        number = known[name] = len(known) + 1
        text = str(json.loads(name)).encode("utf-8", "backslashreplace")
        new.append(_data(table, _number(_IID, number) + _data(_TEXT, text)))
    return number


def _annotation(key: str | None, value: Any) -> bytes:
    """What is noted of a slice: a value of JSON with its key."""
    name = b"" if key is None else _data(_KEY, key.encode("utf-8", "backslashreplace"))
    if isinstance(value, bool):
        return name + _number(_BOOL, int(value))
    if isinstance(value, int):
        return name + _number(_INT, value)
    if isinstance(value, float):
        (bits,) = struct.unpack("<Q", struct.pack("<d", value))
        return name + _fixed(_REAL, bits)
    if isinstance(value, dict):
        entries = cast("dict[str, Any]", value).items()
        return name + b"".join(_data(_ENTRY, _annotation(key, item)) for key, item in entries)
    if isinstance(value, list):
        items = cast("list[Any]", value)
        return name + b"".join(_data(_ITEM, _annotation(None, item)) for item in items)
    text = "null" if value is None else str(value)
    return name + _data(_STRING, text.encode("utf-8", "backslashreplace"))


def _number(field: int, value: int) -> bytes:
    """A field with a number of variable length."""
    return _varint(field << 3) + _varint(value & _LOW_64)


def _fixed(field: int, value: int) -> bytes:
    """A field with a number of eight bytes."""
    return _varint(field << 3 | 1) + struct.pack("<Q", value & _LOW_64)


def _data(field: int, value: bytes) -> bytes:
    """A field with bytes: a text or a message."""
    return _varint(field << 3 | 2) + _varint(len(value)) + value


def _varint(value: int) -> bytes:
    if value < 0x80:
        return value.to_bytes(1, "little")
    parts = bytearray()
    while value:
        parts.append(value & 0x7F | (0x80 if value > 0x7F else 0))
        value >>= 7
    return bytes(parts)
