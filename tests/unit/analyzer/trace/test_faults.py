"""A fault that was seen in one place is handled in all: each kind, injected anywhere.

Every reading is done by both scanners, which must agree, and in pieces of several sizes, so that
faults fall on the borders of pieces too.
"""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from analyzer.attribution.links import link_trace
from analyzer.trace.events import Trace
from analyzer.trace.stream import TraceError
from tests.support.tracebuilder import TraceBuilder, assert_same_trace, findings, read_both

EPOCH_US = 1_712_195_495_000_000
PIECES = st.sampled_from([1, 2, 7, 40, 100, 333, 4 << 20])


def base_events() -> list[dict[str, Any]]:
    """One event of each kind that matters, and of each phase."""
    b = TraceBuilder()
    b.events.append(
        {"ph": "M", "name": "thread_name", "pid": 1, "tid": 1, "args": {"name": "main thread"}}
    )
    t = EPOCH_US
    b.add_annotation("step#0", t, 900)
    shapes = {"Input Dims": [[2, 3]], "Input type": ["float"], "External id": 4}
    b.add_op("aten::mm", t + 10, 80, **shapes)
    b.add_call("cudaLaunchKernel", t + 20, 5, 11, **{"External id": 4})
    b.add_kernel("void gemm<float>(int)", t + 40, 30, 11, grid=[1, 2, 3], block=[32, 1, 1])
    b.events.append(
        {"ph": "s", "cat": "ac2g", "name": "ac2g", "pid": 1, "tid": 1, "ts": t + 20, "id": 11}
    )
    b.events.append(
        {"ph": "f", "bp": "e", "cat": "ac2g", "name": "ac2g", "pid": 0, "tid": 7, "ts": t + 40}
        | {"id": 11}
    )
    b.add("python_function", "model.py(3): forward", t + 1, 400)
    b.add_op("aten::relu", t + 200, 40)
    b.add_call("cudaMemcpyAsync", t + 210, 4, 12)
    b.add_kernel("Memcpy HtoD", t + 230, 20, 12, category="gpu_memcpy", bytes=4096)
    b.add_call("hipLaunchKernel", t + 300, 4, 13, kernel="relu_kernel")
    b.add_kernel("relu_kernel", t + 320, 20, 13)
    return b.events


EVENTS = base_events()
KEPT = sum(e["ph"] == "X" for e in EVENTS)
HEAD = '{"schemaVersion": 1, "deviceProperties": [{"name": "GPU \\"X\\""}],\n"traceEvents": [\n'
TAIL = '\n],\n"traceName": "t.json", "displayTimeUnit": "ms"}\n'


def document(texts: list[str] | list[bytes], head: str = HEAD, tail: str = TAIL) -> bytes:
    parts = [t if isinstance(t, bytes) else t.encode() for t in texts]
    return head.encode() + b",\n".join(parts) + tail.encode()


def event_texts() -> list[str]:
    return [json.dumps(event) for event in EVENTS]


def string_places(text: str) -> list[int]:
    """Every place inside a string value of an event (not of a key)."""
    return [
        place
        for match in re.finditer(r'"((?:[^"\\]|\\.)*)"', text)
        if match[1] not in ("X", "M", "s", "f", "e") and not text[match.end() :].startswith(":")
        for place in range(match.start() + 1, match.end())
    ]


PLACES = [(i, place) for i, text in enumerate(event_texts()) for place in string_places(text)]


def with_fault(i: int, place: int, fault: bytes) -> bytes:
    texts: list[Any] = list(event_texts())
    text = texts[i].encode()
    texts[i] = text[:place] + fault + text[place:]
    return document(texts)


def device_ns(trace: Trace) -> int:
    a = link_trace(trace)
    return int((a.device.end - a.device.start).sum())


def test_the_base_trace_is_sound(tmp_path: Path) -> None:
    (trace,) = read_both(document(event_texts()), tmp_path)
    assert (trace.events, len(trace.rows), findings(trace)) == (len(EVENTS), KEPT, {})
    assert trace.thread_names == {("1", "1"): "main thread"}
    assert device_ns(trace) == 70_000


@settings(max_examples=150)
@given(
    st.sampled_from(PLACES),
    st.sampled_from(
        [
            (b"\xff", "bad_utf8"),
            (b"\xc3", "bad_utf8"),
            (b"\xed\xa0\x80", "bad_utf8"),
            (b"\x01", "control_characters"),
            (b"\n", "control_characters"),
            (b"\x00", "control_characters"),
            (rb"\d", "backslashes"),
            (rb"C:\new\Users", "backslashes"),
            (rb"\u12g4", "backslashes"),
        ]
    ),
    PIECES,
)
def test_a_text_that_is_no_json_text_costs_no_event(tmp_path, where, fault, piece) -> None:
    added, code = fault
    (trace,) = read_both(with_fault(*where, added), tmp_path, piece)
    assert trace.events == len(EVENTS)
    assert len(trace.rows) == KEPT
    found = findings(trace)
    assert "dropped_event" not in found
    # An argument that nobody keeps may pass unremarked; a name or category may not.
    i, place = where
    text = event_texts()[i]
    if text.find('"name"') < place < text.find('"pid"'):
        assert found.get(code) == 1


@settings(max_examples=150)
@given(st.sampled_from(PLACES), st.sampled_from([b'"', b'"x', b'" ", ']), PIECES)
def test_an_unescaped_quote_costs_at_most_its_own_event(tmp_path, where, fault, piece) -> None:
    # Inside an argument list the C scanner passes two strings without a comma between them.
    assume(where[1] < (event_texts()[where[0]] + '"args"').index('"args"'))
    data = with_fault(*where, fault)
    try:
        json.loads(data)
    except ValueError:
        pass
    else:
        assume(False)
    (trace,) = read_both(data, tmp_path, piece)
    assert trace.events == len(EVENTS) - 1
    assert findings(trace)["dropped_event"] == 1
    (finding,) = [f for f in trace.findings if f.code == "dropped_event"]
    assert finding.place is not None
    assert data[int(finding.place.removeprefix("byte ")) :].lstrip(b", \n")[:1] == b"{"


ODD_VALUES = [
    "inf", "-inf", "Infinity", "nan", "NaN", "-NaN", "N/A", "null", "true", '""', '"text"', "[]",
    "{}", "[1, [2, {}]]", "-1", "0", "1.5", "1e3", "1E+2", "-0", "9223372036854775807",
    "9223372036854775808", "123456789012345678901234567890", "-9223372036854775808", "1e400",
    '"7"', '"0x10"', "0.0005", "-0.0005", "1712195495000000.1234567",
]  # fmt: skip
FIELDS = [
    (i, path)
    for i, event in enumerate(EVENTS)
    for path in [
        *(
            (key,)
            for key in ("ph", "cat", "name", "pid", "tid", "ts", "dur", "args")
            if key in event
        ),
        *(("args", key) for key in event.get("args", {})),
    ]
]


@settings(max_examples=250)
@given(st.sampled_from(FIELDS), st.sampled_from(ODD_VALUES), PIECES)
def test_an_odd_value_in_any_field_loses_no_event_in_silence(tmp_path, where, value, piece) -> None:
    i, path = where
    event = json.loads(json.dumps(EVENTS[i]))
    inner = event
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = "@@"
    texts = event_texts()
    texts[i] = json.dumps(event).replace('"@@"', value)
    (trace,) = read_both(document(texts), tmp_path, piece)
    found = findings(trace)
    assert trace.events + found.get("dropped_event", 0) == len(EVENTS)
    assert found.get("dropped_event", 0) == 0
    if path != ("ph",):
        assert len(trace.rows) + found.get("no_time", 0) == KEPT
    link_trace(trace)


@pytest.mark.parametrize("value", ["inf", "-inf", "nan", "NaN", "N/A", "-nan", "Infinity"])
@pytest.mark.parametrize("key", ["memory bandwidth (GB/s)", "bytes", "occupancy", "correlation"])
def test_a_value_that_is_no_number_is_said_and_unknown(tmp_path, value, key) -> None:
    texts = event_texts()
    i = len(texts) - 1
    texts[i] = texts[i][:-2] + f', "{key}": {value}}}}}'
    (trace,) = read_both(document(texts), tmp_path)
    assert findings(trace) == {"nonfinite": 1}
    assert len(trace.rows) == KEPT


@settings(max_examples=80)
@given(
    st.sampled_from([i for i, e in enumerate(EVENTS) if e.get("cat") == "kernel"]),
    st.sampled_from(
        [
            ("dur", "-5"),
            ("dur", "-0.001"),
            ("dur", "7448000000000000"),
            ("dur", "9223372036854774"),
            ("ts", "0"),
            ("ts", "-1"),
            ("ts", "9223372036854774"),
            ("ts", "-9223372036854774"),
        ]
    ),
)
def test_a_lost_clock_is_counted_and_in_no_sum(tmp_path, i, fault) -> None:
    key, value = fault
    event = dict(EVENTS[i])
    event[key] = "@@"
    texts = event_texts()
    texts[i] = json.dumps(event).replace('"@@"', value)
    (trace,) = read_both(document(texts), tmp_path)
    a = link_trace(trace)
    assert len(a.device.start) == 3
    assert int(a.device.bad.sum()) == 1
    assert (a.device.call >= 0).all()  # still attributed
    assert findings(trace)["bad_time"] == 1
    assert int((a.device.end - a.device.start).sum()) == 70_000 - EVENTS[i]["dur"] * 1000
    assert a.whole.end - a.whole.start < 1_000_000
    (message,) = [f.message for f in trace.findings if f.code == "bad_time"]
    assert "duration" in message


def complete_events(data: bytes, cut: int) -> int:
    """Events whose closing brace lies before the cut."""
    at, count = len(HEAD.encode()), 0
    for text in event_texts():
        at = data.index(text.encode(), at) + len(text.encode())
        count += at <= cut
    return count


@pytest.mark.parametrize("piece", [13, 4 << 20])
def test_a_cut_at_any_byte_is_said(tmp_path: Path, piece: int) -> None:
    """Whole events are kept, half ones are not, and it never looks like a whole trace."""
    data = document(event_texts())
    end = len(data.rstrip())
    for cut in range(0, end, 3):
        whole = complete_events(data, cut)
        try:
            (trace,) = read_both(data[:cut], tmp_path, piece)
        except TraceError:
            assert whole == 0, cut
            continue
        assert "truncated" in findings(trace), cut
        assert trace.events == whole, cut
        (message,) = [f.message for f in trace.findings if f.code == "truncated"]
        assert "truncated" in message


@pytest.mark.parametrize("piece", [13, 4 << 20])
def test_an_array_cut_at_any_byte_keeps_its_whole_events(tmp_path: Path, piece: int) -> None:
    data = document(event_texts(), "[\n", "\n]\n")
    at, ends = 0, []
    for text in event_texts():
        at = data.index(text.encode(), at) + len(text.encode())
        ends.append(at)
    for cut in range(ends[0], len(data) - 2, 3):
        (trace,) = read_both(data[:cut], tmp_path, piece)
        assert trace.events == sum(end <= cut for end in ends), cut
        assert {"truncated", "array_without_end"} & set(findings(trace)), cut


@settings(max_examples=60)
@given(st.integers(0, 400), PIECES)
def test_a_gzip_file_that_is_cut_off_or_damaged_is_said(tmp_path, lost, piece) -> None:
    packed = gzip.compress(document(event_texts()))
    cut = packed[: max(len(packed) - 1 - lost, 0)]
    try:
        (trace,) = read_both(cut, tmp_path, piece)
    except TraceError:
        return
    assert "truncated" in findings(trace)


@settings(max_examples=60)
@given(st.integers(0, len(EVENTS)), st.sampled_from([",", ",,", " , ,\n,"]), PIECES)
def test_further_commas_between_events_cost_nothing(tmp_path, at, commas, piece) -> None:
    texts = event_texts()
    if at < len(texts):
        texts[at] = commas + texts[at]
    else:
        texts[-1] += commas
    (trace,) = read_both(document(texts), tmp_path, piece)
    assert (trace.events, len(trace.rows)) == (len(EVENTS), KEPT)


@settings(max_examples=60)
@given(st.integers(0, len(EVENTS) - 1), PIECES)
def test_a_comma_before_a_closing_brace_costs_nothing(tmp_path, i, piece) -> None:
    texts = event_texts()
    texts[i] = texts[i].replace("}", ",}")
    (trace,) = read_both(document(texts), tmp_path, piece)
    assert (trace.events, len(trace.rows)) == (len(EVENTS), KEPT)
    assert "trailing_comma" in findings(trace)


TRICKY = [
    '}, {"ph": "X", "cat": "kernel"',
    '"traceEvents": [',
    "]}",
    '},\n{"ph"',
    "{[}]",
    "\\",
    '\\"',
    "  ,",
    "\u2028 é 注意力 \U0001f600",
]


@settings(max_examples=60)
@given(st.integers(0, len(EVENTS) - 1), st.sampled_from(TRICKY), st.booleans(), PIECES)
def test_a_name_may_hold_any_text(tmp_path, i, text, ascii_only, piece) -> None:
    events = json.loads(json.dumps(EVENTS))
    events[i]["name"] = text
    data = document([json.dumps(e, ensure_ascii=ascii_only) for e in events])
    (trace,) = read_both(data, tmp_path, piece)
    assert (trace.events, len(trace.rows), findings(trace)) == (len(EVENTS), KEPT, {})
    if events[i]["ph"] == "X":
        assert text in trace.strings


@settings(max_examples=40)
@given(st.sampled_from(TRICKY), PIECES)
def test_the_fields_around_the_events_may_hold_any_text(tmp_path, text, piece) -> None:
    head = (
        '{"note": ' + json.dumps({"a": [text], text: {"traceEvents": [1]}}) + ', "traceEvents": ['
    )
    tail = '], "after": ' + json.dumps([text, {"b": text}]) + "}"
    (trace,) = read_both(document(event_texts(), head, tail), tmp_path, piece)
    assert (trace.events, findings(trace)) == (len(EVENTS), {})
    assert trace.metadata["after"] == [text, {"b": text}]
    assert trace.metadata["note"]["a"] == [text]


@settings(max_examples=40)
@given(PIECES, st.sampled_from([None, 0, 1, 4]), st.randoms(use_true_random=False))
def test_the_order_of_keys_and_white_space_do_not_matter(tmp_path, piece, indent, random) -> None:
    def shuffled(value: Any) -> Any:
        if isinstance(value, dict):
            items = list(value.items())
            random.shuffle(items)
            return {key: shuffled(item) for key, item in items}
        return value

    texts = [json.dumps(shuffled(e), indent=indent) for e in EVENTS]
    (trace,) = read_both(document(texts), tmp_path, piece)
    (plain,) = read_both(document(event_texts()), tmp_path)
    assert (trace.events, len(trace.rows), findings(trace)) == (len(EVENTS), KEPT, {})
    assert trace.rows["ts"].tolist() == plain.rows["ts"].tolist()
    assert trace.rows["correlation"].tolist() == plain.rows["correlation"].tolist()


@given(st.sampled_from([1, 5, 64]))
def test_the_size_of_pieces_does_not_matter(tmp_path, piece) -> None:
    data = document(event_texts())
    (whole,), (pieces,) = read_both(data, tmp_path), read_both(data, tmp_path, piece)
    assert_same_trace(whole, pieces)


@pytest.mark.parametrize(
    "junk", ["7", "null", '"text"', "[1, 2]", "true", "garbage", "{}", '{"ph": }', "{{}}"]
)
@pytest.mark.parametrize("at", [0, 3, len(EVENTS)])
def test_what_is_no_event_is_dropped_and_said(tmp_path, junk, at) -> None:
    texts = event_texts()
    texts.insert(at, junk)
    (trace,) = read_both(document(texts), tmp_path)
    assert len(trace.rows) == KEPT
    if junk != "{}":
        assert findings(trace).get("dropped_event") == 1


@pytest.mark.parametrize("first", ["object", "array"])
@pytest.mark.parametrize("second", ["object", "array"])
def test_documents_one_after_the_other_are_all_loaded(tmp_path, first, second) -> None:
    forms = {
        "object": document(event_texts()),
        "array": document(event_texts(), "[", "]"),
    }
    traces = read_both(forms[first] + b"\n" + forms[second], tmp_path)
    assert [t.events for t in traces] == [len(EVENTS)] * 2
    assert all(findings(t)["several_documents"] == 2 for t in traces)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "empty"),
        (b"   \n", "no trace"),
        (b"hello", "no trace"),
        (b"{}", "traceEvents"),
        (b'{"traceEvents": []}', "no event"),
        (b"[]", "no event"),
        (b'{"traceEvents": {}}', "traceEvents"),
        (b'{"nodes": [], "schema": "1"}', "execution trace"),
        (b"\x1f\x8b", "gzip"),
        (b"\x1f\x8b\x08\x00garbage", "gzip"),
        (b"\xff\xfe[\x00", "no trace"),
    ],
)
def test_what_is_no_trace_is_refused_in_one_line(tmp_path, data, words) -> None:
    with pytest.raises(TraceError, match=words):
        read_both(data, tmp_path)


def test_an_event_nested_without_end_is_no_crash(tmp_path: Path) -> None:
    texts = event_texts()
    texts.insert(
        2,
        '{"ph": "X", "name": "deep", "ts": 1, "dur": 1, "args": {"a": %s}}'
        % ("[" * 20_000 + "]" * 20_000),
    )
    (trace,) = read_both(document(texts), tmp_path)
    assert trace.events + findings(trace).get("dropped_event", 0) == len(EVENTS) + 1
    assert len(trace.rows) >= KEPT
