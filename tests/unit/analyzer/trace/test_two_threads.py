"""The C scanner reads a piece with two threads: whatever the text, the trace is as of one."""

from __future__ import annotations

import json
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analyzer.trace import kineto, native_scanner
from analyzer.trace.events import Trace
from analyzer.trace.reader import ReadOptions
from analyzer.trace.stream import TraceError
from tests.support.tracebuilder import assert_same_trace

pytestmark = pytest.mark.skipif(
    native_scanner.library() is None, reason="the C scanner is not built here"
)

# Names that look like the border between two events, or need care.
NAMES = ["aten::mm", '}, {"ph": "X", "ts": 1', "a\\b", "é", "x" * 300]
EVENTS = st.one_of(
    st.builds(
        lambda name, start, correlation: json.dumps(
            {
                "ph": "X",
                "cat": "cuda_runtime",
                "name": name,
                "pid": 1,
                "tid": correlation % 3,
                "ts": start,
                "dur": 1.5,
                "args": {"correlation": correlation, "inner": [{"name": 1}, {"ph": "X"}]},
            },
            ensure_ascii=False,
        ),
        st.sampled_from(NAMES),
        st.integers(0, 1000),
        st.integers(0, 50),
    ),
    st.builds(
        lambda tid, name: json.dumps(
            {"ph": "M", "name": "thread_name", "pid": 1, "tid": tid, "args": {"name": name}}
        ),
        st.integers(0, 5),
        st.sampled_from([" main ", "a\\b", "worker"]),
    ),
    st.sampled_from(
        [
            '{"ph": "f", "id": 3, "ts": 1}',
            '{"ph": "X", "name": "inf", "ts": 5, "dur": inf, "args": {"bytes": NaN}}',
            '{"ph": "X", "name": "broken, "ts": 1, "dur": 1}',
            '{"ph": "X", "name": "cut", "ts": ',
            '"no event"',
        ]
    ),
)


def read(path: Path, cores: int) -> list[Trace] | str:
    with (
        mock.patch.object(native_scanner, "_WORTH_SPLITTING", 64),
        mock.patch.object(native_scanner, "_cores", return_value=cores),
    ):
        try:
            return kineto.read(path, ReadOptions(keep_python=True))
        except TraceError as error:
            return str(error)


@settings(max_examples=300)
@given(st.lists(EVENTS, min_size=1, max_size=40), st.sampled_from(["]}", "]", "", ",]}", "]} x"]))
def test_two_threads_read_what_one_reads(tmp_path_factory, events: list[str], end: str) -> None:
    path = tmp_path_factory.mktemp("two") / "t.json"
    path.write_text('{"traceEvents": [' + ",\n ".join(events) + end, encoding="utf-8")
    one, two = read(path, 1), read(path, 2)
    if isinstance(one, str) or isinstance(two, str):
        assert one == two
        return
    for x, y in zip(one, two, strict=True):
        assert_same_trace(x, y)


def test_the_second_thread_has_a_share_of_a_long_text(tmp_path: Path) -> None:
    """Else the property above holds for nothing."""
    event = {"ph": "X", "cat": "cpu_op", "pid": 1, "tid": 1, "dur": 1}
    events = [{**event, "name": f"op{i % 7}", "ts": 10 * i} for i in range(2000)]
    path = tmp_path / "t.json"
    path.write_text(json.dumps({"traceEvents": events}), encoding="utf-8")
    read_by = []
    whole = native_scanner.NativeScanner._append

    def append(scanner, part) -> None:
        read_by.append((part is scanner._second, part.look.part.events))
        whole(scanner, part)

    with mock.patch.object(native_scanner.NativeScanner, "_append", append):
        (trace,) = read(path, 2)
    second = sum(events for is_second, events in read_by if is_second)
    assert 500 < second < 1500
    assert trace.rows["index"].tolist() == list(range(2000))
    assert trace.rows["ts"].tolist() == [10_000 * i for i in range(2000)]


def test_names_of_threads_without_events_are_left_out(tmp_path: Path) -> None:
    named = [
        {"ph": "M", "name": "thread_name", "pid": 1, "tid": i, "args": {"name": f"worker {i}"}}
        for i in range(300)
    ]
    event = {"ph": "X", "cat": "cpu_op", "name": "op", "pid": 1, "tid": 7, "ts": 1, "dur": 1}
    path = tmp_path / "t.json"
    path.write_text(json.dumps({"traceEvents": [*named, event]}), encoding="utf-8")
    (trace,) = read(path, 1)
    assert trace.thread_names == {("1", "7"): "worker 7"}
    assert trace.counts == {("M", ""): 300, ("X", "cpu_op"): 1}
