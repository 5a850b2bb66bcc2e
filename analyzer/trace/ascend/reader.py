"""Ascend's `trace_view.json` to columns; this folder is the only place that knows its spelling.

`torch_npu` writes it: a bare list of events, of a process "Python" with operators and the queue of
tasks, "CANN" with calls of the runtime, "Ascend Hardware" with what the device did, and of views of
that. Damaged text is mended as Kineto's is.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from analyzer.trace import kineto, repair
from analyzer.trace.ascend.events import as_kineto
from analyzer.trace.ascend.scanner import AscendScanner
from analyzer.trace.columns import Scanner
from analyzer.trace.events import Trace
from analyzer.trace.reader import DEFAULTS, ReadOptions
from analyzer.trace.stream import SPACE, Feed, TraceError, TraceStream, first_bytes

_MARKS = (b'"Ascend Hardware"', b'"async_npu"')
_LONGEST_MARK = max(map(len, _MARKS))
_HEAD = 1 << 16


def sniff(path: Path) -> bool:
    """Return whether a file is JSON that names Ascend's hardware or its flows.

    Kineto's traces are objects and say what they are from the start on; a bare list is searched.
    """
    if not path.is_file():
        return False
    head = first_bytes(path, _HEAD).lstrip(SPACE)
    if head[:1] not in (b"[", b"{"):
        return False
    return any(mark in head for mark in _MARKS) or (head[:1] == b"[" and _is_marked(path))


def _is_marked(path: Path) -> bool:
    before = b""
    try:
        with TraceStream(path) as stream:
            for piece in stream:
                if any(mark in before + piece for mark in _MARKS):
                    return True
                before = piece[-_LONGEST_MARK:]
    except TraceError:
        pass  # whoever reads it says why
    return False


def read(path: Path, options: ReadOptions = DEFAULTS) -> list[Trace]:
    """Read all documents of a file.

    Raises:
        TraceError: As of Kineto's reader.
    """
    return kineto.read_documents(path, options, _Document)


class _Document(kineto.Document):
    """A list of events whose processes are told by their names."""

    def __init__(self, feed: Feed, number: int, options: ReadOptions) -> None:
        self._processes: dict[str, str] = {}
        super().__init__(feed, number, options)

    def make_scanner(self) -> Scanner:
        self._ascend = AscendScanner(self.keep_python, self.add_odd)
        return self._ascend

    def add_parsed(self, event: dict[str, Any]) -> set[str]:
        if event.get("ph") == "M":
            return repair.add_event(self.scanner, event, self.keep_python)
        return self._ascend.take_mended(event)

    def add_name(self, event: dict[str, Any], name: str) -> None:
        super().add_name(event, name)
        if event.get("name") == "process_name":
            self._processes[kineto.token(event.get("pid"))] = name.strip()

    def read(self) -> Trace:
        trace = super().read()
        as_kineto(trace, self._ascend, self._processes)
        return trace
