"""Ascend's traces: all rows are read or counted, and each kernel has the launch that it came by."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from analyzer.attribution.events import LinkedTrace
from analyzer.attribution.links import link_trace
from analyzer.trace import formats, kineto
from analyzer.trace.ascend import reader as ascend
from analyzer.trace.events import Trace
from tests.support.ascend_files import DEVICE, EPOCH_US, HOST, MAIN, AscendBuilder, small_run
from tests.support.tracebuilder import TraceBuilder, findings


def read(events: list[dict[str, Any]], folder: Path) -> Trace:
    path = folder / "trace_view.json"
    path.write_text(json.dumps(events), encoding="utf-8")
    assert ascend.sniff(path)
    (trace,) = formats.read(path)
    return trace


def linked(made: AscendBuilder, folder: Path) -> LinkedTrace:
    return link_trace(read(made.events, folder))


def without(made: AscendBuilder, *categories: str, pid: int = -1) -> AscendBuilder:
    """The trace less the events of some categories, and of a process."""
    made.events = [e for e in made.events if e.get("cat") not in categories and e["pid"] != pid]
    return made


def launches(trace: LinkedTrace) -> list[tuple[str, str | None, str | None]]:
    """Name of each event of the device, its launch and the operator it came from."""
    text = trace.trace.strings
    found: list[tuple[str, str | None, str | None]] = []
    for name, call, op, lent in zip(
        trace.device.name.tolist(),
        trace.device.call.tolist(),
        trace.device.op.tolist(),
        trace.device.replay_op.tolist(),
        strict=True,
    ):
        launch = text[trace.calls.name[call]] if call >= 0 else None
        operator = text[trace.ops.name[op]] if op >= 0 else text[lent] if lent >= 0 else None
        found.append((text[name], launch, operator))
    return found


def expected(launch: str | None) -> Counter[tuple[str, str | None, str | None]]:
    pairs = [("MatMulV2", "aten::mm")] * 2 + [("Relu", "aten::relu")] * 2
    return Counter((name, launch, op) for name, op in [*pairs, ("MEMCPY_ASYNC", "aten::copy_")])


@pytest.mark.parametrize("texts", [True, False])
@pytest.mark.parametrize(("queue", "launch"), [(True, "Enqueue"), (False, "Node@launch")])
def test_a_kernel_is_launched_where_its_operator_hands_it_over(
    queue: bool, launch: str, texts: bool, tmp_path: Path
) -> None:
    trace = linked(small_run(queue, texts), tmp_path)
    assert Counter(launches(trace)) == expected(launch)


def test_connections_alone_tell_the_launches(tmp_path: Path) -> None:
    made = without(small_run(), "HostToDevice", "async_npu")
    assert Counter(launches(linked(made, tmp_path))) == expected("Enqueue")


def test_flows_alone_tell_the_launches(tmp_path: Path) -> None:
    made = small_run(queue=False)
    for event in made.events:
        event.get("args", {}).pop("connection_id", None)
    assert Counter(launches(linked(made, tmp_path))) == expected("Node@launch")


def test_without_the_runtimes_calls_the_operators_enqueue_is_the_launch(tmp_path: Path) -> None:
    made = without(small_run(), "HostToDevice", pid=4824064)
    assert Counter(launches(linked(made, tmp_path))) == expected("Enqueue")


def test_without_calls_and_queue_the_operator_is_known_and_the_launch_is_not(
    tmp_path: Path,
) -> None:
    made = without(small_run(), "HostToDevice", "enqueue", "dequeue", pid=4824064)
    trace = linked(made, tmp_path)
    assert Counter(launches(trace)) == expected(None)
    assert findings(trace.trace)["npu_no_launch"] == 5
    assert findings(trace.trace)["orphan_device_events"] == 5


def test_a_call_of_another_thread_takes_the_operator_from_the_flow(tmp_path: Path) -> None:
    """The queue's own events may be missing: its thread calls CANN outside every operator."""
    made = without(small_run(), "enqueue", "dequeue")
    assert Counter(launches(linked(made, tmp_path))) == expected("Node@launch")


def test_every_event_is_read_or_counted(tmp_path: Path) -> None:
    made = small_run()
    trace = read(made.events, tmp_path)
    assert sum(trace.counts.values()) == trace.events == len(made.events)
    by_category = Counter({cat: n for (ph, cat), n in trace.counts.items() if ph == "X"})
    assert by_category == {
        "operator": 9, "cann_runtime": 15, "kernel": 4, "gpu_memcpy": 1, "npu_dequeue": 5,
        "npu_sync": 1, "npu_communication": 1, "npu_overlap": 1,
    }  # fmt: skip
    assert findings(trace) == {"npu_views": 8}
    assert "events_not_read" not in findings(link_trace(trace).trace)


def test_tasks_that_wait_are_no_work(tmp_path: Path) -> None:
    trace = linked(small_run(), tmp_path)
    busy = (trace.device.end - trace.device.start).sum()
    assert busy == 4 * 3_000 + 2_000


def test_times_keep_their_last_digit(tmp_path: Path) -> None:
    made = AscendBuilder().add_task("k", 1_234_567, 89)
    (row,) = read(made.events, tmp_path).rows
    assert (row["ts"], row["dur"]) == (EPOCH_US * 1000 + 1_234_567, 89)


def test_streams_are_the_physical_ones(tmp_path: Path) -> None:
    made = AscendBuilder().add_task("k", 1, 5, stream=33)
    trace = read(made.events, tmp_path)
    assert trace.strings[trace.rows[0]["stream"]] == "33"


def test_shapes_have_the_text_of_kinetos(tmp_path: Path) -> None:
    made = AscendBuilder().add_op("aten::mm", 1, 5, **{"Input Dims": "1,8;;8", "Input type": "a;b"})
    trace = read(made.events, tmp_path)
    shape = trace.strings[trace.rows[0]["shape"]]
    assert shape.split("\x1f") == ["[[1, 8], [], [8]]", '["a", "b"]', "", ""]


def test_a_mark_of_an_engine_is_a_range_and_no_operator(tmp_path: Path) -> None:
    made = small_run().add_op("execute_context_1(8)_generation_0(0)", 205_000, 60_000)
    trace = linked(made, tmp_path)
    assert [step.phase for step in trace.steps] == ["prefill"]


def test_a_flow_to_nothing_is_counted(tmp_path: Path) -> None:
    made = small_run()
    made.add_flow("async_npu", "torch_to_npu", 7, (HOST, MAIN, 1), (DEVICE, 2, 3))
    assert findings(read(made.events, tmp_path))["loose_flows"] == 1


def test_events_that_are_not_plain_are_mended(tmp_path: Path) -> None:
    text = small_run().text()
    path = tmp_path / "t.json"
    path.write_text(text.replace('"Relu"', '"Re\\\\d\\u00e9\tlu"', 1), encoding="utf-8")
    (trace,) = formats.read(path)
    assert "Re\\d\u00e9\tlu" in trace.strings
    assert findings(trace)["control_characters"] == 1


def test_kinetos_traces_stay_kinetos(tmp_path: Path) -> None:
    made = TraceBuilder().add_op("aten::mm", 1, 5)
    path = made.write(tmp_path / "t.json")
    assert formats.reader_of(path) is kineto
    path.write_text(json.dumps(made.events))
    assert formats.reader_of(path) is kineto
