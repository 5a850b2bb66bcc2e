"""The C scanner of `_scan.c`, by ctypes. Absent where no compiler built it: then `pure_scanner`
reads.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from analyzer.trace.columns import NO_MEMORY, ODD, ROW, Rows

ODD_TEXT = Callable[[bytes, int], None]


class _State(ctypes.Structure):
    """The C struct `Scanner`, as far as Python looks into it."""

    _fields_ = (
        ("rows", ctypes.c_void_p),
        ("n_rows", ctypes.c_int64),
        ("cap_rows", ctypes.c_int64),
        ("arena", ctypes.c_void_p),
        ("arena_len", ctypes.c_int64),
        ("arena_cap", ctypes.c_int64),
        ("offsets", ctypes.c_void_p),
        ("n_strings", ctypes.c_int64),
        ("cap_strings", ctypes.c_int64),
        ("slots", ctypes.c_void_p),
        ("n_slots", ctypes.c_int64),
        ("count_ph", ctypes.c_void_p),
        ("count_cat", ctypes.c_void_p),
        ("counts", ctypes.c_void_p),
        ("n_counts", ctypes.c_int64),
        ("cap_counts", ctypes.c_int64),
        ("events", ctypes.c_int64),
        ("trailing_commas", ctypes.c_int64),
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
        lib.hb_new.restype = ctypes.POINTER(_State)
        lib.hb_new.argtypes = [ctypes.c_int32]
        lib.hb_free.argtypes = [ctypes.POINTER(_State)]
        lib.hb_free.restype = None
        lib.hb_intern.argtypes = [ctypes.POINTER(_State), ctypes.c_char_p, ctypes.c_int64]
        lib.hb_count.argtypes = [ctypes.POINTER(_State)] + [ctypes.c_int32] * 2 + [ctypes.c_int64]
        lib.hb_scan.restype = ctypes.c_int64
        lib.hb_scan.argtypes = [ctypes.POINTER(_State), ctypes.c_char_p] + [ctypes.c_int64] * 2
        lib.hb_parents.argtypes = [ctypes.c_void_p] * 2 + [ctypes.c_int64] + [ctypes.c_void_p] * 2
        lib.hb_parents.restype = None
        return lib
    return None


class NativeScanner:
    """`rows.Scanner` in C; `on_odd` gets each event that is whole but not plain, and its place."""

    def __init__(self, lib: ctypes.CDLL, keep_python: bool, on_odd: ODD_TEXT) -> None:
        self._lib = lib
        self._state = lib.hb_new(int(keep_python))
        if not self._state:
            raise MemoryError
        self._on_odd = on_odd
        self._extra: list[tuple[Any, ...]] = []

    def __del__(self) -> None:
        self._lib.hb_free(self._state)

    def scan(self, text: bytes, start: int) -> tuple[int, int]:
        state = self._state.contents
        while True:
            start = self._lib.hb_scan(self._state, text, len(text), start)
            if state.status == NO_MEMORY:
                raise MemoryError
            if state.status != ODD:
                return start, state.status
            self._on_odd(text[state.odd_start : state.odd_end], state.odd_start)

    def intern(self, text: bytes) -> int:
        return self._lib.hb_intern(self._state, text, len(text))

    def count(self, ph: int, category: int) -> None:
        self._lib.hb_count(self._state, ph, category, 1)

    def counts(self) -> dict[tuple[str, str], int]:
        state, strings = self._state.contents, self.strings()
        columns: list[list[int]] = [
            np.ctypeslib.as_array(
                ctypes.cast(pointer, ctypes.POINTER(kind)), (state.n_counts,)
            ).tolist()
            if state.n_counts
            else []
            for pointer, kind in (
                (state.count_ph, ctypes.c_int32),
                (state.count_cat, ctypes.c_int32),
                (state.counts, ctypes.c_int64),
            )
        ]
        return {(strings[ph], strings[cat]): n for ph, cat, n in zip(*columns, strict=True)}

    def rows(self) -> Rows:
        state = self._state.contents
        extra = np.array(self._extra, dtype=ROW)
        if not state.n_rows:
            return extra
        raw = (ctypes.c_char * (state.n_rows * ROW.itemsize)).from_address(state.rows)
        rows = np.frombuffer(raw, dtype=ROW)
        # The view lives on C memory: whoever holds it holds this scanner.
        raw.owner = self  # pyright: ignore[reportAttributeAccessIssue]
        if not len(extra):
            return rows
        both = np.concatenate([rows, extra])
        return both[np.argsort(both["index"], kind="stable")]

    def strings(self) -> list[str]:
        state = self._state.contents
        offsets = np.ctypeslib.as_array(
            ctypes.cast(state.offsets, ctypes.POINTER(ctypes.c_int64)), (state.n_strings + 1,)
        ).tolist()
        arena = ctypes.string_at(state.arena, state.arena_len) if state.arena_len else b""
        return [
            # Texts that nobody keeps for show (argument lists) may hold bytes that are not UTF-8.
            arena[a:b].decode("utf-8", "backslashreplace")
            for a, b in pairwise(offsets)
        ]

    def add(self, row: tuple[Any, ...]) -> None:
        self._extra.append(row)

    @property
    def events(self) -> int:
        return self._state.contents.events

    @events.setter
    def events(self, value: int) -> None:
        self._state.contents.events = value

    @property
    def trailing_commas(self) -> int:
        return self._state.contents.trailing_commas

    @property
    def odd_start(self) -> int:
        return self._state.contents.odd_start

    @property
    def bad_at(self) -> int:
        return self._state.contents.bad_at
