"""The messages of an XPlane file (`XSpace`): planes, their lines, and the events of a line.

The only place that knows the numbers of their fields. Texts of planes that nobody asks for are not
decoded. Source: openxla/xla, third_party/tsl/tsl/profiler/protobuf/xplane.proto.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from analyzer.trace.wire import WireError, behind, encoded, fields, signed, varint

Value = int | float | str

_PLANES, _ERRORS, _WARNINGS = 1, 2, 3
_PLANE_NAME, _LINES, _EVENT_METADATA, _STAT_METADATA, _PLANE_STATS = 2, 3, 4, 5, 6
_LINE_ID, _LINE_NAME, _TIMESTAMP, _EVENTS = 1, 2, 3, 4
# The fields of an event with their types: three numbers and a message.
_NAME_KEY, _OFFSET_KEY, _DURATION_KEY, _STAT_KEY = 1 << 3, 2 << 3, 3 << 3, 4 << 3 | 2
_NUMBER_KEYS = (_NAME_KEY, _OFFSET_KEY, _DURATION_KEY)
_KEY, _VALUE, _NAME = 1, 2, 2
_STAT_ID, _DOUBLE, _UINT, _INT, _TEXT, _REF = 1, 2, 3, 4, 5, 7
_CORRELATION = "correlation_id"


@dataclass
class Plane:
    """A plane: a device, the host's threads, or something that is said of the profile.

    Attributes:
        lines, event_metadata, stat_metadata, own_stats: Encoded.
    """

    name: str = ""
    lines: list[memoryview] = field(default_factory=list[memoryview])
    event_metadata: list[memoryview] = field(default_factory=list[memoryview])
    stat_metadata: list[memoryview] = field(default_factory=list[memoryview])
    own_stats: list[memoryview] = field(default_factory=list[memoryview])

    def event_names(self) -> dict[int, str]:
        return _names(self.event_metadata)

    def stat_names(self) -> dict[int, str]:
        return _names(self.stat_metadata)

    def stats(self) -> dict[str, Value]:
        """What is said of the plane itself."""
        return Stats(self.stat_names()).of(map(bytes, self.own_stats))


@dataclass(frozen=True)
class Line:
    """A thread or a stream.

    Attributes:
        start_ns: What the events' offsets count from.
    """

    id: int
    name: str
    start_ns: int
    _data: memoryview

    def events(self, stats: Stats) -> Iterator[Event]:
        """Yield the events.

        Raises:
            WireError: One is damaged.
        """
        start_ps = self.start_ns * 1000
        for number, value in fields(self._data):
            if number == _EVENTS:
                event = bytes(_message(value))
                try:
                    yield _event(event, start_ps, stats)
                except IndexError as error:
                    raise WireError("an event is cut off") from error


class Event(NamedTuple):
    """An event; times are integer nanoseconds from the profile's start.

    Attributes:
        name_id: Key of its name in the plane's names of events.
        correlation: None if it has none.
        stats: Encoded, those of interest alone, for `Stats.of`.
    """

    name_id: int
    start: int
    dur: int
    correlation: int | None
    stats: tuple[bytes, ...]


def _event(event: bytes, start_ps: int, stats: Stats) -> Event:
    """Decode an event in one go over its bytes: there are millions."""
    name = offset = duration = at = 0
    correlation = None
    kept: tuple[bytes, ...] = ()
    while at < len(event):
        key, value = event[at], event[at + 1]
        if key == _STAT_KEY or key in _NUMBER_KEYS:
            if value < 0x80:
                at += 2
            else:
                value, at = varint(event, at + 1)
        else:
            at = behind(event, at)
        if key == _STAT_KEY:
            stat = event[at : at + value]
            at += value
            if stat.startswith(stats.wanted):
                kept += (stat,)
            elif stat.startswith(stats.correlation):
                correlation = signed(varint(stat, len(stats.correlation) + 1)[0])
        elif key == _NAME_KEY:
            name = value
        elif key == _OFFSET_KEY:
            offset = signed(value)
        elif key == _DURATION_KEY:
            duration = signed(value)
    if at > len(event):
        raise WireError("an event is cut off")
    begin = start_ps + offset
    start = begin // 1000
    return Event(name, start, (begin + duration) // 1000 - start, correlation, kept)


class Stats:
    """The stats of a plane by the names of their kinds.

    Attributes:
        wanted: What the encoded stats of interest begin with.
        correlation: What an encoded correlation id begins with.
    """

    def __init__(self, names: Mapping[int, str], wanted: Collection[str] = ()) -> None:
        self._names = names
        of = {name: b"\x08" + encoded(number) for number, name in names.items()}
        self.wanted = tuple(of[name] for name in wanted if name in of)
        self.correlation = of.get(_CORRELATION, b"\x00")  # no stat begins so

    def of(self, stats: Iterable[bytes]) -> dict[str, Value]:
        """Decode stats; those without a name or value are not there."""
        found: dict[str, Value] = {}
        for stat in stats:
            name, value = self._decode(stat)
            if name and value is not None:
                found[name] = value
        return found

    def _decode(self, stat: bytes) -> tuple[str, Value | None]:
        name, value = "", None
        for number, what in fields(stat):
            if number == _TEXT and isinstance(what, bytes):
                value = _text(what)
            elif isinstance(what, bytes):
                continue
            elif number == _STAT_ID:
                name = self._names.get(what, "")
            elif number == _REF:
                value = self._names.get(what)
            elif number == _DOUBLE:
                (value,) = struct.unpack("<d", what.to_bytes(8, "little"))
            elif number in (_UINT, _INT):
                value = signed(what)
        return name, value


def planes(space: memoryview) -> Iterator[Plane]:
    """Yield the planes of a file.

    Raises:
        WireError: It is damaged.
    """
    for number, value in fields(space):
        if number != _PLANES:
            continue
        plane = Plane()
        parts = {
            _LINES: plane.lines,
            _EVENT_METADATA: plane.event_metadata,
            _STAT_METADATA: plane.stat_metadata,
            _PLANE_STATS: plane.own_stats,
        }
        for part, what in fields(_message(value)):
            if part == _PLANE_NAME:
                plane.name = _text(_message(what))
            elif part in parts:
                parts[part].append(_message(what))
        yield plane


def messages_of_loss(space: memoryview) -> int:
    """How many errors and warnings the profiler wrote; their texts name hosts."""
    return sum(number in (_ERRORS, _WARNINGS) for number, _ in fields(space))


def line_of(data: memoryview) -> Line:
    """Read what is said of a line before its events.

    Raises:
        WireError: It is damaged.
    """
    number = start = 0
    name = ""
    for part, what in fields(data):
        if part == _LINE_NAME:
            name = _text(_message(what))
        elif isinstance(what, memoryview):
            continue
        elif part == _LINE_ID:
            number = signed(what)
        elif part == _TIMESTAMP:
            start = signed(what)
    return Line(number, name, start, data)


def _names(entries: list[memoryview]) -> dict[int, str]:
    """A map of metadata as the names in it."""
    names: dict[int, str] = {}
    for entry in entries:
        key, name = 0, ""
        for number, value in fields(entry):
            if number == _KEY and isinstance(value, int):
                key = value
            elif number == _VALUE:
                for part, what in fields(_message(value)):
                    if part == _NAME:
                        name = _text(_message(what))
        names[key] = name
    return names


def _message(value: int | memoryview | bytes) -> memoryview:
    if isinstance(value, int):
        raise WireError("a number stands where a message or a text belongs")
    return memoryview(value)


def _text(data: memoryview | bytes) -> str:
    return bytes(data).decode("utf-8", "backslashreplace")
