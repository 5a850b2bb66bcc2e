"""The same rows as `_scan.c` gives, without a compiler: msgspec decodes, Python keeps.

Slower than the C scanner, and equal to it in what it returns; a test holds the two against each
other.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np

from analyzer.trace.columns import (
    BAD,
    END,
    HALVES,
    HAS_BYTES,
    HAS_CORRELATION,
    HAS_DUR,
    HAS_EXTERNAL,
    HAS_TS,
    NEED_MORE,
    ROW,
    Rows,
)

_Raw = msgspec.Raw
_EMPTY = _Raw(b"")
_SEPARATOR = re.compile(rb"[\s,]*")
_EVENT_END = re.compile(rb"\}(?=\s*(?:,\s*\{|,?\s*\]|,\s*$))")
_TIME = re.compile(rb"(-?)(\d{1,16})(?:\.(\d+))?")
_INT = re.compile(rb"-?\d{1,18}")
_BRACKET = re.compile(rb'"(?:[^"\\]|\\.)*"|["{}\[\]]', re.DOTALL)
_MOST_WAITED = 8 << 20


class _Args(msgspec.Struct):
    correlation: _Raw = _EMPTY
    external: _Raw = msgspec.field(name="External id", default=_EMPTY)
    old_external: _Raw = msgspec.field(name="external id", default=_EMPTY)
    device: _Raw = _EMPTY
    stream: _Raw = _EMPTY
    ran_on: _Raw = msgspec.field(name="original_stream", default=_EMPTY)
    sycl_queue: _Raw = msgspec.field(name="sycl queue", default=_EMPTY)
    level_zero_queue: _Raw = msgspec.field(name="l0 queue", default=_EMPTY)
    bytes: _Raw = _EMPTY
    kernel: _Raw = _EMPTY
    context: _Raw = _EMPTY
    dims: _Raw = msgspec.field(name="Input Dims", default=_EMPTY)
    old_dims: _Raw = msgspec.field(name="Input dims", default=_EMPTY)
    types: _Raw = msgspec.field(name="Input type", default=_EMPTY)
    strides: _Raw = msgspec.field(name="Input Strides", default=_EMPTY)
    concrete: _Raw = msgspec.field(name="Concrete Inputs", default=_EMPTY)
    grid: _Raw = _EMPTY
    block: _Raw = _EMPTY
    shared: _Raw = msgspec.field(name="shared memory", default=_EMPTY)
    registers: _Raw = msgspec.field(name="registers per thread", default=_EMPTY)
    collective: _Raw = msgspec.field(name="Collective name", default=_EMPTY)
    group: _Raw = msgspec.field(name="Process Group Name", default=_EMPTY)
    group_ranks: _Raw = msgspec.field(name="Process Group Ranks", default=_EMPTY)
    sent: _Raw = msgspec.field(name="In msg nelems", default=_EMPTY)
    received: _Raw = msgspec.field(name="Out msg nelems", default=_EMPTY)
    dtype: _Raw = _EMPTY


_NO_ARGS = _Args()


class _Event(msgspec.Struct):
    ph: str = ""
    cat: str = ""
    name: _Raw = _EMPTY
    pid: _Raw = _EMPTY
    tid: _Raw = _EMPTY
    ts: _Raw = _EMPTY
    dur: _Raw = _EMPTY
    args: _Args | None = None


class _Odd(Exception):
    """The event is whole but needs care."""


_decode_array = msgspec.json.Decoder(list[_Raw]).decode
_decode_event = msgspec.json.Decoder(_Event).decode


def _present(raw: _Raw) -> bytes:
    value = bytes(raw)
    return b"" if value == b"null" else value


class PureScanner:
    """`rows.Scanner` in Python; `on_odd` gets each event that is whole but not plain, and its
    place.
    """

    def __init__(self, keep_python: bool, on_odd: Callable[[bytes, int], None]) -> None:
        self._keep_python = keep_python
        self._on_odd = on_odd
        self._ids: dict[bytes, int] = {}
        self._rows: list[tuple[Any, ...]] = []
        self._done: list[Rows] = []
        self._counts: dict[tuple[int, int], int] = defaultdict(int)
        self._thread_names: dict[tuple[str, str], str] = {}
        self.events = 0
        self.trailing_commas = 0
        self.odd_start = self.bad_at = 0
        for text in (b"", b"X", b"M", b"B", b"E", b"python_function"):
            self.intern(text)

    def intern(self, text: bytes) -> int:
        found = self._ids.get(text)
        if found is None:
            found = self._ids[text] = len(self._ids)
        return found

    def count(self, ph: int, category: int) -> None:
        self._counts[ph, category] += 1

    def counts(self) -> dict[tuple[str, str], int]:
        strings = self.strings()
        return {(strings[ph], strings[cat]): n for (ph, cat), n in self._counts.items()}

    def name_thread(self, pid: str, tid: str, name: str) -> None:
        self._thread_names[pid, tid] = name

    def thread_names(self) -> dict[tuple[str, str], str]:
        return self._thread_names

    def strings(self) -> list[str]:
        return [text.decode("utf-8", "backslashreplace") for text in self._ids]

    def add(self, row: tuple[Any, ...]) -> None:
        self._rows.append(row)

    def rows(self) -> Rows:
        self._pack()
        return np.concatenate(self._done) if self._done else np.empty(0, ROW)

    def _pack(self) -> None:
        # Tuples take ten times the memory of packed rows.
        if self._rows:
            self._done.append(np.array(self._rows, dtype=ROW))
            self._rows = []

    def scan(self, text: bytes, start: int) -> tuple[int, int]:
        if len(self._rows) > 100_000:
            self._pack()
        last = text.rfind(b"}")
        while last > start and not _EVENT_END.match(text, last):
            last = text.rfind(b"}", start, last)
        if last > start:
            separator = _SEPARATOR.match(text, start)
            begin = separator.end() if separator else start
            try:
                events = _decode_array(b"[" + text[begin : last + 1] + b"]")
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                pass  # one event is not plain: find out which, below
            else:
                at = begin
                for raw in events:
                    value = bytes(raw)
                    self._take(value, at)
                    at += len(value)
                start = last + 1
        return self._one_by_one(text, start)

    def _one_by_one(self, text: bytes, start: int) -> tuple[int, int]:
        while True:
            separator = _SEPARATOR.match(text, start)
            at = separator.end() if separator else start
            if at >= len(text):
                return start, NEED_MORE
            if text[at] == 0x5D:
                self.trailing_commas += b"," in text[start:at]
                return at + 1, END
            self.odd_start = self.bad_at = at
            if text[at] != 0x7B:
                return at, BAD
            end = _event_end(text, at)
            if end < 0:
                # An event of this size is text that lost a quote: the reader finds its border.
                return at, NEED_MORE if len(text) - at < _MOST_WAITED else BAD
            try:
                (raw,) = _decode_array(b"[" + text[at:end] + b"]")
            except (msgspec.DecodeError, UnicodeDecodeError, ValueError, RecursionError):
                return at, BAD
            self._take(bytes(raw), at)
            start = end

    def _take(self, text: bytes, at: int) -> None:
        """Keep one event; what is odd goes to the repair path."""
        try:
            event = _decode_event(text)
            if event.ph == "M":
                raise _Odd
            row = self._row(event)
        except (_Odd, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            self._on_odd(text, at)
            return
        self.count(self.intern(event.ph.encode()), self.intern(event.cat.encode()))
        self.events += 1
        if row:
            self._rows.append(row)

    def _row(self, event: _Event) -> tuple[Any, ...] | None:
        name = bytes(event.name)
        if name and (name[:1] != b'"' or b"\\" in name):
            raise _Odd
        name.decode()
        args = event.args or _NO_ARGS
        flags = 0
        numbers: list[int] = []
        for raw, flag, convert in (
            (event.ts, HAS_TS, _to_ns),
            (event.dur, HAS_DUR, _to_ns),
            (args.correlation, HAS_CORRELATION, _to_int),
            (args.external, HAS_EXTERNAL, _to_int),
            (args.bytes, HAS_BYTES, _to_int),
        ):
            value = _present(raw)
            if flag == HAS_EXTERNAL and not value:
                value = _present(args.old_external)
            if value:
                flags |= flag
                numbers.append(convert(value))
            else:
                numbers.append(0)
        half = HALVES.get(event.ph, 0)
        flags |= half
        is_left_out = event.cat == "python_function" and not self._keep_python
        if not half and (event.ph != "X" or is_left_out):
            return None
        ts, dur, correlation, external, size = numbers
        kernel = bytes(args.kernel)
        kernel.decode()
        if b"\\" in kernel and kernel[:1] == b'"':
            raise _Odd
        return (
            ts,
            dur,
            self.events,
            correlation,
            external,
            size,
            self.intern(event.cat.encode()),
            self.intern(name[1:-1]),
            self._token(event.pid),
            self._token(event.tid),
            self._token(args.device),
            self._token(args.ran_on, args.stream, args.sycl_queue, args.level_zero_queue),
            self._inputs(args),
            self._joined(args.grid, args.block, args.shared, args.registers),
            self.intern(kernel[1:-1]) if kernel[:1] == b'"' else self._token(args.context),
            flags,
        )

    def _token(self, *raws: _Raw) -> int:
        """The first value that is there."""
        value = next((value for raw in raws if (value := _present(raw))), b"")
        return self.intern(value) if value else -1

    def _inputs(self, args: _Args) -> int:
        shape = self._joined(args.dims or args.old_dims, args.types, args.strides, args.concrete)
        if shape >= 0 or not bytes(args.collective):
            return shape
        sizes = (args.sent, args.received, args.dtype)
        return self._joined(args.collective, args.group, args.group_ranks, *sizes)

    def _joined(self, *raws: _Raw) -> int:
        texts = [bytes(raw) for raw in raws]
        return self.intern(b"\x1f".join(texts)) if any(texts) else -1


def _event_end(text: bytes, at: int) -> int:
    """Where the event that begins at `at` has closed all its brackets; -1 if it has not."""
    depth = 0
    for token in _BRACKET.finditer(text, at):
        what = token.group()
        if what == b'"':
            return -1
        if what in (b"{", b"["):
            depth += 1
        elif what in (b"}", b"]"):
            depth -= 1
            if depth == 0:
                return token.end()
    return -1


def _to_ns(text: bytes) -> int:
    match = _TIME.fullmatch(text)
    if not match or int(match[2]) > 9223372036854773:
        raise _Odd
    sign, whole, part = match.groups()
    part = part or b""
    value = int(whole) * 1000 + int((part + b"000")[:3]) + (part[3:4] >= b"5")
    return -value if sign else value


def _to_int(text: bytes) -> int:
    if not _INT.fullmatch(text):
        raise _Odd
    return int(text)
