"""The collector on a real GPU: floors by launch API, replays that launch what was traced, a whole
run."""

from __future__ import annotations

import gzip
import json
import statistics
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from schemas.run_directory import read_manifest

pytestmark = pytest.mark.gpu


def test_each_launch_api_has_a_floor_of_microseconds() -> None:
    from collector.replay import kernel_replay

    floors = kernel_replay.floor("cuda:0", 50)

    assert floors.missing == {}
    medians = {
        entry.launch_api: statistics.median(entry.samples_ns)
        for entry in floors.floors
        if entry.definition == "api_start_to_kernel_start"
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
    from collector.record.request import Request, Variant
    from collector.record.session import record

    request = Request(
        model="gpt2",
        prompt_len=32,
        new_tokens=3,
        warmup=2,
        latency_runs=3,
        trace_runs=1,
        replay_runs=12,
    )
    (written,) = record([Variant(request, "gpt2", tmp_path_factory.mktemp("runs") / "gpt2")])
    return written


def test_a_run_of_graphs_has_the_tokens_of_the_eager_one() -> None:
    import torch

    from collector.workloads import make, models

    with torch.inference_mode():
        model = models.load("gpt2", "bf16", "cuda:0", 0, "sdpa")
        ids = make.prompt_ids(model, 2, 32, 0, None)
        made = {m: make.make(model, m, ids, 4, "cuda:0")[0] for m in ("eager", "graph")}
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
    from collector.replay import op_calls

    ops = json.loads((run / "kernel_replay.json").read_bytes())["ops"]
    replayed = {kernel["name"] for op in ops for kernel in op["kernels"]}
    traced = {
        event["name"]
        for event in op_calls.load_trace(run / "trace.json.gz")
        if event.get("cat") == "kernel"
    }

    assert traced - replayed == set()


def test_a_replay_can_be_done_again(run: Path) -> None:
    from collector.replay.recorded_run import replay_again

    before = read_manifest(run).files

    replay_again(run, "cuda:0", 6, None)

    after = read_manifest(run).files
    assert after["trace.json.gz"] == before["trace.json.gz"]
    assert after["kernel_replay.json"] != before["kernel_replay.json"]


def test_another_run_has_the_kernel_sequences_and_says_how_fast_the_host_was(
    run: Path, tmp_path: Path
) -> None:
    """Times are not asserted: what a host does meanwhile is its own affair."""
    from collector.record.request import Request, Variant
    from collector.record.session import record

    request = Request(
        model="gpt2",
        prompt_len=32,
        new_tokens=3,
        warmup=2,
        latency_runs=3,
        trace_runs=2,
        replay_runs=None,
        floor_runs=12,
    )
    (written,) = record([Variant(request, "second", tmp_path / "second")])

    first, second = read_manifest(run), read_manifest(written)
    assert first.host_speed is not None
    assert second.host_speed is not None
    assert len(first.trace_speeds_ns()) == 2
    assert len(second.trace_speeds_ns()) == 4
    assert len(second.host_speed.floor_ns or []) == 2
    assert all(len(trace.unprofiled_step_wall_ns or []) == 3 for trace in second.traces)
    sequences = [kernels(run / "trace.json.gz")]
    sequences += [kernels(written / trace.file) for trace in second.traces]
    assert len(sequences[0]) > 300
    assert sequences[1] == sequences[0]
    assert sequences[2] == sequences[0]


def test_an_eager_run_and_one_of_graphs_are_recorded_interleaved(tmp_path: Path) -> None:
    """One process: traces alternate and do not overlap, the floor is the same in both runs."""
    from collector import cli

    options = ["--model", "gpt2", "--prompt-len", "32", "--new-tokens", "3", "--warmup", "2"]
    options += ["--latency-runs", "6", "--trace-runs", "3", "--replay", "off"]
    options += ["--mode", "eager", "--mode", "graph", "--out", str(tmp_path), "--name", "gpt2"]
    assert cli.main(["record", *options]) == 0

    runs = [tmp_path / "gpt2-eager", tmp_path / "gpt2-graph"]
    spans: list[tuple[int, int, str]] = []
    for run, variant in zip(runs, (1, 2), strict=True):
        manifest = read_manifest(run)
        assert manifest.group is not None
        assert (manifest.group.variant, manifest.group.variants) == (variant, 2)
        assert manifest.group.cpu is not None
        assert manifest.host_speed is not None
        assert len(manifest.host_speed.floor_ns or []) == 2 * 3
        timed = [trace.file for trace in manifest.traces if trace.role == "trace"]
        spans += [(*span(run / file), run.name) for file in timed]
    floors = [(run / "null_kernel.json").read_bytes() for run in runs]
    of_starts = [
        entry
        for entry in json.loads(floors[0])["floors"]
        if entry["definition"] == "api_start_to_kernel_start"
    ]
    assert [len(entry["samples_ns"]) for entry in of_starts] == [150] * 4
    assert floors[0] == floors[1]
    spans.sort()
    eager, graph = (run.name for run in runs)
    assert [name for _, _, name in spans] == [eager, graph, graph, eager, eager, graph]
    assert all(before[1] < after[0] for before, after in pairwise(spans))
    sequences = [kernels(runs[0] / f"trace{n}.json.gz") for n in ("", "-2", "-3")]
    assert len(sequences[0]) > 300
    assert sequences[1] == sequences[0]
    assert sequences[2] == sequences[0]


def span(trace: Path) -> tuple[int, int]:
    """From the first step's start to the last one's end, in ns of the host's clock."""
    value = json.loads(gzip.decompress(trace.read_bytes()))
    base = int(value["baseTimeNanoseconds"])
    marks = [e for e in value["traceEvents"] if e.get("cat") == "user_annotation"]
    steps = [e for e in marks if e["name"].startswith("hostbound.")]
    end = max(float(e["ts"]) + float(e["dur"]) for e in steps)
    return base + round(min(float(e["ts"]) for e in steps) * 1000), base + round(end * 1000)


def kernels(trace: Path) -> list[tuple[Any, ...]]:
    """Names and launch configurations in the order of one stream."""
    from collector.replay import op_calls

    found = [event for event in op_calls.load_trace(trace) if event.get("cat") == "kernel"]
    return [
        (event["name"], event["args"]["grid"], event["args"]["block"])
        for event in sorted(found, key=lambda event: float(event["ts"]))
    ]
