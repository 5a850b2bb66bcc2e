"""Kineto and Chrome trace JSON to columns; the only module that knows the format's spelling and
units.

One file may hold several documents (ranks that appended to one `.json.gz`); each becomes a `Trace`.
The document is never parsed whole: a scanner reads the events as the stream comes, and what is not
plain goes through `repair`. What was mended, dropped or odd is a `Finding`: counted, placed, shown.
Times are integer nanoseconds on the trace's clock.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from analyzer.trace import native_scanner, repair
from analyzer.trace.columns import BAD, END, HAS_DUR, HAS_TS, Scanner
from analyzer.trace.events import PYTHON_CATEGORIES, Finding, FindingKind, Trace, finding
from analyzer.trace.metadata import kept, losses, names_of_threads, plain, quoted
from analyzer.trace.native_scanner import NativeScanner
from analyzer.trace.pure_scanner import PureScanner
from analyzer.trace.reader import DEFAULTS, ReadOptions
from analyzer.trace.spans import with_pairs
from analyzer.trace.stream import SPACE, Feed, TraceError, TraceStream, first_bytes

# A lone quote is a string whose end is in the next piece.
_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*"|["{}\[\]:,]', re.DOTALL)
_JUNK_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*"|[{}\[\],]', re.DOTALL)
_BORDER = re.compile(
    rb'\}\s*,?\s*(?=\{\s*"(?:ph|name|cat|ts|pid|tid|args|dur|id|bp|s)"\s*:)', re.DOTALL
)
_ARRAY_END = re.compile(rb"\}\s*,?\s*(?=\])")
_MOST_HELD = 64 << 20


_FINDINGS = {
    "trailing_data": FindingKind(
        "warning", "extra data after the end of the trace at byte {at} was left out"
    ),
    "several_documents": FindingKind(
        "warning",
        "the file holds {count} traces, one after the other (several ranks wrote it?); this is "
        "number {number}, all are loaded",
    ),
    "truncated": FindingKind(
        "warning",
        "the trace is truncated: it ends at byte {at} before its end; what follows is missing from "
        "every figure",
    ),
    "array_without_end": FindingKind(
        "note", "the list of events has no closing bracket, as a stopped program leaves it"
    ),
    "dropped_event": FindingKind(
        "warning", "{events} could not be read as JSON and {were} dropped{first}"
    ),
    "bad_utf8": FindingKind(
        "warning", "{events} held bytes that are not UTF-8; they are kept as \\xNN{first}"
    ),
    "backslashes": FindingKind(
        "warning", "{events} held unescaped backslashes; they were taken literally{first}"
    ),
    "control_characters": FindingKind(
        "note", "{events} held raw control characters; they are kept{first}"
    ),
    "nonfinite": FindingKind(
        "note", "{events} held values such as inf or nan; they are unknown{first}"
    ),
    "trailing_comma": FindingKind(
        "note", "a comma stood before a closing bracket{first}; it was ignored"
    ),
    "odd_value": FindingKind(
        "warning", "{count} values were no numbers or beyond 64 bits; they are unknown{first}"
    ),
    "no_time": FindingKind("warning", "{events} had no start or duration and were left out"),
    "begin_end_events": FindingKind(
        "warning",
        "{count} begin and end events have no partner on their thread and were left out",
    ),
    "buffers_dropped": FindingKind(
        "warning", "the profiler says that it lost events or buffers ({count} messages)"
    ),
    "metadata_before": FindingKind(
        "warning", "the fields before the events could not be read{first}"
    ),
    "metadata_after": FindingKind(
        "warning", "the fields after the events could not be read{first}"
    ),
}


def _finding(code: str, count: int, at: int) -> Finding:
    """The finding of a code that was first seen at a byte; -1: no place."""
    return finding(
        _FINDINGS,
        code,
        count,
        f"byte {at}" if at >= 0 else None,
        at=at,
        first=f" (first at byte {at})" if at >= 0 else "",
        events="1 event" if count == 1 else f"{count} events",
        were="was" if count == 1 else "were",
    )


def sniff(path: Path) -> bool:
    """Return whether a file begins as JSON does; `read` tells what is wrong with one that fails."""
    return first_bytes(path).lstrip(SPACE)[:1] in (b"{", b"[")


def read(path: Path, options: ReadOptions = DEFAULTS) -> list[Trace]:
    """Read all documents of a `.json` or `.json.gz` file (told apart by content, not by name).

    Raises:
        TraceError: The file cannot be read, is no trace, holds no event, or more than is read. The
            message is one line.
    """
    return read_documents(path, options, Document)


def read_documents(
    path: Path, options: ReadOptions, make: Callable[[Feed, int, ReadOptions], Document]
) -> list[Trace]:
    """Read all documents of a file, each by a reader of its own.

    Raises:
        TraceError: As of `read`.
    """
    traces: list[Trace] = []
    with TraceStream(path, options.most_bytes) as stream:
        feed = Feed(stream, options.progress)
        while feed.skip_space():
            if traces and feed.buffer[feed.at] not in b"{[":
                traces[-1].findings.append(_finding("trailing_data", 1, feed.place()))
                break
            traces.append(make(feed, len(traces), options).read())
        if not traces:
            what = f" ({stream.broken})" if stream.broken else ""
            raise TraceError(
                f"{path} is empty{what}; record or copy the trace again."
                if not feed.buffer
                else f"{path} holds no trace{what}."
            )
    if len(traces) > 1:
        for trace in traces:
            trace.findings.append(
                finding(_FINDINGS, "several_documents", len(traces), number=trace.document + 1)
            )
    return traces


class Document:
    """Reads one document off the feed."""

    def __init__(self, feed: Feed, number: int, options: ReadOptions) -> None:
        self.feed = feed
        self.most_events = options.most_events
        self.number = number
        self.keep_python = options.keep_python
        self.found: dict[str, tuple[int, int]] = {}
        self.scanner = self.make_scanner()
        self.path = feed.stream.path

    def make_scanner(self) -> Scanner:
        lib = native_scanner.library()
        if lib:
            return NativeScanner(lib, self.keep_python, self.add_odd)
        return PureScanner(self.keep_python, self.add_odd)

    def note(self, code: str, place: int) -> None:
        """Count one occurrence; the first place is kept."""
        count, first = self.found.get(code, (0, place))
        self.found[code] = (count + 1, first)

    def read(self) -> Trace:
        feed = self.feed
        began = feed.place()
        is_object = feed.buffer[feed.at] == 0x7B
        metadata: dict[str, Any] = {}
        if is_object:
            metadata = self._head()
        elif feed.buffer[feed.at] == 0x5B:
            feed.at += 1
        else:
            begin = quoted(feed.buffer[feed.at : feed.at + 20])
            raise TraceError(
                f"{self.path} is no trace: at byte {feed.place()} it has {begin} where a JSON "
                "object or array should begin. Give a Kineto or Chrome trace (.json or .json.gz)."
            )
        whole = self._events(is_object)
        if whole and is_object:
            metadata |= self._tail()
        elif not whole:
            self._report_end(is_object)
        rows, strings = self.scanner.rows(), self.scanner.strings()
        rows, alone = with_pairs(rows, () if self.keep_python else PYTHON_CATEGORIES, strings)
        if alone:
            self.found["begin_end_events"] = (alone, -1)
        lost = losses(metadata)
        if lost:
            self.found["buffers_dropped"] = (lost, -1)
        has_time = (rows["flags"] & (HAS_TS | HAS_DUR)) == (HAS_TS | HAS_DUR)
        if not has_time.all():
            self.found["no_time"] = (int((~has_time).sum()), -1)
            rows = rows[has_time]
        trace = Trace(
            path=self.path,
            document=self.number,
            rows=rows,
            strings=strings,
            counts=self.scanner.counts(),
            events=self.scanner.events,
            json_bytes=feed.place() - began,
            metadata=kept(metadata),
            thread_names=names_of_threads(self.scanner.thread_names(), rows, strings),
        )
        if self.scanner.trailing_commas:
            self.found["trailing_comma"] = (1, feed.place())
        if not trace.events:
            ending = " before it is cut off" if "truncated" in self.found else ""
            raise TraceError(
                f"{self.path} holds no event{ending}: the list of trace events is empty. "
                "Was the profiler on while the work ran?"
            )
        trace.findings = [_finding(code, *value) for code, value in self.found.items()]
        del self.scanner  # it calls back to here: without the circle its memory goes now
        return trace

    # -- before and after the events

    def _head(self) -> dict[str, Any]:
        """Go behind the `[` of "traceEvents"; return the fields before it."""
        feed = self.feed
        depth, at, keys, key, last = 0, feed.at, list[str](), b"", b""
        while True:
            token = _TOKEN.search(feed.buffer, at)
            if token is None or token.group() == b'"':
                at = (token.start() if token else len(feed.buffer)) - feed.at
                if len(feed.buffer) - feed.at > _MOST_HELD or not feed.more():
                    raise self._no_events(keys)
                at += feed.at
                continue
            at = token.end()
            text = token.group()
            if text in (b"{", b"["):
                if depth == 1 and key == b'"traceEvents"' and text == b"[":
                    head = feed.buffer[feed.at : token.start()]
                    feed.at = at
                    return self._metadata(head[: head.rfind(b'"traceEvents"')] + b"}", "before")
                depth += 1
            elif text in (b"}", b"]"):
                depth -= 1
                if depth <= 0:
                    raise self._no_events(keys)
            elif depth == 1:
                key = last if text == b":" else b""
                if key:
                    keys.append(key[1:-1].decode("utf-8", "backslashreplace"))
            last = text

    def _no_events(self, keys: list[str]) -> TraceError:
        seen = ", ".join(dict.fromkeys(keys[:8])) or "nothing"
        hint = "Give a Kineto or Chrome trace."
        if "nodes" in keys and "schema" in keys:
            hint = "It is a PyTorch execution trace; give the Kineto trace of the same run."
        elif "schema_version" in keys and "run_id" in keys:
            hint = "It is a run directory's manifest; give the folder."
        return TraceError(f'{self.path} has no "traceEvents" list (it has {seen}). {hint}')

    def _metadata(self, text: bytes, where: str) -> dict[str, Any]:
        text = re.sub(rb",\s*\}\s*$", b"}", text)
        try:
            value, _ = repair.loads(text)
        except (ValueError, RecursionError):
            self.note(f"metadata_{where}", self.feed.place())
            return {}
        return cast("dict[str, Any]", plain(value)) if isinstance(value, dict) else {}

    def _tail(self) -> dict[str, Any]:
        """Read the fields after the events, to the end of the document."""
        feed = self.feed
        depth, at = 1, feed.at
        while True:
            token = _TOKEN.search(feed.buffer, at)
            if token is None or token.group() == b'"':
                at = (token.start() if token else len(feed.buffer)) - feed.at
                if len(feed.buffer) - feed.at > _MOST_HELD or not feed.more():
                    self.note("truncated", feed.place(len(feed.buffer)))
                    feed.at = len(feed.buffer)
                    return {}
                at += feed.at
                continue
            at = token.end()
            text = token.group()
            depth += (text in (b"{", b"[")) - (text in (b"}", b"]"))
            if depth == 0:
                tail = feed.buffer[feed.at : at].lstrip(b" \t\r\n,")
                feed.at = at
                return self._metadata(b"{" + tail, "after")

    # -- the events

    def _events(self, is_object: bool) -> bool:
        """Scan to the end of the array; False if the stream ends first."""
        feed = self.feed
        while True:
            feed.at, status = self.scanner.scan(feed.buffer, feed.at)
            if self.most_events is not None and self.scanner.events > self.most_events:
                raise TraceError(
                    f"{self.path} holds more than {self.most_events} events, the most that are "
                    "read here; record fewer steps in a trace."
                )
            if status == END:
                return True
            if status == BAD:
                if not self._skip_bad():
                    return False
            elif len(feed.buffer) - feed.at > _MOST_HELD:
                # One event of this size is text that lost its quotes.
                if not self._skip_bad():
                    return False
            elif not feed.more() and (
                feed.buffer[feed.at :].lstrip(b" \t\r\n,")[:1] != b"{" or not self._skip_bad()
            ):
                return False

    def add_odd(self, text: bytes, at: int) -> None:
        """The scanner's event that needs care."""
        if not self._add(text, self.feed.place(at)):
            self.note("dropped_event", self.feed.place(at))

    def _add(self, text: bytes, place: int) -> bool:
        try:
            value, mended = repair.loads(text)
        except (ValueError, RecursionError):
            return False
        if not isinstance(value, dict):
            return False
        event = cast("dict[str, Any]", value)
        for code in mended:
            self.note(code, place)
        for code in self.add_parsed(event):
            self.note(code, place)
        args = event.get("args")
        if event.get("ph") == "M" and isinstance(args, dict):
            name = cast("dict[str, Any]", args).get("name")
            if isinstance(name, str):
                self.add_name(event, name)
        return True

    def add_parsed(self, event: dict[str, Any]) -> set[str]:
        """Take an event that was parsed with care; return codes of what is odd in it."""
        return repair.add_event(self.scanner, event, self.keep_python)

    def add_name(self, event: dict[str, Any], name: str) -> None:
        """Take what a metadata event calls a thread, or something else."""
        if event.get("name") == "thread_name":
            self.scanner.name_thread(token(event.get("pid")), token(event.get("tid")), name)

    def _skip_bad(self) -> bool:
        """Mend or drop the text between here and the next event; False if the stream ends first."""
        feed = self.feed
        rest = feed.buffer[feed.at : feed.at + 65_536]
        feed.at += len(rest) - len(rest.lstrip(b" \t\r\n,"))
        if feed.buffer[feed.at : feed.at + 1] not in (b"{", b""):
            return self._skip_junk()
        searched = feed.at
        while True:
            border = _BORDER.search(feed.buffer, searched)
            last = _ARRAY_END.search(feed.buffer, searched)
            if border and (last is None or border.start() <= last.start()):
                end, follow = border.start() + 1, border.end()
            elif last and feed.ended:
                end, follow = last.start() + 1, last.end()
            elif len(feed.buffer) - feed.at > _MOST_HELD or not feed.more():
                if last is None:
                    # The last event may be whole though the list is not.
                    if self._add(feed.buffer[feed.at :], feed.place()):
                        feed.at = len(feed.buffer)
                    return False
                end, follow = last.start() + 1, last.end()
            else:
                searched = feed.at
                continue
            if not self._add(feed.buffer[feed.at : end], feed.place()):
                self.note("dropped_event", feed.place())
            feed.at = follow
            return True

    def _skip_junk(self) -> bool:
        """Between events stands something that is no event: leave it out, say where."""
        feed = self.feed
        self.note("dropped_event", feed.place())
        depth, at = 0, feed.at
        while True:
            token = _JUNK_TOKEN.search(feed.buffer, at)
            if token is None:
                at = len(feed.buffer) - feed.at
                if not feed.more():
                    self.note("truncated", feed.place(len(feed.buffer)))
                    feed.at = len(feed.buffer)
                    return False
                at += feed.at
                continue
            text = token.group()
            if depth == 0 and text in (b"{", b"]", b","):
                feed.at = token.start()
                return True
            depth = max(depth + (text in (b"{", b"[")) - (text in (b"}", b"]")), 0)
            at = token.end()

    def _report_end(self, is_object: bool) -> None:
        """The stream ended inside the array of events."""
        feed = self.feed
        rest = feed.buffer[feed.at :].strip(b" \t\r\n,\x00")
        broken = feed.stream.broken
        if is_object or rest or broken:
            if "truncated" not in self.found:
                self.note("truncated", feed.place())
        else:
            self.note("array_without_end", feed.place())
        feed.at = len(feed.buffer)


def token(value: Any) -> str:
    if value is None:
        return ""
    return value if isinstance(value, repair.Number) else json.dumps(value, ensure_ascii=False)
