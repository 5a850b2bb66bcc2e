"""Chrome traces of PyTorch's newer writer and of Intel GPUs: lanes, queues, nodes of graphs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from analyzer.attribution.events import LinkedTrace
from analyzer.attribution.links import link_trace
from tests.support.tracebuilder import TraceBuilder, findings, read_both


def linked(made: TraceBuilder, folder: Path) -> LinkedTrace:
    """A trace, read by either scanner and linked."""
    return link_trace(read_both(made.text().encode(), folder)[0])


def streams(trace: LinkedTrace) -> list[str]:
    return [trace.trace.strings[i] for i in trace.device.stream.tolist()]


def graph_replay() -> TraceBuilder:
    """A replay of three nodes, one moved to a lane, as PyTorch 2.14 writes it."""
    made = TraceBuilder()
    made.head["cudaGraphInlineAnnotated"] = True
    made.add_op("aten::copy_", 0, 9).add_call("cudaGraphLaunch", 1, 5, 77)
    node = {"graph id": 3, "graph node id": 11}
    made.add_kernel("a", 10, 10, 77, **node)
    made.add_kernel("b", 15, 10, 77, stream=60, original_stream=8, **node)
    made.add_kernel("c", 30, 5, 77, annotated_stream=60, **node)
    made.add_kernel("EventRecord", 36, 0, 77, category="graph_event_node", **node)
    made.add_kernel("HostNode: free", 37, 2, 77, category="graph_host_node", **node)
    flow: dict[str, Any] = {"cat": "ac2g", "name": "ac2g", "pid": 0, "tid": 7}
    made.events += [
        {"ph": "s", "id": 77, "cat": "ac2g", "name": "ac2g", "pid": 1, "tid": 1, "ts": 1},
        {"ph": "f", "id": 77, "ts": 10, "bp": "e", **flow},
        {"ph": "s", "id": (1 << 40) + 1, "ts": 20, **flow},
        {"ph": "f", "id": (1 << 40) + 1, "ts": 30, "bp": "e", **flow},
        {"ph": "C", "name": "Power (W)", "pid": "GPU 0 Counters", "ts": 3.5, "args": {"": 310.5}},
    ]
    made.add("overhead", "Buffer Flush", 50, 5, pid=-1, tid=0)
    made.add_kernel(
        "Stream Wait Event", 9, 1, 70, category="cuda_sync",
        cuda_sync_kind="Stream Wait Event", wait_on_cuda_event_record_corr_id=-1,
    )  # fmt: skip
    return made


def test_every_node_of_a_replay_belongs_to_its_launch_whatever_its_flows_say(
    tmp_path: Path,
) -> None:
    trace = linked(graph_replay(), tmp_path)
    assert trace.device.call.tolist() == [0, 0, 0]
    assert trace.calls.device_events.tolist() == [3]
    assert "orphan_device_events" not in findings(trace.trace)


def test_an_event_moved_to_a_lane_counts_on_the_stream_that_it_ran_on(tmp_path: Path) -> None:
    trace = linked(graph_replay(), tmp_path)
    assert streams(trace) == ["7", "8", "7"]
    assert len(np.unique(trace.device.lane)) == 2


def test_nodes_without_work_and_counters_are_counted_and_in_no_figure(tmp_path: Path) -> None:
    (trace,) = read_both(graph_replay().text().encode(), tmp_path)
    counts = {("X", "graph_event_node"): 1, ("X", "graph_host_node"): 1, ("C", ""): 1}
    assert counts.items() <= trace.counts.items()
    assert "events_not_read" not in findings(link_trace(trace).trace)


def test_the_name_of_a_trace_keeps_no_folder(tmp_path: Path) -> None:
    made = graph_replay()
    made.head["traceName"] = "/home/HB_SECRET/run/t.json"
    (trace,) = read_both(made.text().encode(), tmp_path)
    assert trace.metadata["traceName"] == "t.json"


def intel_trace(launch: str = "urEnqueueKernelLaunchWithArgsExp") -> TraceBuilder:
    """Two queues of one device, as Kineto writes an Intel GPU: no stream, no grid, no block."""
    made = TraceBuilder().add_op("aten::mm", 0, 50).add_op("aten::relu", 60, 20)
    for start, correlation, queue in ((5, 4131, 64), (65, 4132, 65)):
        made.add("xpu_runtime", launch, start, 8, args={"correlation": correlation})
        made.add(
            "kernel", "gemm_kernel", start + 10, 30, pid=0, tid=0,
            args={
                "correlation": correlation, "device": 0, "sycl queue": queue,
                "l0 queue": f"0x{queue:016x}", "context": "0x01", "kernel_id": 1,
                "appended": "12.345", "submitted": "12.400",
            },
        )  # fmt: skip
    made.add("xpu_runtime", "urUSMEnqueueMemcpy", 90, 5, args={"correlation": 5})
    args = {"correlation": 5, "device": 0, "sycl queue": 64, "bytes": 256, "l0 call": "x"}
    made.add("gpu_memcpy", "Memcpy M2D (Memory -> Device)", 100, 4, pid=0, tid=0, args=args)
    made.add("xpu_runtime", "urQueueFinish", 110, 20, args={"correlation": 6})
    made.add("xpu_sync", "zeEventHostSynchronize", 111, 18, pid=-1, tid=1, args={"correlation": 6})
    # A flow may end on a span of the host.
    made.events.append({"ph": "f", "id": 4131, "cat": "ac2g", "pid": 1, "tid": 1, "ts": 6})
    return made


@pytest.mark.parametrize("launch", ["urEnqueueKernelLaunch", "urSomethingOfNextYear"])
def test_work_of_an_intel_gpu_is_linked_by_correlation_whatever_the_call_is_called(
    launch: str, tmp_path: Path
) -> None:
    trace = linked(intel_trace(launch), tmp_path)
    names = trace.trace.strings
    called = [names[trace.calls.name[i]] for i in trace.device.call.tolist()]
    assert called == [launch, launch, "urUSMEnqueueMemcpy"]
    ops = [names[trace.ops.name[i]] for i in trace.device.op.tolist() if i >= 0]
    assert ops == ["aten::mm", "aten::relu"]


def test_a_queue_of_an_intel_gpu_is_a_stream(tmp_path: Path) -> None:
    assert streams(linked(intel_trace(), tmp_path)) == ["64", "65", "64"]


def test_a_trace_with_level_zero_queues_alone_has_those_as_streams(tmp_path: Path) -> None:
    made = intel_trace()
    for event in made.events:
        event.get("args", {}).pop("sycl queue", None)
    assert streams(linked(made, tmp_path))[:2] == [f'"0x{queue:016x}"' for queue in (64, 65)]


def test_nothing_of_an_intel_trace_is_left_unsaid(tmp_path: Path) -> None:
    trace = linked(intel_trace(), tmp_path)
    assert not findings(trace.trace)
    assert trace.trace.counts["X", "xpu_sync"] == 1
