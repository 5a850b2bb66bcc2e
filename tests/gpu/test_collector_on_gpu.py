"""The collector on a real GPU: floors by launch API, replays that launch what was traced, a whole
run."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

import pytest

from schemas.run_directory import read_manifest

pytestmark = pytest.mark.gpu


def test_each_launch_api_has_a_floor_of_microseconds() -> None:
    from collector import kernel_replay

    floors = kernel_replay.floor("cuda:0", 50)

    assert floors["missing"] == {}
    medians = {
        entry["launch_api"]: statistics.median(entry["samples_ns"])
        for entry in floors["floors"]
        if entry["definition"] == "api_start_to_kernel_start"
    }
    assert set(medians) == {
        "cuLaunchKernel",
        "cuLaunchKernelEx",
        "cudaLaunchKernel",
        "cudaLaunchKernelExC",
    }
    assert all(1_000 < value < 100_000 for value in medians.values())


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from collector.record import Request, record

    request = Request(
        model="gpt2",
        prompt_len=32,
        new_tokens=3,
        warmup=2,
        latency_runs=3,
        trace_runs=1,
        replay_runs=12,
        steady_budget_s=2.0,
    )
    return record(request, tmp_path_factory.mktemp("runs") / "gpt2", "gpt2")


def test_a_run_of_graphs_has_the_tokens_of_the_eager_one() -> None:
    import torch

    from collector import models, workloads

    with torch.inference_mode():
        model = models.load("gpt2", "bf16", "cuda:0", 0, "sdpa")
        ids = workloads.prompt_ids(model, 2, 32, 0, None)
        made = {m: workloads.make(model, m, ids, 4, "cuda:0")[0] for m in ("eager", "graph")}
        tokens = {m: [w.prefill(), *(w.decode() for _ in range(3))] for m, w in made.items()}
        again = [made["graph"].prefill(), *(made["graph"].decode() for _ in range(3))]

    assert tokens["graph"] == tokens["eager"] == again


def test_a_recorded_run_is_whole(run: Path) -> None:
    manifest = read_manifest(run)

    assert set(manifest.files) == {
        "trace.json.gz",
        "execution_trace.json.gz",
        "kernel_replay.json",
        "null_kernel.json",
        "latency.json",
    }
    assert manifest.environment.gpu is not None
    assert len(manifest.traces[0].step_wall_ns) == 3


def test_every_op_call_of_a_dense_model_is_replayed(run: Path) -> None:
    ops: list[dict[str, Any]] = json.loads((run / "kernel_replay.json").read_bytes())["ops"]

    assert [op["op"] for op in ops if op["reason"]] == []
    for op in ops:
        for kernel in op["kernels"]:
            assert kernel["count"] == len(kernel["launch_ns"]) <= 12
            assert min(kernel["exec_ns"]) > 0


def test_the_traced_kernels_are_among_the_replayed_ones(run: Path) -> None:
    from collector import op_calls

    ops = json.loads((run / "kernel_replay.json").read_bytes())["ops"]
    replayed = {kernel["name"] for op in ops for kernel in op["kernels"]}
    traced = {
        event["name"]
        for event in op_calls.load_trace(run / "trace.json.gz")
        if event.get("cat") == "kernel"
    }

    assert traced - replayed == set()


def test_a_replay_can_be_done_again(run: Path) -> None:
    from collector.replay_again import replay_again

    before = read_manifest(run).files

    replay_again(run, "cuda:0", 6, None)

    after = read_manifest(run).files
    assert after["trace.json.gz"] == before["trace.json.gz"]
    assert after["kernel_replay.json"] != before["kernel_replay.json"]


def test_a_run_like_another_has_its_kernel_sequences_and_both_say_how_fast_the_host_was(
    run: Path, tmp_path: Path
) -> None:
    """Times are not asserted: what a host does meanwhile is its own affair."""
    from collector.record import Request, record

    request = Request(
        model="gpt2",
        prompt_len=32,
        new_tokens=3,
        warmup=2,
        latency_runs=3,
        trace_runs=2,
        replay_runs=12,
        replay=False,
        steady_budget_s=5.0,
        like=run,
    )
    second = record(request, tmp_path / "second", "second")

    first, like = read_manifest(run), read_manifest(second)
    assert first.host_speed is not None
    assert like.host_speed is not None
    assert like.host_speed.like == first.run_id
    assert len(first.trace_speeds_ns()) == 2
    assert len(like.trace_speeds_ns()) == 4
    assert len(like.host_speed.floor_ns or []) == 2
    assert all(len(trace.unprofiled_step_wall_ns or []) == 3 for trace in like.traces)
    sequences = [kernels(run / "trace.json.gz")]
    sequences += [kernels(second / trace.file) for trace in like.traces]
    assert len(sequences[0]) > 300
    assert sequences[1] == sequences[0]
    assert sequences[2] == sequences[0]


def kernels(trace: Path) -> list[tuple[Any, ...]]:
    """Names and launch configurations in the order of one stream."""
    from collector import op_calls

    found = [event for event in op_calls.load_trace(trace) if event.get("cat") == "kernel"]
    return [
        (event["name"], event["args"]["grid"], event["args"]["block"])
        for event in sorted(found, key=lambda event: float(event["ts"]))
    ]
