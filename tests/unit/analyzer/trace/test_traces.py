"""Every recorded trace gives the numbers of an independent reader, to the nanosecond."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from analyzer.attribution import graph_replay
from analyzer.attribution.events import LinkedTrace
from analyzer.attribution.intervals import Nest, length, union
from analyzer.attribution.links import link_trace
from analyzer.trace import kineto, native_scanner
from analyzer.trace.reader import ReadOptions
from tests.support.tracebuilder import assert_same_trace

# Names only, so that a machine without the traces still collects and says what it misses.
TRACES = (
    "a100-alexnet-external-id-trap",
    "a100-cuda-graphs-six-streams",
    "a100-nccl-two-streams",
    "a100-triton-driver-launch",
    "b200-eager-vllm",
    "cpu-only",
    "h100-eager-qwen-orphans",
    "h100-eager-vit",
    "mi210-gpu-only",
    "mi300-eager-qwen-orphans",
    "mi300-norm-fwd-bwd-flow-ids",
    "mi300-sglang-decode-graph-replay",
    "mi300-torch-compile-triton",
    "mi300-vllm-full-graph-capture",
    "mi300-vllm-full-graph-replay",
    "mi300-vllm-piecewise-graph-capture",
    "mi300-vllm-piecewise-graph-replay",
    "mtia-inference",
    "v100-ns-absolute",
    "h200/gpt2-generate-bs1-s512-m10",
    "h200/gpt2-prefill-bs1-s512-compile-default",
    "h200/gpt2-prefill-bs1-s512-execution-trace.kineto",
    "h200/gpt2-prefill-bs1-s512-graph-capture-and-replay",
    "h200/gpt2-prefill-bs1-s512-graph-replay-only",
    "h200/gpt2-prefill-bs1-s512-stack",
    "h200/gpt2-prefill-bs1-s512",
    "h200/gpt2-prefill-bs2-s512",
    "h200/gpt2-prefill-bs8-s512",
    "h200/llama2-7b-generate-bs1-s100-m4",
    "h200/null-synced",
    "h200/olmoe-generate-bs1-s512-m4-eager",
    "h200/olmoe-generate-bs1-s512-m4-grouped_mm",
)


def ns(us: float) -> int:
    """Microseconds of the facts as nanoseconds, by their decimal text."""
    return int((Decimal(repr(us)) * 1000).to_integral_value())


def facts_of(shared: Path, name: str) -> dict[str, Any]:
    folder = shared / "traces" / ("h200" if name.startswith("h200/") else "")
    value = json.loads((folder / "facts.json").read_text())
    return value.get("files", value)[Path(name).name + ".json.gz"]


@pytest.fixture(scope="module", params=TRACES)
def recorded(
    request: pytest.FixtureRequest, shared_dir: Path
) -> Iterator[tuple[LinkedTrace, dict[str, Any]]]:
    (trace,) = kineto.read(shared_dir / "traces" / f"{request.param}.json.gz")
    return link_trace(trace), facts_of(shared_dir, request.param)


def gpu(a: LinkedTrace) -> np.ndarray:
    return a.device.kind < 3


def test_no_recorded_trace_is_left_out(shared_dir: Path) -> None:
    listed: set[str] = set()
    for folder, prefix in (("traces", ""), ("traces/h200", "h200/")):
        value = json.loads((shared_dir / folder / "facts.json").read_text())
        listed |= {prefix + name.removesuffix(".json.gz") for name in value.get("files", value)}
    assert listed == set(TRACES)


def test_events_by_phase_and_category_are_counted(recorded) -> None:
    a, facts = recorded
    by_ph: Counter[str] = Counter()
    by_category: Counter[str] = Counter()
    for (ph, category), n in a.trace.counts.items():
        by_ph[ph] += n
        if ph == "X":
            by_category[category] += n
    assert a.trace.events == facts["events"]
    assert dict(by_ph) == facts["events_by_ph"]
    assert dict(by_category) == facts["x_events_by_cat"]
    # A document ends with its last bracket; a file may go on with white space.
    assert 0 <= facts["json_bytes"] - a.trace.json_bytes <= 8


def test_device_events_ops_and_calls_are_counted(recorded) -> None:
    a, facts = recorded
    counts = [int((a.device.kind == kind).sum()) for kind in range(4)]
    keys = ("kernels", "memcpys", "memsets", "mtia_events")
    assert counts == [facts[key] for key in keys]
    assert len(a.ops.start) == facts["cpu_ops"]
    assert len(a.calls.start) == facts["host_calls"]
    names = Counter(a.trace.strings[i] for i in a.calls.name.tolist())
    assert dict(names) == facts["host_call_names"]
    kernel_names = np.unique(a.device.name[a.device.kind == 0])
    assert len(kernel_names) == facts["distinct_kernel_names"]


def test_device_events_link_to_calls_and_ops(recorded) -> None:
    """Facts find the op among ops and regions alike; here a region is looked through."""
    a, facts = recorded
    for key, at in (
        ("linking_gpu_events", gpu(a)),
        ("linking_kernels", a.device.kind == 0),
        ("linking_mtia_events", a.device.kind == 3),
    ):
        links = facts[key]
        call = a.device.call[at]
        assert int((call >= 0).sum()) == (links.get("linked") or 0)
        assert len(call) == links.get("events", 0)
        names = Counter(a.trace.strings[a.calls.name[c]] for c in call[call >= 0].tolist())
        names["(none)"] = int((call < 0).sum())
        assert dict(+names) == links["launch_names"]
        good = call[(call >= 0)]
        in_any = innermost_of_all(a)[good] >= 0
        assert int(in_any.sum()) == (links.get("op_by_time") or 0)
        in_op = a.calls.op[good] >= 0
        assert not (in_op & ~in_any).any()


def innermost_of_all(a: LinkedTrace) -> np.ndarray:
    """Innermost op or region around each call."""
    nest = Nest(a.ops.thread, a.ops.start, a.ops.end, a.ops.index)
    return nest.innermost(a.calls.thread, a.calls.start)


def test_orphans_are_what_does_not_link(recorded) -> None:
    a, facts = recorded
    links = facts["linking_gpu_events"]
    orphans = int((a.device.call[gpu(a)] < 0).sum())
    assert orphans == links.get("events", 0) - (links.get("linked") or 0)
    linked_ns = busy(a, gpu(a) & (a.device.call >= 0))
    assert linked_ns == ns(facts["time"]["gpu_active_us_of_linked_events_only"] or 0)


def test_graph_launches_own_their_events(recorded) -> None:
    a, facts = recorded
    graph = facts["graph"]
    owned = a.calls.device_events[a.calls.kind == 2]
    assert len(owned) == graph["launch_calls"]
    assert int((a.device.graph_index >= 0).sum()) == graph["gpu_events_of_graphs"]
    assert int((owned == 0).sum()) == graph["launch_calls_without_gpu_events"]
    if (owned > 0).any():
        assert int(owned[owned > 0].min()) == graph["gpu_events_per_launch_min"]
        assert int(owned.max()) == graph["gpu_events_per_launch_max"]


def busy(a: LinkedTrace, at: np.ndarray) -> int:
    total = 0
    for device in np.unique(a.device.device[at]).tolist():
        own = at & (a.device.device == device)
        total += length(*union(a.device.start[own], a.device.end[own]))
    return total


def test_device_time_is_exact_by_device_and_by_stream(recorded) -> None:
    a, facts = recorded
    time, device, at = facts["time"], a.device, gpu(a)
    kernels = device.kind == 0
    duration = device.end - device.start
    assert int(duration[at].sum()) == ns(time["sum_gpu_event_us"])
    assert int(duration[kernels].sum()) == ns(time["sum_kernel_us"])
    assert busy(a, at) == ns(time["gpu_active_us"])
    assert busy(a, kernels) == ns(time["kernel_active_us"])
    assert busy(a, device.kind == 3) == ns(time["mtia_active_us"])
    by_device = {
        a.trace.strings[d]: busy(a, at & (device.device == d))
        for d in np.unique(device.device[at]).tolist()
    }
    assert by_device == {d: ns(us) for d, us in time["gpu_active_us_by_device"].items()}
    streams = {}
    for lane in np.unique(device.lane).tolist():  # streams of MTIA among them
        own = device.lane == lane
        first = int(np.flatnonzero(own)[0])
        key = (a.trace.strings[device.device[first]], a.trace.strings[device.stream[first]])
        streams[key] = (int(own.sum()), int(duration[own].sum()), busy(a, own))
    assert streams == {
        (json.dumps(s["device"]), json.dumps(s["stream"])): (
            s["events"],
            ns(s["sum_us"]),
            ns(s["active_us"]),
        )
        for s in facts["streams"]
    }


def test_the_first_start_and_the_span_are_exact(recorded) -> None:
    a, facts = recorded
    at = gpu(a)
    if not at.any():
        pytest.skip("no device event")
    span = int(a.device.end[at].max()) - int(a.device.start[at].min())
    assert span == ns(facts["time"]["gpu_span_us"])


@pytest.mark.parametrize(
    ("capture", "replay", "events"),
    [
        ("mi300-vllm-full-graph-capture", "mi300-vllm-full-graph-replay", 421),
        ("mi300-vllm-piecewise-graph-capture", "mi300-vllm-piecewise-graph-replay", 361),
        ("h200/gpt2-prefill-bs1-s512-graph-capture-and-replay",) * 2 + (843,),
    ],
)
def test_a_capture_lends_ops_to_every_event_of_its_replays(
    shared_dir: Path, capture: str, replay: str, events: int
) -> None:
    def load(name: str) -> LinkedTrace:
        return link_trace(kineto.read(shared_dir / "traces" / f"{name}.json.gz")[0])

    target = load(replay)
    graph_replay.resolve_replay_ops(target, graph_replay.captures(load(capture)))
    assert int((target.device.graph_index >= 0).sum()) == events
    assert int((target.device.replay_op >= 0).sum()) == events
    (note,) = [f for f in target.trace.findings if f.code == "graph_ops"]
    assert note.count == events


def test_captured_ops_of_a_replay_are_those_of_the_capture(shared_dir: Path) -> None:
    """The full-graph pair: the most frequent ops, as the independent reader counted them."""
    pair = "mi300-vllm-full-graph-{}.json.gz"
    capture, target = (
        link_trace(kineto.read(shared_dir / "traces" / pair.format(end))[0])
        for end in ("capture", "replay")
    )
    graph_replay.resolve_replay_ops(target, graph_replay.captures(capture))
    found = Counter(target.trace.strings[i] for i in target.device.replay_op.tolist() if i >= 0)
    facts = json.loads((shared_dir / "traces" / "facts.json").read_text())["pairs"]
    for names, pair_facts in facts.items():
        if "full-graph" in names:
            expected = pair_facts["top_ops_of_captured_launches"]
            assert {op: found[op] for op in expected} == expected


def test_a_capture_of_another_graph_lends_nothing(shared_dir: Path) -> None:
    folder = shared_dir / "traces"
    capture = link_trace(kineto.read(folder / "mi300-vllm-full-graph-capture.json.gz")[0])
    target = link_trace(kineto.read(folder / "mi300-sglang-decode-graph-replay.json.gz")[0])
    graph_replay.resolve_replay_ops(target, graph_replay.captures(capture))
    assert int((target.device.replay_op >= 0).sum()) == 0
    assert "graph_without_capture" in {f.code for f in target.trace.findings}


@pytest.mark.parametrize("name", TRACES)
def test_both_scanners_give_equal_rows(
    shared_dir: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    if native_scanner.library() is None:
        pytest.skip("the C scanner is not built here")
    path = shared_dir / "traces" / f"{name}.json.gz"
    native = kineto.read(path, ReadOptions(keep_python=True))
    monkeypatch.setattr(native_scanner, "library", lambda: None)
    for x, y in zip(native, kineto.read(path, ReadOptions(keep_python=True)), strict=True):
        assert_same_trace(x, y)
