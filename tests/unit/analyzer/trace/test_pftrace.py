"""Perfetto traces of PyTorch: every dialect gives the events that were recorded, nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from analyzer.trace import formats
from analyzer.trace.columns import UNIT_SEPARATOR, CollectiveText, collective
from analyzer.trace.events import Trace
from analyzer.trace.pftrace import reader as pftrace
from analyzer.trace.reader import ReadOptions
from analyzer.trace.stream import TraceError
from tests.support.pftrace_files import (
    DIALECTS,
    PID,
    SECRET,
    PftraceBuilder,
    annotation,
    small_run,
)
from tests.support.protobuf import message


def read(made: PftraceBuilder, folder: Path, compressed: bool = False) -> Trace:
    (trace,) = formats.read(made.write(folder / "t.bin", compressed))
    return trace


def spans(trace: Trace, category: str) -> list[tuple[str, int, int]]:
    """Name, start and duration of each event of a category."""
    text = trace.strings
    return [
        (text[row["name"]], int(row["ts"]), int(row["dur"]))
        for row in trace.rows
        if text[row["category"]] == category
    ]


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("dialect", DIALECTS)
def test_every_dialect_gives_the_same_events(
    dialect: str, compressed: bool, tmp_path: Path
) -> None:
    trace = read(small_run(dialect), tmp_path, compressed)
    kinds = ("kernel", "gpu_memcpy", "gpu_memset", "cuda_runtime")
    assert [len(spans(trace, kind)) for kind in kinds] == [6, 1, 1, 7]
    assert spans(trace, "kernel")[:2] == [("gemm", 108_000, 3_000), ("relu", 136_000, 3_000)]
    assert not trace.findings
    assert trace.events == sum(trace.counts.values()) == 23


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_collectives_kernel_has_its_group_and_size(dialect: str, tmp_path: Path) -> None:
    args = {
        "Collective name": "allreduce", "Process Group Name": "tp", "Process Group Ranks": "[0, 1]",
        "In msg nelems": 1000, "Out msg nelems": 2000, "dtype": "BFloat16",
    }  # fmt: skip
    made = PftraceBuilder(dialect).add_call("cudaLaunchKernel", 90, 5, 1)
    trace = read(made.add_kernel("ncclAllReduce", 100, 50, 1, **args), tmp_path)
    (shape,) = [trace.strings[row["shape"]] for row in trace.rows if row["shape"] >= 0]
    expected = CollectiveText("allreduce", "tp", "[0, 1]", 1000, 2000, "BFloat16")
    assert collective(shape) == expected


def test_slices_that_touch_keep_their_times(tmp_path: Path) -> None:
    """All begins stand before all ends, so that the first end at a time is not the last begin's."""
    made = PftraceBuilder("slices")
    made.add_kernel("a", 100, 50, 1).add_kernel("b", 150, 50, 2).add_kernel("c", 200, 10, 3)
    trace = read(made, tmp_path)
    assert spans(trace, "kernel") == [("a", 100, 50), ("b", 150, 50), ("c", 200, 10)]


def test_two_slices_that_touch_and_nothing_else_keep_their_times(tmp_path: Path) -> None:
    made = PftraceBuilder("slices").add_kernel("a", 100, 50, 1).add_kernel("b", 150, 50, 2)
    assert spans(read(made, tmp_path), "kernel") == [("a", 100, 50), ("b", 150, 50)]


def test_slices_that_overlap_keep_their_times(tmp_path: Path) -> None:
    made = PftraceBuilder("slices").add_kernel("a", 100, 50, 1).add_kernel("b", 120, 50, 2)
    made.add_op("aten::mm", 10, 20)
    assert spans(read(made, tmp_path), "kernel") == [("a", 100, 50), ("b", 120, 50)]


def test_nested_slices_in_the_order_of_time_are_paired_as_they_nest(tmp_path: Path) -> None:
    """Other programs write an event when it happens."""
    outer, inner = (message((9, 1), (11, 1), (23, name)) for name in ("aten::mm", "aten::view"))
    noted = message((4, annotation("External id", 3)))
    end = message((9, 2), (11, 1))
    packets = [
        message((60, message((1, 1), (4, message((1, PID), (2, 1)))))),
        *(
            message((8, time), (10, 1), (11, event))
            for time, event in ((10, outer + noted), (12, inner), (15, end), (30, end))
        ),
    ]
    path = tmp_path / "t"
    path.write_bytes(b"".join(message((1, packet)) for packet in packets))
    (trace,) = formats.read(path)
    assert spans(trace, "operator") == [("aten::mm", 10, 20), ("aten::view", 12, 3)]


@pytest.mark.parametrize("dialect", DIALECTS)
def test_an_event_on_a_logical_lane_belongs_to_the_stream_that_it_ran_on(
    dialect: str, tmp_path: Path
) -> None:
    made = PftraceBuilder(dialect).add_kernel("k", 100, 50, 1, stream=40, original_stream=7)
    (row,) = read(made, tmp_path).rows
    assert row["stream"] >= 0
    trace = read(made, tmp_path)
    assert trace.strings[trace.rows[0]["stream"]] == "7"


def test_shapes_have_the_text_of_a_chrome_trace(tmp_path: Path) -> None:
    made = PftraceBuilder().add_op(
        "aten::add", 1, 5, **{"Input Dims": [[4, 8], []], "Input type": ["float", "Scalar"]}
    )
    trace = read(made, tmp_path)
    text = trace.strings[trace.rows[0]["shape"]]
    assert text.split(UNIT_SEPARATOR) == ["[[4, 8], []]", '["float", "Scalar"]', "", ""]


def test_work_that_only_its_call_names_has_the_calls_correlation(tmp_path: Path) -> None:
    call = message((9, 1), (11, 1), (23, "cudaLaunchKernel"), (3000, message((1, 77))))
    call += message((4, annotation("cbid", 211)), (4, annotation("correlation", 5)))
    texts = message((24, message((1, 1), (2, "Kernel"))))
    packets = [
        message((10, 1), (13, 1), (12, texts)),
        message((8, 10), (10, 1), (11, call)),
        message((8, 20), (10, 1), (11, message((9, 2), (11, 1)))),
        message((8, 30), (10, 1), (53, message((1, 77), (2, 5), (14, 1), (17, "gemm")))),
    ]
    path = tmp_path / "t"
    path.write_bytes(b"".join(message((1, packet)) for packet in packets))
    (trace,) = formats.read(path)
    assert trace.rows["correlation"].tolist() == [5, 5]


def test_counters_and_dependencies_are_counted(tmp_path: Path) -> None:
    made = small_run().add_counters(3).add_kernel("node", 900_000, 10, 90, waits=[1, 2])
    trace = read(made, tmp_path)
    assert trace.counts["C", "gpu_counter"] == 3
    assert [(f.code, f.count) for f in trace.findings] == [("graph_dependencies", 2)]


@pytest.mark.parametrize("dialect", DIALECTS)
def test_nothing_that_names_a_user_is_kept(dialect: str, tmp_path: Path) -> None:
    made = small_run(dialect)
    assert SECRET.encode() in made.data()
    trace = read(made, tmp_path)
    assert not any(SECRET in text for text in trace.strings)
    assert SECRET not in str(trace.metadata)
    assert not trace.thread_names


def test_a_file_that_ends_too_early_is_said_to(tmp_path: Path) -> None:
    path = tmp_path / "t"
    path.write_bytes(small_run().data()[:-5])
    (trace,) = formats.read(path)
    assert [f.code for f in trace.findings] == ["truncated"]
    assert len(spans(trace, "kernel")) == 6


def test_a_begin_without_end_is_left_out_and_counted(tmp_path: Path) -> None:
    begin = message((9, 1), (11, 1), (23, "aten::mm"), (4, annotation("External id", 3)))
    path = tmp_path / "t"
    path.write_bytes(small_run().data() + message((1, message((8, 5), (10, 1), (11, begin)))))
    (trace,) = formats.read(path)
    assert [(f.code, f.count) for f in trace.findings] == [("open_slices", 1)]


def test_a_perfetto_trace_of_another_program_is_refused_in_one_line(tmp_path: Path) -> None:
    slice_ = message((9, 1), (11, 1), (23, f"Browser {SECRET}"), (22, "toplevel"))
    packets = [message((8, 5), (10, 1), (11, slice_)), message((10, 1), (2, message((1, b""))))]
    path = tmp_path / "t"
    path.write_bytes(b"".join(message((1, packet)) for packet in packets))
    assert pftrace.sniff(path)
    with pytest.raises(TraceError, match="a Perfetto trace but none of PyTorch") as refused:
        formats.read(path)
    assert "\n" not in str(refused.value)
    assert SECRET not in str(refused.value)


def test_more_events_than_allowed_are_refused(tmp_path: Path) -> None:
    path = small_run().write(tmp_path / "t")
    with pytest.raises(TraceError, match="more than 5 events"):
        formats.read(path, ReadOptions(most_events=5))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\n",
        b"\n\n{}",
        b'\n{"traceEvents": []}',
        message((1, message((1, 3), (2, "/device:GPU:0"), (3, b"")))),  # XPlane
        message((1, message((2, "/host:CPU")))),
        message((1, message((2, "Task Environment"), (5, b"")))),
    ],
)
def test_other_files_are_not_taken_for_perfettos(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "t"
    path.write_bytes(data)
    assert not pftrace.sniff(path)
