"""The events of an Ascend trace as rows, and the flows that tell what started what.

Times are texts, the fields that link events have names of their own, and a flow's ends are all that
joins an operator to its kernels: so this scanner keeps what Kineto's leaves out.
Source: Ascend/pytorch, `torch_npu/profiler/analysis/prof_common_func/_trace_event_manager.py`.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from analyzer.trace import repair
from analyzer.trace.columns import HAS_DUR, HAS_TS, UNIT_SEPARATOR
from analyzer.trace.pure_scanner import PureScanner

_Raw = msgspec.Raw
_EMPTY = _Raw(b"")
FLOWS = ("async_npu", "HostToDevice")
NONE = -1
Ints = npt.NDArray[np.int64]


class _Args(msgspec.Struct):
    connection: _Raw = msgspec.field(name="connection_id", default=_EMPTY)
    queued: _Raw = msgspec.field(name="correlation_id", default=_EMPTY)
    task_type: _Raw = msgspec.field(name="Task Type", default=_EMPTY)
    stream: _Raw = msgspec.field(name="Physic Stream Id", default=_EMPTY)
    old_stream: _Raw = msgspec.field(name="Stream Id", default=_EMPTY)
    dims: _Raw = msgspec.field(name="Input Dims", default=_EMPTY)
    types: _Raw = msgspec.field(name="Input type", default=_EMPTY)


_NO_ARGS = _Args()


class _Event(msgspec.Struct):
    ph: str = ""
    cat: str = ""
    name: str = ""
    pid: _Raw = _EMPTY
    tid: _Raw = _EMPTY
    ts: _Raw = _EMPTY
    dur: _Raw = _EMPTY
    id: _Raw = _EMPTY
    args: _Args | None = None


class Numbers:
    """Columns of integers that grow row by row."""

    def __init__(self, *names: str) -> None:
        self._columns = {name: array("q") for name in names}

    def add(self, *values: int) -> None:
        for column, value in zip(self._columns.values(), values, strict=True):
            column.append(value)

    def column(self, name: str) -> Ints:
        return np.array(self._columns[name], np.int64)


_decode = msgspec.json.Decoder(_Event).decode


class AscendScanner(PureScanner):
    """`columns.Scanner` that also keeps links and flows.

    Attributes:
        links: Of each row that has any: its index, its connection and its place in the queue
            (numbers that stand for ids, NONE without), the text id of its task's type.
        flows: Of each end of a flow: place in FLOWS, number of its id, whether it is the last end,
            and the point that it names: text ids of process and thread, nanoseconds.
    """

    def __init__(self, keep_python: bool, on_odd: Callable[[bytes, int], None]) -> None:
        super().__init__(keep_python, on_odd)
        self.links = Numbers("index", "connection", "queued", "task")
        self.flows = Numbers("category", "id", "is_last", "pid", "tid", "ts")

    def _take(self, text: bytes, at: int) -> None:
        try:
            event = _decode(text)
            if event.ph == "M":
                raise ValueError
            self._keep(event)
        except (msgspec.DecodeError, ValueError, RecursionError):
            self._on_odd(text, at)

    def take_mended(self, event: dict[str, Any]) -> set[str]:
        """Take an event that was parsed with care; return codes of what is odd in it."""
        texts = {key: event[key] for key in ("ph", "cat", "name") if key in event}
        plain = event | {k: text if isinstance(text, str) else "" for k, text in texts.items()}
        plain["args"] = event.get("args") if isinstance(event.get("args"), dict) else None
        try:
            text = repair.json_text(plain).encode("utf-8", "backslashreplace")
            self._keep(_decode(text))
        except (msgspec.DecodeError, ValueError, RecursionError):
            self.events += 1
            self.count(self._text(str(plain.get("ph", ""))), self._text(str(plain.get("cat", ""))))
            return {"odd_value"}
        return set()

    def _keep(self, event: _Event) -> None:
        """Count an event, and keep it if it has a duration or joins two.

        Raises:
            ValueError: A number of it is none.
        """
        ts, dur = _ns(event.ts), _ns(event.dur)
        args = event.args or _NO_ARGS
        connection, queued, task = _id(args.connection), _id(args.queued), _word(args.task_type)
        shape = self._shape(args)
        index = self.events
        self.count(self._text(event.ph), self._text(event.cat))
        self.events += 1
        if event.cat in FLOWS and event.ph in ("s", "f") and ts is not None:
            number = FLOWS.index(event.cat), _id(event.id), event.ph == "f"
            self.flows.add(*number, self._token(event.pid), self._token(event.tid), ts)
        if event.ph != "X" or (event.cat == "python_function" and not self._keep_python):
            return
        if connection != NONE or queued != NONE or task:
            self.links.add(index, connection, queued, self._text(task))
        flags = (HAS_TS if ts is not None else 0) | (HAS_DUR if dur is not None else 0)
        name, category = self._text(event.name), self._text(event.cat)
        pid, tid = self._token(event.pid), self._token(event.tid)
        stream = self._token(args.stream, args.old_stream)
        row = (ts or 0, dur or 0, index, 0, 0, 0, category, name)
        self.add((*row, pid, tid, -1, stream, shape, -1, -1, flags))

    def _text(self, text: str) -> int:
        return self.intern(text.encode("utf-8", "backslashreplace"))

    def _shape(self, args: _Args) -> int:
        """Dims and types; the format writes them as one text, `1,8;8,8`."""
        dims, types = _lists(args.dims, is_number=True), _lists(args.types, is_number=False)
        return self._text(UNIT_SEPARATOR.join((dims, types, "", ""))) if dims or types else -1


def _ns(raw: _Raw) -> int | None:
    """Nanoseconds of microseconds that are a number or a text; None if there are none.

    Raises:
        ValueError: It is neither.
    """
    value = bytes(raw)
    if not value or value == b"null":
        return None
    ns = repair.to_ns(value.strip(b'"').decode("ascii"))
    if ns is None:
        raise ValueError
    return ns


def _id(raw: _Raw) -> int:
    """A number for an id, which may be any text; the same for a number and its text."""
    value = bytes(raw).strip(b'"')
    if not value or value == b"null":
        return NONE
    # What is no number of 60 bits gets one above those.
    return int(value) if value.isdigit() and len(value) < 19 else hash(value) | 1 << 62


def _word(raw: _Raw) -> str:
    value = bytes(raw)
    return json.loads(value) if value[:1] == b'"' else ""


def _lists(raw: _Raw, is_number: bool) -> str:
    """The text that Kineto has for a list of lists, or of words."""
    value = bytes(raw)
    if value[:1] != b'"':
        return value.decode("utf-8", "backslashreplace") if value != b"null" else ""
    parts = str(json.loads(value)).split(";")
    if not is_number:
        return json.dumps(parts)
    lists = [[int(n) for n in part.split(",") if n.strip().isdigit()] for part in parts]
    return json.dumps(lists)
