"""The smallest Kineto trace that shows something, built in the test that needs it; and a reader of
bytes that holds the two scanners against each other.

Times are microseconds, as in the format; pass a `str` ("12.345") where the digits matter.
"""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from analyzer.trace import kineto, native_scanner
from analyzer.trace import stream as trace_stream
from analyzer.trace.columns import HAS_BYTES, HAS_CORRELATION, HAS_DUR, HAS_EXTERNAL, HAS_TS
from analyzer.trace.events import Trace
from analyzer.trace.reader import ReadOptions
from analyzer.trace.stream import TraceError

Time = int | float | str


class _Literal(float):
    """A number whose digits are written as given."""

    def __new__(cls, text: str) -> _Literal:
        made = super().__new__(cls, text)
        made.text = text
        return made

    text: str

    def __repr__(self) -> str:
        return self.text


class TraceBuilder:
    """Collects events; `write` makes the file, `text` the JSON."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self.head: dict[str, Any] = {"schemaVersion": 1}

    def add(self, category: str, name: str, start_us: Time, dur_us: Time, **fields: Any) -> None:
        event: dict[str, Any] = {"ph": "X", "cat": category, "name": name}
        event |= {"pid": 1, "tid": 1, "ts": _time(start_us), "dur": _time(dur_us)}
        self.events.append(event | fields)

    def add_op(
        self, name: str, start_us: Time, dur_us: Time, tid: Any = 1, **args: Any
    ) -> TraceBuilder:
        """An operator (or region); `args` as in the trace, e.g. **{"Input Dims": [[2]]}."""
        self.add("cpu_op", name, start_us, dur_us, tid=tid, args=args)
        return self

    def add_call(
        self,
        name: str,
        start_us: Time,
        dur_us: Time,
        correlation: int | None = None,
        tid: Any = 1,
        **args: Any,
    ) -> TraceBuilder:
        """A runtime call, or a driver call if its name begins with `cu` and a capital."""
        category = "cuda_driver" if name[:2] == "cu" and name[2:3].isupper() else "cuda_runtime"
        given = {} if correlation is None else {"correlation": correlation}
        self.add(category, name, start_us, dur_us, tid=tid, args=given | args)
        return self

    def add_kernel(
        self,
        name: str,
        start_us: Time,
        dur_us: Time,
        correlation: int | None = None,
        stream: Any = 7,
        device: Any = 0,
        category: str = "kernel",
        **args: Any,
    ) -> TraceBuilder:
        given = {"device": device, "stream": stream}
        given |= {} if correlation is None else {"correlation": correlation}
        self.add(category, name, start_us, dur_us, pid=device, tid=stream, args=given | args)
        return self

    def add_launch(
        self, kernel: str, start_us: Time, dur_us: Time, correlation: int, tid: Any = 1
    ) -> TraceBuilder:
        """A launch of 2 us at `start_us`, whose kernel begins 5 us after it."""
        self.add_call("cudaLaunchKernel", start_us, 2, correlation, tid)
        assert not isinstance(start_us, str)
        return self.add_kernel(kernel, start_us + 5, dur_us, correlation)

    def add_annotation(self, name: str, start_us: Time, dur_us: Time, tid: Any = 1) -> TraceBuilder:
        self.add("user_annotation", name, start_us, dur_us, tid=tid)
        return self

    def text(self) -> str:
        return json.dumps(self.head | {"traceEvents": self.events})

    def write(self, path: Path) -> Path:
        """Write the trace, packed if the name ends in .gz; returns the path."""
        data = self.text().encode()
        path.write_bytes(gzip.compress(data, 1) if path.name.endswith(".gz") else data)
        return path


def _time(value: Time) -> int | float:
    return _Literal(value) if isinstance(value, str) else value


def worked_example() -> TraceBuilder:
    """docs/measurement.md, "Worked example": one thread, one step [0, 800), one stream."""
    trace = TraceBuilder()
    trace.add_annotation("step#0", 0, 800)
    trace.add_op("aten::linear", 100, 300).add_op("aten::addmm", 120, 260)
    trace.add_call("cuLaunchKernelEx", 300, 40, 1).add_kernel("nvjet_x", 350, 300, 1)
    trace.add_op("aten::relu", 500, 100)
    trace.add_call("cudaLaunchKernel", 540, 20, 2).add_kernel("elementwise_x", 660, 40, 2)
    trace.add_call("cudaDeviceSynchronize", 650, 70)
    return trace


_TEXTS = ("category", "name", "pid", "tid", "device", "stream", "shape", "config", "kernel")
_FIELDS = HAS_TS | HAS_DUR | HAS_CORRELATION | HAS_EXTERNAL | HAS_BYTES


def assert_same_trace(x: Trace, y: Trace) -> None:
    """Two readings of one document agree in every row, by text, and in what they found."""
    assert x.counts == y.counts
    assert (x.events, x.json_bytes) == (y.events, y.json_bytes)
    assert x.thread_names == y.thread_names
    assert x.metadata == y.metadata
    assert findings(x) == findings(y)
    assert len(x.rows) == len(y.rows)
    texts = [np.array([*t.strings, "<none>"], object) for t in (x, y)]
    for column in x.rows.dtype.names:
        a, b = x.rows[column], y.rows[column]
        if column in _TEXTS:
            a, b = _known(texts[0][a]), _known(texts[1][b])
        elif column == "flags":
            a, b = a & _FIELDS, b & _FIELDS
        assert (a == b).all(), (column, a, b)


def _known(texts: np.ndarray) -> np.ndarray:
    """A bare word such as inf is unknown; whether its text is kept is each scanner's affair."""
    words = re.compile(r"(?<![\w\".])-?(?:inf|nan|infinity|n/a)(?![\w\".])", re.IGNORECASE)
    return np.array(
        [re.sub(r"^null$", "<none>", words.sub("null", text)) for text in texts.tolist()], object
    )


def findings(trace: Trace) -> dict[str, int]:
    return {f.code: f.count for f in trace.findings}


def read_both(data: bytes, folder: Path, piece: int = 4 << 20) -> list[Trace]:
    """Read bytes with either scanner, in pieces of a size; they must agree, in refusing too.

    Raises:
        TraceError: Both refuse it, with the same words.
    """
    path = folder / "t.json"
    path.write_bytes(data)
    outcomes: list[list[Trace] | TraceError] = []
    library = native_scanner.library()
    for lib in [library, None] if library else [None]:
        with (
            mock.patch.object(native_scanner, "library", lambda lib=lib: lib),
            mock.patch.object(trace_stream, "PIECE_BYTES", piece),
        ):
            try:
                outcomes.append(kineto.read(path, ReadOptions(keep_python=True)))
            except TraceError as error:
                outcomes.append(error)
    first, last = outcomes[0], outcomes[-1]
    if isinstance(first, TraceError) or isinstance(last, TraceError):
        assert str(first) == str(last)
        assert "\n" not in str(first)
        raise first  # type: ignore[misc]
    assert len(first) == len(last)
    for x, y in zip(first, last, strict=True):
        assert_same_trace(x, y)
    return first
