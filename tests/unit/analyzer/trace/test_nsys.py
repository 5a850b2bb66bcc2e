"""Exports of Nsight Systems: each table's meaning, what may be missing, what is refused."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from analyzer.attribution import graph_replay
from analyzer.attribution.events import DEVICE_KINDS, LinkedTrace
from analyzer.attribution.links import link_trace
from analyzer.trace import formats, kineto
from analyzer.trace.columns import launch_config, op_shape
from analyzer.trace.events import Trace
from analyzer.trace.nsys import reader as nsys
from analyzer.trace.reader import ReadOptions
from analyzer.trace.stream import TraceError
from analyzer.trace.tabular.tables import MISSING
from tests.support.nsys_files import (
    KERNEL,
    PID,
    RUNTIME,
    SECRET,
    NsysBuilder,
    global_id,
    graph_run,
)


@pytest.fixture
def made() -> NsysBuilder:
    return NsysBuilder()


def read_one(made: NsysBuilder, folder: Path) -> Trace:
    (trace,) = formats.read(made.write(folder / "report.sqlite"))
    return trace


def linked(made: NsysBuilder, folder: Path) -> LinkedTrace:
    found = link_trace(read_one(made, folder))
    graph_replay.resolve_replay_ops(found, graph_replay.captures(found))
    return found


def rows_of(trace: Trace, category: str) -> list[dict[str, Any]]:
    """Rows of a category, texts looked up."""
    texts = ("name", "pid", "tid", "device", "stream", "shape", "config")
    found: list[dict[str, Any]] = []
    for row in trace.rows:
        if trace.strings[row["category"]] == category:
            values = {name: row[name].item() for name in row.dtype.names}
            for name in texts:
                values[name] = trace.strings[values[name]] if values[name] >= 0 else None
            found.append(values)
    return found


def codes(trace: Trace) -> dict[str, int]:
    return {finding.code: finding.count for finding in trace.findings}


def ops_of_kernels(found: LinkedTrace) -> list[str | None]:
    strings = found.trace.strings
    own = [strings[found.ops.name[i]] if i >= 0 else None for i in found.device.op.tolist()]
    captured = [strings[i] if i >= 0 else None for i in found.device.replay_op.tolist()]
    return [b or a for a, b in zip(own, captured, strict=True)]


# -- events


def test_a_kernel_has_the_name_place_and_launch_configuration_that_kineto_gives(
    made: NsysBuilder, tmp_path: Path
) -> None:
    made.add_launch("void gemm<float>(int)", 1_000, 5, stream=9, gridX=4, blockX=128)
    trace = read_one(made, tmp_path)
    (kernel,) = rows_of(trace, "kernel")
    assert (kernel["name"], kernel["ts"], kernel["dur"]) == ("void gemm<float>(int)", 6_000, 3_000)
    assert (kernel["device"], kernel["stream"], kernel["correlation"]) == ("0", "9", 5)
    assert launch_config(kernel["config"]) == ("[4, 1, 1]", "[128, 1, 1]", 48, 24)
    (call,) = rows_of(trace, "cuda_runtime")
    assert (call["name"], call["pid"], call["tid"]) == ("cudaLaunchKernel", str(PID), "1")


@pytest.mark.parametrize(
    ("stored", "shown"),
    [
        ("cudaLaunchKernel_v7000", "cudaLaunchKernel"),
        ("cudaGraphLaunch_v10000", "cudaGraphLaunch"),
        ("cudaStreamGetCaptureInfo_v2_v11030", "cudaStreamGetCaptureInfo_v2"),
        ("cuKernelGetAttribute", "cuKernelGetAttribute"),
    ],
)
def test_the_version_at_the_end_of_a_calls_name_is_left_out(
    stored: str, shown: str, made: NsysBuilder, tmp_path: Path
) -> None:
    made.add_call(stored, 0, 10, 1)
    assert rows_of(read_one(made, tmp_path), "cuda_runtime")[0]["name"] == shown


def test_a_call_with_its_backtrace_is_one_call(made: NsysBuilder, tmp_path: Path) -> None:
    made.add_launch("k", 0, 5).add_call("cudaLaunchKernel", 0, 2_000, 5, event_class=67)
    made.add_call("cuModuleGetLoadingMode", 9_000, 10, 6, event_class=1)
    trace = read_one(made, tmp_path)
    assert [len(rows_of(trace, c)) for c in ("cuda_runtime", "cuda_driver")] == [1, 1]
    assert codes(trace) == {"doubled_calls": 1}
    assert trace.counts["X", "cuda_backtrace"] == 1


def test_copies_and_memsets_are_named_as_kineto_names_them(
    made: NsysBuilder, tmp_path: Path
) -> None:
    place = {"deviceId": 0, "streamId": 7, "correlationId": 3, "globalPid": global_id(PID)}
    made.add(
        "CUPTI_ACTIVITY_KIND_MEMCPY",
        **{"start": 1, "end": 9, "bytes": 64, "copyKind": 1, "srcKind": 0, "dstKind": 2, **place},
    )
    made.add(
        "CUPTI_ACTIVITY_KIND_MEMSET", **{"start": 20, "end": 21, "bytes": 4, "memKind": 2}, **place
    )
    made.add("CUPTI_ACTIVITY_KIND_SYNCHRONIZATION", start=30, end=40, syncType=3, **place)
    trace = read_one(made, tmp_path)
    (copy,), (memset,) = rows_of(trace, "gpu_memcpy"), rows_of(trace, "gpu_memset")
    assert (copy["name"], copy["bytes"]) == ("Memcpy HtoD (Pageable -> Device)", 64)
    assert (memset["name"], memset["bytes"]) == ("Memset (Device)", 4)
    assert rows_of(trace, "cuda_sync")[0]["name"] == "Stream Sync"


def test_the_order_of_rows_changes_nothing(made: NsysBuilder, tmp_path: Path) -> None:
    for i in range(40):
        made.add_range(f"aten::op{i % 3}, op_id = {i}", 10_000 * i, 9_000)
        made.add_launch(f"kernel{i % 5}", 10_000 * i + 100, i + 1)
    before = read_one(made, tmp_path)
    (tmp_path / "report.sqlite").unlink()
    after = read_one(made.shuffle(3), tmp_path)
    for category in ("kernel", "cuda_runtime", "cpu_op"):
        assert rows_of(before, category) == rows_of(after, category)


# -- processes


def test_two_processes_with_the_same_correlation_ids_never_meet(
    made: NsysBuilder, tmp_path: Path
) -> None:
    made.add_launch("first", 0, 5, pid=1).add_launch("second", 100, 5, pid=2)
    made.add_kernel("lonely", 50_000, 10, 77, pid=1).add_call("cudaMalloc", 60_000, 1, 77, pid=2)
    traces = formats.read(made.write(tmp_path / "r.sqlite"))
    assert [t.document for t in traces] == [0, 1]
    assert all(codes(t) == {"several_processes": 2} for t in traces)
    one, two = (link_trace(t) for t in traces)
    assert [one.trace.strings[i] for i in one.device.name.tolist()] == ["first", "lonely"]
    assert one.device.call.tolist() == [0, -1]
    assert [two.trace.strings[i] for i in two.device.name.tolist()] == ["second"]
    assert two.calls.device_events.tolist() == [1, 0]


def test_processes_without_cuda_work_are_left_out_where_others_have_some(
    made: NsysBuilder, tmp_path: Path
) -> None:
    made.add_launch("k", 0, 5, pid=1).add_range("loader", 0, 10, pid=2)
    assert codes(read_one(made, tmp_path)) == {"other_processes": 1}


def test_ranges_alone_are_a_trace(made: NsysBuilder, tmp_path: Path) -> None:
    made.add_range("forward", 0, 10)
    assert rows_of(read_one(made, tmp_path), "user_annotation")[0]["name"] == "forward"


def test_the_rank_is_known_where_mpi_named_the_thread(made: NsysBuilder, tmp_path: Path) -> None:
    made.add_launch("k", 0, 5).add_range("MPI Rank 3", 0, None, kind=39)
    assert read_one(made, tmp_path).metadata["distributedInfo"] == {"backend": "mpi", "rank": 3}


# -- ranges


@pytest.mark.parametrize(
    ("text", "name", "dims"),
    [
        ("aten::view, op_id = 314290", "aten::view", None),
        ("aten::to, seq = 12, op_id = 7", "aten::to", None),
        ("aten::mm, seq = 3", "aten::mm", None),
        ("aten::mm, op_id = 4, sizes = [[2, 3], []]", "aten::mm", "[[2, 3], []]"),
        ("aten::mm, op_id = 4, sizes = [[2]], input_op_ids = [(1,0)]", "aten::mm", "[[2]]"),
        ("FlashAttnFunc, seq = 9, op_id = 5", "FlashAttnFunc", None),
        ("aten::add", "aten::add", None),
        ("FSDP::pre_forward (a.b), op_id = 5", "FSDP::pre_forward (a.b)", None),
    ],
)
def test_a_range_that_pytorch_wrote_for_an_operator_is_an_operator(
    text: str, name: str, dims: str | None, made: NsysBuilder, tmp_path: Path
) -> None:
    made.add_range(text, 10, 90)
    (op,) = rows_of(read_one(made, tmp_path), "cpu_op")
    assert (op["name"], op["ts"], op["dur"]) == (name, 10, 90)
    assert (op_shape(op["shape"]).dims if op["shape"] else None) == dims


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("forward", "forward"),
        ("my label, op_id = 8", "my label"),
        ("ProfilerStep#3, op_id = 9", "ProfilerStep#3"),
        ("hostbound.decode#1", "hostbound.decode#1"),
        ("cub::DeviceReduce::Sum", "cub::DeviceReduce::Sum"),
        ("ncclAllReduce", "ncclAllReduce"),
    ],
)
def test_any_other_range_is_an_annotation(
    text: str, name: str, made: NsysBuilder, tmp_path: Path
) -> None:
    made.add_range(text, 10, 90)
    assert [r["name"] for r in rows_of(read_one(made, tmp_path), "user_annotation")] == [name]


def test_a_registered_text_is_looked_up(made: NsysBuilder, tmp_path: Path) -> None:
    made.add_range(None, 10, 90, registered="aten::mm, op_id = 3").add_range("aten::add", 0, 5)
    names = [row["name"] for row in rows_of(read_one(made, tmp_path), "cpu_op")]
    assert names == ["aten::add", "aten::mm"]


def test_a_range_that_may_begin_and_end_anywhere_is_no_operator(
    made: NsysBuilder, tmp_path: Path
) -> None:
    made.add_range("aten::mm, op_id = 3", 10, 90, kind=60)
    assert not rows_of(read_one(made, tmp_path), "cpu_op")


def test_a_range_without_end_is_counted_and_left_out(made: NsysBuilder, tmp_path: Path) -> None:
    made.add_launch("k", 0, 5).add_range("open", 0, None)
    trace = read_one(made, tmp_path)
    assert codes(trace) == {"open_ranges": 1}
    assert trace.events == 3


def test_a_kernel_lies_under_the_innermost_operator_of_its_thread(
    made: NsysBuilder, tmp_path: Path
) -> None:
    made.add_range("aten::linear, op_id = 1", 0, 10_000).add_range("aten::mm, op_id = 2", 10, 9_000)
    made.add_range("aten::other, op_id = 3", 20, 5_000, tid=2)
    made.add_launch("gemm", 100, 5)
    assert ops_of_kernels(linked(made, tmp_path)) == ["aten::mm"]


# -- graphs


def test_each_kernel_of_a_replay_has_the_op_in_which_its_node_was_captured(tmp_path: Path) -> None:
    found = linked(graph_run("node"), tmp_path)
    assert ops_of_kernels(found) == ["aten::addmm", "aten::relu"] * 2
    shape = op_shape(found.trace.strings[int(found.device.replay_shape[0])])
    assert shape.dims == "[[8], [1, 8], [8, 8]]"
    assert codes(found.trace)["graph_ops"] == 4


def test_a_graph_node_that_is_its_own_origin_ends_the_search(
    made: NsysBuilder, tmp_path: Path
) -> None:
    made.add_range("aten::mm, op_id = 1", 0, 900).add_node(5, 10, origin=6).add_node(
        6, 20, origin=5
    )
    made.add_call("cudaGraphLaunch", 1_000, 10, 3).add_kernel("k", 2_000, 5, 3, node=5)
    assert ops_of_kernels(linked(made, tmp_path)) == ["aten::mm"]


def test_a_node_of_another_process_tells_nothing(made: NsysBuilder, tmp_path: Path) -> None:
    made.add_range("aten::mm, op_id = 1", 0, 900, pid=2).add_node(5, 10, pid=2)
    made.add_call("cudaGraphLaunch", 1_000, 10, 3).add_kernel("k", 2_000, 5, 3, node=5)
    assert ops_of_kernels(linked(made, tmp_path)) == [None]


def test_a_replay_recorded_as_one_block_is_no_kernel_and_says_what_to_do(tmp_path: Path) -> None:
    found = linked(graph_run("graph"), tmp_path)
    assert [DEVICE_KINDS[k] for k in found.device.kind.tolist()] == ["graph"] * 2
    first = found.trace.findings[0]
    assert (first.code, first.severity, first.count) == ("opaque_graph_replays", "warning", 2)
    assert "2 replays of CUDA graphs, no kernels" in first.message
    assert "--cuda-graph-trace=node" in first.message


# -- columns that are not there


def test_columns_and_tables_may_be_missing(made: NsysBuilder, tmp_path: Path) -> None:
    made.add(KERNEL, start=10, end=20, correlationId=4, shortName=made.string("k"))
    made.add(
        RUNTIME, start=0, end=5, correlationId=4, globalTid=1, nameId=made.string("cuLaunchKernel")
    )
    found = linked(made, tmp_path)
    assert found.device.call.tolist() == [0]
    assert found.trace.strings[int(found.device.name[0])] == "k"


def test_a_name_that_the_report_lacks_is_called_unknown(made: NsysBuilder, tmp_path: Path) -> None:
    made.add(KERNEL, start=10, end=20, demangledName=99)
    assert rows_of(read_one(made, tmp_path), "kernel")[0]["name"] == "unknown"


def test_an_id_that_is_damaged_leads_to_no_text_of_a_process(
    made: NsysBuilder, tmp_path: Path
) -> None:
    """Command lines, output and environment stand among the names that events refer to."""
    for table, column in (
        ("ProcessStreams", "contentId"),
        ("ANALYSIS_FILE", "filenameId"),
        ("TARGET_INFO_PROCESS", "nameId"),
        ("ThreadNames", "nameId"),
    ):
        made.add(table, **{column: made.string(f"HB_SECRET_{table}")})
        made.add_kernel(f"HB_SECRET_{table}", 1_000, 10, 99)
        made.add_call(f"HB_SECRET_{table}", 1_000, 10, 99)
    (trace,) = nsys.read(made.write(tmp_path / "r.sqlite"))
    assert not [text for text in trace.strings if "HB_SECRET" in text]
    assert "unknown" in trace.strings


def test_an_event_without_times_is_counted_and_left_out(made: NsysBuilder, tmp_path: Path) -> None:
    made.add_launch("k", 0, 5)
    made.tables[KERNEL].append({"start": 3, "end": None})
    trace = read_one(made, tmp_path)
    assert codes(trace)["no_time"] == 1
    assert len(rows_of(trace, "kernel")) == 1


def test_a_value_of_another_type_is_no_error(made: NsysBuilder, tmp_path: Path) -> None:
    made.add_launch("k", 0, 5)
    made.tables[KERNEL][0] |= {"streamId": "seven", "deviceId": 1.5}
    (kernel,) = rows_of(read_one(made, tmp_path), "kernel")
    assert (kernel["device"], kernel["stream"]) == ("1", "0")


def test_a_view_is_not_read(tmp_path: Path) -> None:
    path = NsysBuilder().add_range("x", 0, 5).write(tmp_path / "r.sqlite")
    with sqlite3.connect(path) as connection:
        connection.execute(f'CREATE VIEW "{KERNEL}" AS SELECT 1 AS start, 2 AS end')
    connection.close()
    assert not rows_of(formats.read(path)[0], "kernel")


# -- kinds of files


def test_parquet_files_give_the_same_trace_as_the_database(tmp_path: Path) -> None:
    made = graph_run("node").add_launch("k", 900_000, 7).add_secrets()
    trace = read_one(made, tmp_path)
    folder = made.write_parquet(tmp_path / "report_pqtdir")
    assert formats.is_trace_folder(folder)
    (other,) = formats.read(folder)
    for category in ("kernel", "cuda_runtime", "cpu_op", "graph_node"):
        assert rows_of(trace, category) == rows_of(other, category)
    assert trace.metadata == other.metadata
    assert codes(trace) == codes(other)


def test_content_tells_the_format_and_not_the_name(made: NsysBuilder, tmp_path: Path) -> None:
    path = made.add_launch("k", 0, 5).write(tmp_path / "trace.json")
    assert formats.reader_of(path) is nsys
    (tmp_path / "t.sqlite").write_text('{"traceEvents": []}')
    assert formats.reader_of(tmp_path / "t.sqlite") is kineto


def test_a_report_that_was_not_exported_is_refused_with_the_command(tmp_path: Path) -> None:
    path = tmp_path / "my.nsys-rep"
    path.write_bytes(b"\x00\x01\x02binary" * 100)
    with pytest.raises(TraceError) as refused:
        formats.read(path)
    assert "`nsys export --type sqlite --output report.sqlite my.nsys-rep`" in str(refused.value)
    assert "\n" not in str(refused.value)


def test_another_database_is_refused(tmp_path: Path) -> None:
    path = NsysBuilder().add("users", name=SECRET).write(tmp_path / "x.sqlite")
    with pytest.raises(TraceError, match="a database but neither an export") as refused:
        formats.read(path)
    assert SECRET not in str(refused.value)


@pytest.mark.parametrize("size", [16, 100, 5_000])
def test_a_database_that_is_cut_off_is_refused_in_one_line(size: int, tmp_path: Path) -> None:
    path = graph_run("node").write(tmp_path / "x.sqlite")
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(TraceError) as refused:
        formats.read(path)
    assert "\n" not in str(refused.value)


def test_an_export_without_events_is_refused(made: NsysBuilder, tmp_path: Path) -> None:
    made.add_launch("k", 0, 5)
    path = made.write(tmp_path / "x.sqlite")
    with sqlite3.connect(path) as connection:
        connection.execute(f'DELETE FROM "{KERNEL}"')
        connection.execute(f'DELETE FROM "{RUNTIME}"')
    connection.close()
    with pytest.raises(TraceError, match="holds no event"):
        formats.read(path)


def test_more_than_is_read_is_refused(made: NsysBuilder, tmp_path: Path) -> None:
    path = made.add_launch("k", 0, 5).write(tmp_path / "x.sqlite")
    with pytest.raises(TraceError, match="more than 1 events"):
        nsys.read(path, ReadOptions(most_events=1))
    with pytest.raises(TraceError, match="more than 9 bytes"):
        nsys.read(path, ReadOptions(most_bytes=9))


def test_progress_ends_at_the_size_of_the_file(made: NsysBuilder, tmp_path: Path) -> None:
    path = made.add_launch("k", 0, 5).write(tmp_path / "x.sqlite")
    seen: list[int] = []
    nsys.read(path, ReadOptions(progress=seen.append))
    assert seen == sorted(seen)
    assert seen[-1] == path.stat().st_size


# -- what a report says of itself


def test_of_the_reports_own_description_only_versions_gpus_and_clock_are_kept(
    made: NsysBuilder, tmp_path: Path
) -> None:
    trace = read_one(made.add_launch("k", 0, 5).add_secrets(), tmp_path)
    assert trace.metadata == {
        "format": "Nsight Systems",
        "schema": "3.25.0",
        "deviceProperties": [
            {"id": 0, "name": "NVIDIA H200", "numSms": 132, "memoryBandwidth": 4_800_000_000_000}
        ],
    }
    assert codes(trace) == {"profiler_messages": 1}
    assert not any(SECRET in text for text in trace.strings)
    assert not any(SECRET in finding.message for finding in trace.findings)


def test_missing_is_a_number_that_no_event_has() -> None:
    assert np.iinfo(np.int64).min == MISSING
