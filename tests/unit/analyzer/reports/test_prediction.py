"""Predictions: the schedule gives back what was recorded, and changes move it the right way."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from analyzer import cli, queries
from analyzer.errors import AnalyzerError
from analyzer.ingest import ingest
from analyzer.queries.records import ScheduledCall, ScheduledEvent
from analyzer.reports import prediction, schedule
from analyzer.reports.records import Predictions
from analyzer.reports.schedule import ONE, DeviceWork, HostCall, Timeline, fused, simulate
from tests.support.tracebuilder import TraceBuilder

SAMPLES = Path(__file__).parents[4] / "analyzer" / "samples"


def step_trace(trace: TraceBuilder) -> TraceBuilder:
    """Three launches of 10 us kernels, the second queued behind the first, then a wait."""
    trace.add("user_annotation", "step#0", 0, 200)
    for number, start in enumerate((10, 18, 100)):
        trace.add_op("aten::add", start - 5, 9)
        trace.add_call("cudaLaunchKernel", start, 3, number + 1)
    trace.add_kernel("elementwise_a", 15, 10, 1)
    trace.add_kernel("elementwise_b", 26, 10, 2)
    trace.add_kernel("gemm_c", 105, 10, 3)
    trace.add_call("cudaDeviceSynchronize", 110, 20)
    return trace


def predicted(tmp_path: Path, built: TraceBuilder, *whats: str) -> Predictions:
    db = tmp_path / "store.duckdb"
    ingest([built.write(tmp_path / "t.json")], db, step_annotation=["step#*"], jobs=1)
    with queries.connect(db) as connection:
        return prediction.predict(connection, queries.find_run(connection, "latest"), whats)


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> Path:
    db = tmp_path_factory.mktemp("predict") / "samples.duckdb"
    names = ("gpt2-bs8-s512", "gpt2-prefill-bs1-s512", "gpt2-prefill-bs1-s512-graph")
    ingest([SAMPLES / name for name in names], db, jobs=1)
    return db


def ask(db: Path, run: str, *whats: str) -> Predictions:
    with queries.connect(db) as connection:
        return prediction.predict(connection, queries.find_run(connection, run), whats)


def test_with_nothing_changed_the_schedule_gives_the_recorded_step_back(
    trace: TraceBuilder, tmp_path: Path
) -> None:
    value = predicted(tmp_path, step_trace(trace), "cpu-faster:1")

    (one,) = value.predictions
    assert one.predicted_ns == one.base_ns == 200_000
    assert value.phases["step"].replay_error == 0.0


@pytest.mark.parametrize("run", ["gpt2-bs8-s512", "gpt2-prefill-bs1-s512"])
def test_it_gives_recorded_steps_of_a_gpu_back(samples: Path, run: str) -> None:
    phases = ask(samples, run, "graphs").phases

    assert all(abs(p.replay_error) < 1e-4 for p in phases.values())
    assert all(abs(p.fit_error) < 1e-3 for p in phases.values())


def test_a_host_twice_as_fast_halves_what_the_device_waits_for(
    trace: TraceBuilder, tmp_path: Path
) -> None:
    """200 us of host: 110 to the wait, which ends 15 after the last kernel, then 70 of work."""
    (one,) = predicted(tmp_path, step_trace(trace), "cpu-faster:2").predictions

    # Third call at 50 us, its kernel at 50 + 3/2 + 2, ten long; back 15 later; 70/2 after that.
    assert one.predicted_ns == 50_000 + 3_500 + 10_000 + 15_000 + 35_000
    assert one.low_ns <= one.predicted_ns <= one.high_ns


def test_a_graph_step_is_device_time_a_gap_between_nodes_and_the_way_back(
    trace: TraceBuilder, tmp_path: Path
) -> None:
    built = step_trace(trace)
    built.head["deviceProperties"] = [{"id": 0, "name": "NVIDIA H200"}]
    (one,) = predicted(tmp_path, built, "graphs").predictions

    gap = prediction.GAPS["NVIDIA H200"]
    assert one.predicted_ns == 30_000 + 2 * gap.mean_ns + 85_000  # no floor: no launch known
    assert (one.low_ns, one.nodes, one.pieces) == (30_000, 3, 1)
    assert one.high_ns == 30_000 + 2 * gap.high_ns + 85_000


def test_without_a_measured_gap_there_is_a_bound_and_no_prediction(
    trace: TraceBuilder, tmp_path: Path
) -> None:
    (one,) = predicted(tmp_path, step_trace(trace), "graphs").predictions

    assert (one.predicted_ns, one.low_ns) == (None, 30_000)
    assert "no gap" in one.reason


def test_a_run_with_replays_uses_its_own_gaps_and_leaves_waits_out(
    trace: TraceBuilder, tmp_path: Path
) -> None:
    built = step_trace(trace)
    built.add("user_annotation", "step#1", 300, 100)
    built.add_call("cudaGraphLaunch", 310, 5, 9)
    for start in (320, 322, 324, 380):  # 1 us each: two gaps of 1 us, and one of 55
        built.add_kernel("node", start, 1, 9)
    value = predicted(tmp_path, built, "graphs")

    assert (value.gap.mean_ns, value.gap.n) == (1_000, 2)
    assert value.gap.source == "this run's own replays"


def test_a_step_on_two_devices_is_not_predicted_as_one_graph(
    trace: TraceBuilder, tmp_path: Path
) -> None:
    built = step_trace(trace)
    built.add_call("cudaLaunchKernel", 140, 3, 4)
    built.add_kernel("gemm_d", 145, 10, 4, device=1)
    (one,) = predicted(tmp_path, built, "graphs").predictions

    assert one.predicted_ns is None
    assert "several devices" in one.reason


def test_a_wait_within_the_step_cuts_the_graph(trace: TraceBuilder, tmp_path: Path) -> None:
    built = step_trace(trace)
    built.head["deviceProperties"] = [{"id": 0, "name": "NVIDIA H200"}]
    built.add_call("cudaStreamSynchronize", 60, 5)
    (one,) = predicted(tmp_path, built, "graphs").predictions

    assert one.pieces == 2
    assert "2 graphs" in one.reason


def test_a_run_of_graphs_is_not_predicted_as_graphs_again(samples: Path) -> None:
    value = ask(samples, "gpt2-prefill-bs1-s512-graph", "graphs")

    assert all(p.predicted_ns is None and p.reason for p in value.predictions)
    assert value.gap.source == "this run's own replays"


def test_the_eager_run_predicts_the_graph_of_the_same_model(samples: Path) -> None:
    """Recorded: 1.51 ms as one graph, of 34 kernels more (a mask that the capture asked for)."""
    (one,) = ask(samples, "gpt2-prefill-bs1-s512", "graphs").predictions

    assert abs(one.predicted_ns / 1_510_000 - 1) < 0.15
    assert one.low_ns < 1_510_000 < one.high_ns


def test_neighbouring_elementwise_launches_merge_and_nothing_else_does() -> None:
    def launch(family: str, dur: int) -> HostCall:
        return HostCall(10, 5, work=DeviceWork("0/7", 5, 2, 1, ((0, dur, "0/7"),), family))

    calls = (launch("elementwise", 3), launch("elementwise", 4), HostCall(1, 1))
    step = Timeline((*calls, launch("elementwise", 5), launch("gemm", 9)), 0)

    merged = fused(step, 2, max)
    assert [c.work.parts[0][1] for c in merged.calls if c.work] == [4, 5, 9]
    assert simulate(merged) < simulate(step)
    assert fused(step, 1, max).calls == tuple(c for c in step.calls if c.work)


def test_a_change_that_cannot_be_predicted_is_refused(
    samples: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    numbers = (
        "",
        ":",
        ":0",
        ":-1",
        ":1e99",
        ":1e999999999",
        ":nan",
        ":inf",
        ":1/2",
        ":1001",
        ": 2",
    )
    refused = [name + number for name in ("cpu-faster", "fuse", "graphs") for number in numbers]
    for what in ("magic", "cpu-faster:0.001", "fuse:1", "fuse:2.5", *refused):
        if what == "graphs":
            continue
        assert cli.main(["predict", "gpt2-bs8-s512", "--db", str(samples), "--what", what]) == 2
        err = capsys.readouterr().err
        assert repr(what) in err
        assert "cpu-faster:X" in err


def test_a_run_without_kernels_is_refused(trace: TraceBuilder, tmp_path: Path) -> None:
    trace.add_op("aten::add", 0, 10)
    with pytest.raises(AnalyzerError, match="holds no kernel"):
        predicted(tmp_path, trace, "graphs")


def test_the_command_prints_text_and_json(
    samples: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["predict", "gpt2-bs8-s512", "--db", str(samples)]) == 0
    text = capsys.readouterr().out
    assert "Predicted step times" in text
    assert "cpu-faster:2" in text
    assert cli.main(["predict", "gpt2-bs8-s512", "--db", str(samples), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["phases"]["decode"]["steps"] == 12


def test_the_report_shows_predictions(samples: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["report", "gpt2-bs8-s512", "--db", str(samples)]) == 0
    assert "Predicted step times" in capsys.readouterr().out


NS = st.integers(0, 50_000)


@st.composite
def timelines(draw: st.DrawFn) -> Timeline:
    calls: list[HostCall] = []
    for _ in range(draw(st.integers(1, 12))):
        kind = draw(st.sampled_from(("launch", "wait", "other")))
        if kind == "wait":
            calls.append(HostCall(draw(NS), draw(NS), returns_ns=draw(NS)))
            continue
        work = None
        if kind == "launch":
            lane = draw(st.sampled_from(("0/7", "0/20")))
            family = draw(st.sampled_from(("elementwise", "gemm")))
            part = ((0, draw(NS), lane),)
            work = DeviceWork(lane, draw(NS), draw(NS), draw(st.integers(-100, 3000)), part, family)
        calls.append(HostCall(draw(NS), draw(NS), work=work))
    return Timeline(tuple(calls), draw(NS))


@given(timelines(), st.integers(1, 3 * ONE), st.integers(1, 3 * ONE))
def test_a_faster_host_is_never_slower(step: Timeline, a: int, b: int) -> None:
    assert simulate(step, min(a, b)) <= simulate(step, max(a, b))


@given(timelines(), st.integers(2, 5))
def test_the_bounds_of_merging_are_in_order(step: Timeline, most: int) -> None:
    low, best, high = (simulate(fused(step, most, f)) for f in (min, max, sum))
    assert low <= best <= high


@given(timelines())
def test_the_step_is_never_shorter_than_its_host_work_or_its_longest_stream(step: Timeline) -> None:
    host = sum(c.work_ns + c.own_ns for c in step.calls) + step.rest_ns
    assert simulate(step) >= host
    assert simulate(step) >= max((c.work.parts[0][1] for c in step.calls if c.work), default=0)


@given(timelines(), st.integers(1, 10**6))
def test_calibration_finds_the_smallest_scale_that_reaches_the_target(
    step: Timeline, target: int
) -> None:
    scale = schedule.calibrate(step, target)
    assert scale == 4 * ONE or simulate(step, scale) >= target
    assert scale == 1 or simulate(step, scale - 1) < target


@st.composite
def recorded_steps(draw: st.DrawFn) -> tuple[list[ScheduledCall], list[ScheduledEvent], int]:
    """Rows of a step as a launching thread and one or two streams would leave them, and its end."""
    calls: list[dict[str, Any]] = []
    events: list[dict[str, Any]] = []
    now = done = 0
    ready: dict[str, int] = {}
    for number in range(draw(st.integers(1, 14))):
        now += draw(NS)
        kind = draw(st.sampled_from(("launch", "memory", "wait", "other_call")))
        call = {"call_id": number, "account": kind, "start_ns": now, "dur_ns": draw(NS)}
        if kind in ("launch", "memory"):
            lane = draw(st.sampled_from(("0/7", "0/20")))
            start = max(now + draw(NS), ready.get(lane, 0) + draw(st.integers(0, 3000)))
            dur = draw(NS)
            events.append(
                {
                    "call_id": number,
                    "kind": "kernel",
                    "family": None,
                    "device": "0",
                    "lane": lane,
                    "start_ns": start,
                    "dur_ns": dur,
                    "in_graph": False,
                    "mine": True,
                }
            )
            ready[lane] = start + dur
            done = max(done, start + dur)
        if kind == "wait":
            call["dur_ns"] = max(call["dur_ns"], done + draw(NS) - now)
        calls.append(call)
        now += call["dur_ns"]
    end = now + draw(NS)
    for call in calls:
        call["step_ns"] = end
    return (
        [ScheduledCall(**call) for call in calls],
        [ScheduledEvent(**event) for event in sorted(events, key=lambda e: e["start_ns"])],
        max(end, done),
    )


@given(recorded_steps())
def test_any_recorded_step_of_one_thread_is_given_back_to_the_nanosecond(
    recorded: tuple[list[ScheduledCall], list[ScheduledEvent], int],
) -> None:
    calls, events, elapsed = recorded
    assert simulate(schedule.timeline(calls, events)) == elapsed


def decode_trace(trace: TraceBuilder, rows: int = 1, kind: str = "c10::BFloat16") -> TraceBuilder:
    """A step of one layer: four products of a width of 1,024, an attention over 8 keys, a head."""
    trace.add("user_annotation", "step#0", 0, 400)
    shapes = [
        ("aten::mm", [[rows, 1024], [1024, 3072]]),
        ("aten::_scaled_dot_product_flash_attention", [[1, 8, 1, 128], *[[1, 8, 8, 128]] * 2]),
        ("aten::addmm", [[1024], [rows, 1024], [1024, 1024]]),
        ("aten::mm", [[rows, 1024], [1024, 8192]]),
        ("aten::mm", [[rows, 4096], [4096, 1024]]),
        ("aten::mm", [[rows, 1024], [1024, 32000]]),
        ("aten::bmm", [[1, 64, 1], [1, 1, 1]]),  # rotary angles, which the kernel does not compute
    ]
    for number, (op, dims) in enumerate(shapes):
        start = 10 + 30 * number
        types = [kind] * len(dims)
        trace.add_op(op, start - 5, 20, **{"Input Dims": dims, "Input type": types})
        trace.add_call("cudaLaunchKernel", start, 3, number + 1)
        trace.add_kernel(f"gemm_{number}", start + 5, 10, number + 1)
    return trace


def on_h200(trace: TraceBuilder) -> TraceBuilder:
    trace.head["deviceProperties"] = [{"id": 0, "name": "NVIDIA H200"}]
    return trace


def test_one_kernel_takes_one_read_of_weights_and_cache_and_its_products(
    trace: TraceBuilder, tmp_path: Path
) -> None:
    (one,) = predicted(tmp_path, on_h200(decode_trace(trace)), "persistent").predictions

    elements = 1024 * (3072 + 1024 + 8192 + 32000) + 4096 * 1024 + 2 * 8 * 8 * 128
    floor = round(2 * elements / 4390)
    assert (one.low_ns, one.predicted_ns) == (floor, floor + 6 * 1840)
    assert one.high_ns == floor + 6 * 2500


@pytest.mark.parametrize(
    ("built", "reason"),
    [
        (lambda t: decode_trace(t), "no rate of reading"),
        (lambda t: on_h200(decode_trace(t, rows=7)), "several rows"),
        (lambda t: on_h200(decode_trace(t, kind="float")), "the weights are float"),
        (lambda t: on_h200(step_trace(t)), "no matrix product"),
    ],
)
def test_what_cannot_be_one_kernel_is_not_predicted(
    trace: TraceBuilder, tmp_path: Path, built: Any, reason: str
) -> None:
    (one,) = predicted(tmp_path, built(trace), "persistent").predictions

    assert one.predicted_ns is None
    assert reason in str(one.reason)
