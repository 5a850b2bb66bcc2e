"""The collector's benchmark: records in fresh processes, or several variants interleaved; says
whether they agree, how exact the replay is, and what the batch does."""

from __future__ import annotations

import gzip
import json
import shutil
import sys
import time
from pathlib import Path
from statistics import median
from types import ModuleType
from typing import Any

import pytest

from benchmarks import result_file
from schemas.run_directory import MANIFEST, read_manifest


@pytest.fixture(scope="module")
def benchmark() -> ModuleType:
    from benchmarks import collector

    return collector


def named(source: Path, target: Path) -> Path:
    shutil.copytree(source, target)
    path = target / MANIFEST
    path.write_text(json.dumps(json.loads(path.read_bytes()) | {"name": target.name}))
    return target


def rows(found: list[Any], metric: str, **parameters: str) -> list[Any]:
    return [
        row
        for row in found
        if row.metric == metric and parameters.items() <= row.parameters.items()
    ]


def test_recordings_of_one_thing_agree_and_others_do_not(
    benchmark: ModuleType, samples_dir: Path, tmp_path: Path
) -> None:
    one = named(samples_dir / "gpt2-bs1-s512", tmp_path / "repeat-1")
    two = named(samples_dir / "gpt2-bs1-s512", tmp_path / "repeat-2")
    other = named(samples_dir / "gpt2-bs8-s512", tmp_path / "repeat-3")

    found = benchmark.repeat_rows([one, two, other])

    (first,) = rows(found, "orchestration", workload="repeat-1", phase="decode")
    (third,) = rows(found, "orchestration", workload="repeat-3", phase="decode")
    assert first.n == 3 * 4
    ratios = [row.p50 for row in rows(found, "orchestration_ratio", phase="decode")]
    assert ratios == [1, third.p50 / first.p50, third.p50 / first.p50]
    (spread,) = rows(found, "orchestration_largest_difference", phase="decode")
    assert spread.p50 == pytest.approx(first.p50 / third.p50 - 1)
    (alike,) = rows(found, "kernel_sequences_identical", phase="decode")
    assert alike.samples == [1, 0, 0]


def test_sizes_are_told_packed_and_plain_and_for_each_kernel(
    benchmark: ModuleType, tmp_path: Path
) -> None:
    text = b'{"cat": "kernel"}, {"cat": "kernel"}'
    path = tmp_path / "trace.json.gz"
    path.write_bytes(gzip.compress(text))
    size = path.stat().st_size

    found = benchmark.size_rows([path], {"system": "s"})

    assert [(row.metric, row.samples) for row in found] == [
        ("trace_bytes", [size]),
        ("trace_bytes", [len(text)]),
        ("trace_bytes_per_kernel", [size / 2]),
    ]


@pytest.mark.parametrize("kind", ["repeat", "interleaved"])
def test_recorded_on_one_machine_and_analysed_on_another(
    benchmark: ModuleType,
    samples_dir: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    kind: str,
) -> None:
    """The GPU host has no analyzer; its environment stays with the results."""

    def recorded(out: Path, device: str, times: int, deadline: float, *of: Any) -> list[Any]:
        assert (device, times) == ("cuda:0", 4 if kind == "repeat" else 40)
        assert 0 < deadline - time.monotonic() <= (150 if kind == "repeat" else 100)
        for number in (1, 2):
            named(samples_dir / "gpt2-bs1-s512", out / f"{kind}-{number}")
        return [benchmark.result("record_seconds", "s", {"workload": "repeat-1"}, [24.0])]

    def run(*arguments: str) -> dict[str, Any]:
        script = str(benchmark.__file__)
        way = [f"--{kind}"] * (kind != "repeat")
        monkeypatch.setattr(sys, "argv", [script, "--part", "repeat", *way, *arguments])
        assert benchmark.main() == 0
        (path,) = (tmp_path / "results").glob(f"collector-{kind}-h200-*.json")
        return json.loads(path.read_bytes())

    monkeypatch.setattr(result_file, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(benchmark, kind, recorded)
    monkeypatch.setattr(benchmark, "peer", lambda device: [])
    out = ["--out", str(tmp_path / "runs")]
    with monkeypatch.context() as gpu_host:
        gpu_host.setattr(benchmark, "environment", lambda *names: {"cpu": "the GPU host's"})
        gpu_host.setattr(benchmark.importlib.util, "find_spec", lambda name: None)
        first = run(*out)
    assert "take" in capsys.readouterr().err
    second = run(*out, "--analyse")

    assert [row["metric"] for row in first["results"]] == ["record_seconds"]
    assert second["environment"] == {"cpu": "the GPU host's"}
    metrics = {row["metric"] for row in second["results"]}
    assert {"record_seconds", "orchestration", "kernel_sequences_identical"} <= metrics


def test_interleaved_recordings_have_the_ratio_of_every_pair_of_traces(
    benchmark: ModuleType, interleaved_pair: list[Path]
) -> None:
    found = benchmark.repeat_rows(interleaved_pair)

    (pairs,) = rows(found, "orchestration_paired_ratio", phase="decode")
    (first,) = rows(found, "orchestration", workload="interleaved-1", phase="decode")
    (second,) = rows(found, "orchestration", workload="interleaved-8", phase="decode")
    assert pairs.parameters["recordings"] == "interleaved-1, interleaved-8"
    assert pairs.samples == [
        pytest.approx(median(second.samples[k : k + 4]) / median(first.samples[k : k + 4]))
        for k in (0, 4, 8)
    ]


@pytest.mark.slow
def test_one_workload_interleaved_with_itself_is_told_apart_pair_by_pair(
    benchmark: ModuleType, checkpoint: Path, tmp_path: Path
) -> None:
    deadline = time.monotonic() + 3000

    found = benchmark.interleaved(tmp_path, "cpu", 3, deadline, tiny(checkpoint))

    runs = [tmp_path / name for name in ("interleaved-eager", "interleaved-eager-2")]
    first, second = (read_manifest(run) for run in runs)
    assert first.group is not None
    assert second.group is not None
    assert first.group.id == second.group.id
    (row,) = rows(found, "step_profiled_paired_ratio", phase="prefill")
    assert row.samples == [
        b.step_wall_ns[0] / a.step_wall_ns[0]
        for a, b in zip(first.traces, second.traces, strict=True)
    ]
    assert len(rows(found, "record_seconds")) == 1
    assert rows(found, "host_speed_paired_ratio")[0].n == 3


def test_the_replays_share_of_exact_matches_is_told_with_its_reasons(
    benchmark: ModuleType, samples_dir: Path, tmp_path: Path
) -> None:
    run = named(samples_dir / "gpt2-bs1-s512", tmp_path / "gpt2-bs1-s512")

    found = benchmark.replay_rows([run])

    launches = rows(found, "launches")
    total = sum(row.p50 for row in launches)
    exact = sum(
        row.p50
        for row in launches
        if row.parameters["tier"] == "exact" and row.parameters["same_configuration"]
    )
    (share,) = rows(found, "launches_exact")
    (cost,) = rows(found, "orchestration_exact")
    assert total == 3 * 1276
    assert share.p50 == exact / total > 0.95
    assert 0.98 < cost.p50 <= 1
    assert rows(found, "above_floor", family="elementwise")[0].n > 3
    assert rows(found, "above_floor", family="gemm, nvjet")[0].n > 3
    assert rows(found, "orchestration", phase="decode")[0].n == 12


def test_runs_without_replay_have_their_steps_and_no_share(
    benchmark: ModuleType,
    samples_dir: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run = named(samples_dir / "gpt2-prefill-bs1-s512-compile", tmp_path / "compiled")

    found = benchmark.replay_rows([run])

    assert "compiled: no kernel replay" in capsys.readouterr().err
    assert {row.metric for row in found} == {"orchestration", "device_active", "hdbi"}


def test_what_was_not_recorded_cannot_be_analysed(
    benchmark: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["collector.py", "--out", str(tmp_path), "--analyse"])

    with pytest.raises(SystemExit, match=r"workloads\.json is not there: record the part"):
        benchmark.main()


def test_batches_are_told_against_the_smallest_one(
    benchmark: ModuleType, samples_dir: Path, tmp_path: Path
) -> None:
    runs = [named(samples_dir / f"gpt2-bs{n}-s512", tmp_path / f"batches-{n}") for n in (8, 1)]

    found = benchmark.batch_rows(runs)

    (small, large) = rows(found, "orchestration", phase="prefill")
    assert [row.parameters["workload"] for row in (small, large)] == ["batches-1", "batches-8"]
    (ratio,) = rows(found, "orchestration_max_to_min", phase="prefill")
    assert ratio.p50 == max(small.p50, large.p50) / min(small.p50, large.p50)
    (one, other) = rows(found, "hdbi", phase="prefill")
    assert one.p50 < other.p50
    assert rows(found, "orchestration_paired_ratio") == []  # not recorded interleaved


def tiny(checkpoint: Path) -> list[str]:
    """Options that record a tiny model in a moment."""
    options = ["--model", str(checkpoint), "--dtype", "fp32", "--prompt-len", "8"]
    return [*options, "--new-tokens", "2", "--warmup", "1", "--latency-runs", "2"]


@pytest.mark.slow
def test_without_time_two_are_recorded_in_processes_of_their_own(
    benchmark: ModuleType,
    checkpoint: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    options = [*tiny(checkpoint), "--trace-runs", "2"]
    # No recording fits into the time that is left, however slow the machine is.
    monkeypatch.setattr(benchmark, "REPEAT_COST_S", 1000.0)

    found = benchmark.repeat(tmp_path / "runs", "cpu", 3, time.monotonic(), options)

    first, second = (read_manifest(tmp_path / "runs" / f"repeat-{n}") for n in (1, 2))
    assert not (tmp_path / "runs" / "repeat-3").exists()
    assert "no time left for recordings 3 to 3" in capsys.readouterr().err
    assert (first.group, second.group) == (None, None)
    (speeds,) = rows(found, "host_speed", workload="repeat-2", during="traces")
    assert speeds.samples == second.trace_speeds_ns()
    (before,) = rows(found, "step_unprofiled_beside", workload="repeat-2", phase="decode")
    assert before.n == 2


@pytest.mark.slow
def test_batches_are_recorded_interleaved_and_named_by_their_size(
    benchmark: ModuleType, checkpoint: Path, tmp_path: Path
) -> None:
    found = benchmark.batches(tmp_path, "cpu", 2, time.monotonic() + 3000, tiny(checkpoint), (1, 2))

    runs = [read_manifest(tmp_path / f"batches-{n}") for n in (1, 2)]
    assert [run.batch_size for run in runs] == [1, 2]
    assert rows(found, "step_profiled", workload="batches-2", phase="prefill")[0].n == 2
    assert rows(found, "host_speed_paired_ratio")[0].n == 2


def test_a_recording_that_takes_too_long_is_ended(
    benchmark: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "runs"
    out.mkdir()

    assert benchmark.interleaved(out, "cpu", 3, time.monotonic(), ["--model", "gpt2"]) == []

    assert "interleaved: not done after 1 s" in capsys.readouterr().err
    assert [path for path in out.iterdir() if not path.name.startswith(".")] == []
