"""The C scanner of `_scan.c`, by ctypes. Absent where no compiler built it: then `pure_scanner`
reads.

A long text is read by two threads: the second begins at what looks like the start of an event in
the middle. If the first ends exactly there, between two events, it was one; else what the second
read is dropped. C code holds no interpreter lock, so both run at once.
"""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import numpy as np

from analyzer.trace.columns import END, NEED_MORE, NO_MEMORY, ODD, ROW, Rows

ODD_TEXT = Callable[[bytes, int], None]
_WORTH_SPLITTING = 1 << 20  # bytes
_EVENT = re.compile(rb'\}\s*,\s*(?=\{\s*"(?:ph|name|cat|ts|pid|tid|args|dur|id|bp|s)"\s*:)')


class _Count(ctypes.Structure):
    """The C struct `Count`."""

    _fields_ = (("ph", ctypes.c_int32), ("cat", ctypes.c_int32), ("events", ctypes.c_int64))


class _Named(ctypes.Structure):
    """The C struct `Named`: places in the texts of its part, and lengths."""

    _fields_ = (
        ("at", ctypes.c_int64),
        ("pid", ctypes.c_int32),
        ("tid", ctypes.c_int32),
        ("name", ctypes.c_int32),
    )


class _Part(ctypes.Structure):
    """The C struct `Part`: what was read."""

    _fields_ = (
        ("rows", ctypes.c_void_p),
        ("n_rows", ctypes.c_int64),
        ("counts", ctypes.POINTER(_Count)),
        ("n_counts", ctypes.c_int64),
        ("named", ctypes.POINTER(_Named)),
        ("n_named", ctypes.c_int64),
        ("texts", ctypes.c_void_p),
        ("n_texts", ctypes.c_int64),
        ("events", ctypes.c_int64),
        ("trailing_commas", ctypes.c_int64),
    )


class _State(ctypes.Structure):
    """The C struct `Scanner`, as far as Python looks into it."""

    _fields_ = (
        ("part", _Part),
        ("arena", ctypes.c_void_p),
        ("arena_len", ctypes.c_int64),
        ("offsets", ctypes.POINTER(ctypes.c_int64)),
        ("n_strings", ctypes.c_int64),
        ("status", ctypes.c_int64),
        ("odd_start", ctypes.c_int64),
        ("odd_end", ctypes.c_int64),
        ("bad_at", ctypes.c_int64),
    )


@cache
def library() -> ctypes.CDLL | None:
    """Load the compiled scanner, or None if it was not built or HOSTBOUND_PURE_SCANNER is set."""
    if os.environ.get("HOSTBOUND_PURE_SCANNER"):
        return None
    for path in sorted(Path(__file__).parent.glob("_scan.*")):
        if path.suffix not in (".so", ".pyd", ".dll", ".dylib"):
            continue
        try:
            lib = ctypes.CDLL(str(path))
        except OSError:
            continue  # built for another machine: the pure scanner reads the same rows
        if not hasattr(lib, "hb_append"):
            continue  # built from an older source
        state, pointer = ctypes.POINTER(_State), ctypes.c_void_p
        number, small, text = ctypes.c_int64, ctypes.c_int32, ctypes.c_char_p
        for name, result, arguments in (
            ("hb_new", state, [small]),
            ("hb_free", None, [state]),
            ("hb_intern", small, [state, text, number]),
            ("hb_count", small, [state, small, small, number]),
            ("hb_add", small, [state, pointer]),
            ("hb_name", small, [state, *[text, small] * 3]),
            ("hb_scan", number, [state, text, number, number]),
            ("hb_drop", None, [state]),
            ("hb_append", small, [state, state]),
            ("hb_next_named", number, [state, number]),
            ("hb_parents", None, [pointer, pointer, number, pointer, pointer]),
        ):
            function = getattr(lib, name)
            function.restype, function.argtypes = result, arguments
        return lib
    return None


class _Scanner:
    """One C scanner: what it has read, and its strings."""

    def __init__(self, lib: ctypes.CDLL, keep_python: bool) -> None:
        self._lib = lib
        self.state = lib.hb_new(int(keep_python))
        if not self.state:
            raise MemoryError
        self.look = self.state.contents

    def __del__(self) -> None:
        self._lib.hb_free(self.state)

    def scan(self, text: bytes, start: int, end: int) -> int:
        """Read events until one needs care; returns the place to go on from."""
        place = self._lib.hb_scan(self.state, text, end, start)
        if self.look.status == NO_MEMORY:
            raise MemoryError
        return place

    def strings(self) -> list[str]:
        look = self.look
        offsets: list[int] = look.offsets[: look.n_strings + 1]
        arena = ctypes.string_at(look.arena, look.arena_len) if look.arena_len else b""
        # Texts that nobody keeps for show (argument lists) may hold bytes that are not UTF-8.
        return [arena[a:b].decode("utf-8", "backslashreplace") for a, b in pairwise(offsets)]


class NativeScanner:
    """`columns.Scanner` in C; `on_odd` gets each event that is whole but not plain, and its place.

    All odd events are the first scanner's: the second only reads ahead. Once there are two, what
    each has read goes to a third, in the order of the file.
    """

    def __init__(self, lib: ctypes.CDLL, keep_python: bool, on_odd: ODD_TEXT) -> None:
        self._lib = lib
        self._keep_python = keep_python
        self._on_odd = on_odd
        self._first = self._whole = _Scanner(lib, keep_python)
        self._second = self._first
        self._helper: ThreadPoolExecutor | None = None
        self._was_plain = True

    def scan(self, text: bytes, start: int) -> tuple[int, int]:
        # After text that is no JSON the rest of a piece is read again and again.
        if self._was_plain and len(text) - start >= _WORTH_SPLITTING and _cores() > 1:
            start = self._scan_halves(text, start)
            if self._first.look.status == END:  # another document may follow in the same text
                return start, END
        start = self._scan_first(text, start, len(text))
        status = self._first.look.status
        self._was_plain = status == NEED_MORE
        return start, status

    def _scan_first(self, text: bytes, start: int, end: int) -> int:
        first, look = self._first, self._first.look
        while True:
            start = first.scan(text, start, end)
            if look.status != ODD:
                return start
            self._on_odd(text[look.odd_start : look.odd_end], look.odd_start)

    def _scan_halves(self, text: bytes, start: int) -> int:
        """Read as far as two threads get; returns the place to go on from."""
        border = _EVENT.search(text, (start + len(text)) // 2)
        if border is None:
            return start
        if self._helper is None:
            self._helper = ThreadPoolExecutor(1, "scan")
            self._second = _Scanner(self._lib, self._keep_python)
            self._whole = _Scanner(self._lib, self._keep_python)
        second, middle = self._second, border.end()
        ahead = self._helper.submit(second.scan, text, middle, len(text))
        try:
            start = self._scan_first(text, start, middle)
        finally:
            stop = ahead.result()
        if self._first.look.status != NEED_MORE or text[start:middle].strip(b" \t\r\n,"):
            self._lib.hb_drop(second.state)  # no event began there
            return start
        self._append(self._first)
        self._append(second)
        # What stopped the second one the first meets again.
        return {ODD: second.look.odd_start, END: stop - 1}.get(second.look.status, stop)

    def _append(self, scanner: _Scanner) -> None:
        if scanner is not self._whole and not self._lib.hb_append(self._whole.state, scanner.state):
            raise MemoryError

    def intern(self, text: bytes) -> int:
        return self._lib.hb_intern(self._first.state, text, len(text))

    def count(self, ph: int, category: int) -> None:
        self._lib.hb_count(self._first.state, ph, category, 1)

    def add(self, row: tuple[Any, ...]) -> None:
        one = np.array([row], dtype=ROW)
        one["index"] -= self._events_before
        if not self._lib.hb_add(self._first.state, one.ctypes.data):
            raise MemoryError

    def name_thread(self, pid: str, tid: str, name: str) -> None:
        texts = [text.encode("utf-8", "backslashreplace") for text in (pid, tid, name)]
        arguments = [value for text in texts for value in (text, len(text))]
        if not self._lib.hb_name(self._first.state, *arguments):
            raise MemoryError

    def rows(self) -> Rows:
        self._append(self._first)
        part = self._whole.look.part
        if not part.n_rows:
            return np.empty(0, ROW)
        raw = (ctypes.c_char * (part.n_rows * ROW.itemsize)).from_address(part.rows)
        # The view lives on C memory: whoever holds it holds that scanner.
        raw.owner = self._whole  # pyright: ignore[reportAttributeAccessIssue]
        return np.frombuffer(raw, dtype=ROW)

    def strings(self) -> list[str]:
        return self._whole.strings()

    def counts(self) -> dict[tuple[str, str], int]:
        part, strings = self._whole.look.part, self._whole.strings()
        return {
            (strings[count.ph], strings[count.cat]): count.events
            for count in part.counts[: part.n_counts]
        }

    def thread_names(self) -> dict[tuple[str, str], str]:
        part, names, i = self._whole.look.part, dict[tuple[str, str], str](), -1
        while (i := self._lib.hb_next_named(self._whole.state, i + 1)) >= 0:
            named = part.named[i]
            lengths = (named.pid, named.tid, named.name)
            texts = ctypes.string_at(part.texts + named.at, sum(lengths))
            pid, tid, name = (
                texts[a:b].decode("utf-8", "backslashreplace")
                for a, b in pairwise([0, *accumulate(lengths)])
            )
            names[pid, tid] = name
        return names

    @property
    def _events_before(self) -> int:
        """Events of the document before those that the first scanner has not handed over."""
        return 0 if self._whole is self._first else self._whole.look.part.events

    @property
    def events(self) -> int:
        return self._events_before + self._first.look.part.events

    @events.setter
    def events(self, value: int) -> None:
        self._first.look.part.events = value - self._events_before

    @property
    def trailing_commas(self) -> int:
        return sum(
            {id(s): s.look.part.trailing_commas for s in (self._first, self._whole)}.values()
        )

    @property
    def odd_start(self) -> int:
        return self._first.look.odd_start

    @property
    def bad_at(self) -> int:
        return self._first.look.bad_at


@cache
def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
