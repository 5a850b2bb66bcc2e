"""The JSON of rocprofv3 (`--output-format json`), plain or gzip, to columns; this module is the
only one that knows its fields.

The file is never parsed whole: its lists are read an element at a time, as the stream comes. Times
are integer nanoseconds. It also holds command line, host, user and paths: only fields that are
named here are kept, and no error quotes the content.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np

from analyzer.trace.events import Trace
from analyzer.trace.json_stream import JsonStream
from analyzer.trace.reader import DEFAULTS, ReadOptions
from analyzer.trace.rocprof.events import RocmEvents, is_marker
from analyzer.trace.rocprof.traces import RocmProcess, traces_of
from analyzer.trace.stream import TraceStream, first_bytes
from analyzer.trace.tabular.tables import MISSING, PIECE_ROWS, Ints

_ROOT = "rocprofiler-sdk-tool"
_START = re.compile(rb'[\s\xef\xbb\xbf]*\{\s*"' + _ROOT.encode() + rb'"\s*:')
_REGIONS = ("hip_api", "hsa_api", "marker_api", "rccl_api")
_GPU = 2  # type of an agent
_GPU_FACTS = {"cu_count": "numSms", "gfx_target_version": "gfxTargetVersion"}

Record = dict[str, Any]


def sniff(path: Path) -> bool:
    """Return whether a file begins as rocprofv3 writes its JSON."""
    return not path.is_dir() and _START.match(first_bytes(path)) is not None


def read(path: Path, options: ReadOptions = DEFAULTS) -> list[Trace]:
    """Read all processes of a file.

    Raises:
        TraceError: It cannot be read, is damaged, holds no event, or more than is read. The message
            is one line.
    """
    events = RocmEvents(path, options.most_events)
    known: list[RocmProcess] = []
    with TraceStream(path, options.most_bytes) as stream:
        json = JsonStream(stream, options.progress)
        for key in json.members():
            if key != _ROOT:
                json.skip()
                continue
            for _ in json.items():
                known.append(_Process(json, events, len(known)).read())
        size = stream.json_bytes
    return traces_of(path, events.finished(), known, size)


class _Process:
    """One element of the root's list."""

    def __init__(self, json: JsonStream, events: RocmEvents, number: int) -> None:
        self._json = json
        self._events = events
        self._number = number
        self._pid: int | None = None
        self._agents: dict[int, int] = {}
        self._devices: list[dict[str, Any]] = []
        self._kinds: dict[int, tuple[str, list[str]]] = {}
        self._messages: dict[int, bytes] = {}
        self._symbols: dict[int, tuple[int, int]] = {}

    def read(self) -> RocmProcess:
        json = self._json
        readers: dict[str, Callable[[], None]] = {
            "metadata": self._read_pid,
            "agents": self._read_agents,
            "strings": self._read_strings,
            "kernel_symbols": self._read_symbols,
            "buffer_records": self._read_records,
        }
        for key in json.members():
            readers.get(key, json.skip)()
        metadata: dict[str, Any] = {"format": "rocprofv3 JSON"}
        if self._devices:
            metadata["deviceProperties"] = self._devices
        return RocmProcess(self._pid, metadata)

    def _read_pid(self) -> None:
        for key in self._json.members():
            if key == "pid":
                self._pid = _integer(self._json.value(), None)
            else:
                self._json.skip()

    def _read_agents(self) -> None:
        for agent in _records(self._json):
            handle, number = _handle(agent.get("id")), agent.get("logical_node_type_id")
            if agent.get("type") != _GPU or not isinstance(number, int):
                continue
            self._agents[handle] = number
            device: dict[str, Any] = {"id": number}
            name = agent.get("product_name")
            if isinstance(name, str) and name and name.isprintable():
                device["name"] = name
            facts = ((new, agent.get(old)) for old, new in _GPU_FACTS.items())
            self._devices.append(device | {n: v for n, v in facts if isinstance(v, int)})

    def _read_strings(self) -> None:
        for key in self._json.members():
            if key == "buffer_records":
                for number, kind in enumerate(_records(self._json)):
                    operations = kind.get("operations")
                    names = cast("list[Any]", operations) if isinstance(operations, list) else []
                    self._kinds[number] = (str(kind.get("kind")), [str(name) for name in names])
            elif key == "marker_api":
                for entry in _records(self._json):
                    text = entry.get("value")
                    if isinstance(text, str):
                        key_of = _integer(entry.get("key"), MISSING)
                        self._messages[key_of] = text.encode("utf-8", "surrogatepass")
            else:
                self._json.skip()

    def _read_symbols(self) -> None:
        for symbol in _records(self._json):
            name = symbol.get("formatted_kernel_name") or symbol.get("kernel_name")
            if isinstance(name, str) and name:
                registers = _integer(symbol.get("arch_vgpr_count"), MISSING)
                number = _integer(symbol.get("kernel_id"), MISSING)
                self._symbols[number] = (self._events.report.texts.id(name), registers)

    def _read_records(self) -> None:
        for key in self._json.members():
            if key == "kernel_dispatch":
                self._pieces(self._dispatch, self._events.add_dispatches)
            elif key == "memory_copy":
                self._pieces(self._copy, self._events.add_copies)
            elif key in _REGIONS:
                self._add_regions()
            else:
                self._json.skip()

    def _pieces(
        self, row: Callable[[Record], Record], add: Callable[[dict[str, Ints]], None]
    ) -> None:
        rows: list[Record] = []
        for record in _records(self._json):
            rows.append(self._timed(record) | row(record))
            if len(rows) >= PIECE_ROWS:
                add(_columns(rows))
                rows = []
        if rows:
            add(_columns(rows))

    def _timed(self, record: Record) -> Record:
        correlation = record.get("correlation_id")
        return {
            "process": self._number,
            "start": record.get("start_timestamp"),
            "end": record.get("end_timestamp"),
            "correlation": _part(correlation, "internal") or None,  # 0 stands for none
        }

    def _dispatch(self, record: Record) -> Record:
        info = record.get("dispatch_info")
        number = _integer(_part(info, "kernel_id"), MISSING)
        unknown = self._events.report.texts.id("unknown") if number not in self._symbols else -1
        name, registers = self._symbols.get(number, (unknown, MISSING))
        sizes = {
            f"{new}_{axis}": _part(_part(info, old), axis)
            for new, old in (("workgroup", "workgroup_size"), ("grid", "grid_size"))
            for axis in "xyz"
        }
        return sizes | {
            "name": name,
            "registers": registers,
            "shared": _part(info, "group_segment_size"),
            "device": self._device(_part(info, "agent_id")),
            "queue": _handle(_part(info, "queue_id")),
        }

    def _copy(self, record: Record) -> Record:
        target = self._device(record.get("dst_agent_id"))
        source = self._device(record.get("src_agent_id"))
        return {
            "name": self._events.copy_name(self._operation(record)[1]),
            "device": source if target == MISSING else target,
            "queue": MISSING,
            "stream": _handle(record.get("stream_id")),
            "bytes": record.get("bytes"),
        }

    def _add_regions(self) -> None:
        rows: list[Record] = []
        kinds: list[str] = []
        texts: list[bytes | None] = []

        def add() -> None:
            if rows:
                self._events.add_regions(_columns(rows), kinds, texts)
            for piece in (rows, kinds, texts):
                piece.clear()

        for record in _records(self._json):
            kind, operation = self._operation(record)
            timed = self._timed(record)
            correlation = record.get("correlation_id")
            text: bytes | None = operation.encode("utf-8", "surrogatepass")
            if is_marker(kind):
                text = self._messages.get(_integer(timed["correlation"], MISSING), text)
            around = _part(correlation, "ancestor")
            rows.append(timed | {"tid": record.get("thread_id"), "parent": around})
            kinds.append(kind)
            texts.append(text)
            if len(rows) >= PIECE_ROWS:
                add()
        add()

    def _operation(self, record: Record) -> tuple[str, str]:
        """Names of kind and operation of a record."""
        kind, names = self._kinds.get(_integer(record.get("kind"), MISSING), ("", list[str]()))
        number: int = _integer(record.get("operation"), MISSING)
        return kind, names[number] if 0 <= number < len(names) else ""

    def _device(self, agent: Any) -> int:
        return self._agents.get(_handle(agent), MISSING)


def _records(json: JsonStream) -> Iterator[Record]:
    """The elements of a list that are objects."""
    for _ in json.items():
        value = json.value()
        if isinstance(value, dict):
            yield cast("Record", value)


def _columns(rows: list[Record]) -> dict[str, Ints]:
    return {
        name: np.array([_integer(row[name], MISSING) for row in rows], np.int64) for name in rows[0]
    }


def _part(value: Any, name: str) -> Any:
    return cast("Record", value).get(name) if isinstance(value, dict) else None


def _handle(value: Any) -> int:
    return _integer(_part(value, "handle"), MISSING)


def _integer(value: Any, otherwise: Any) -> Any:
    is_number = isinstance(value, int) and not isinstance(value, bool)
    return value if is_number and -(1 << 63) < value < 1 << 63 else otherwise
