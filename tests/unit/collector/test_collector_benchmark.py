"""The benchmark's part `repeat`: records in fresh processes, each like the first, and says whether
they agree."""

from __future__ import annotations

import gzip
import importlib.util
import json
import shutil
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from schemas.run_directory import MANIFEST, read_manifest

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"


@pytest.fixture(scope="module")
def benchmark() -> ModuleType:
    """`benchmarks/collector.py`, which has the name of a package."""
    sys.path.append(str(BENCHMARKS))  # last, for the same reason
    spec = importlib.util.spec_from_file_location(
        "collector_benchmark", BENCHMARKS / "collector.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


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


def test_recorded_on_one_machine_and_analysed_on_another(
    benchmark: ModuleType,
    samples_dir: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The GPU host has no analyzer; its environment stays with the results."""

    def recorded(out: Path, device: str, times: int, deadline: float) -> list[Any]:
        assert (device, times) == ("cuda:0", 4)
        assert 0 < deadline - time.monotonic() <= 150
        for number in (1, 2):
            named(samples_dir / "gpt2-bs1-s512", out / f"repeat-{number}")
        return [benchmark.result("record_seconds", "s", {"workload": "repeat-1"}, [24.0])]

    def run(*arguments: str) -> dict[str, Any]:
        script = str(BENCHMARKS / "collector.py")
        monkeypatch.setattr(sys, "argv", [script, "--part", "repeat", *arguments])
        assert benchmark.main() == 0
        (path,) = (tmp_path / "results").iterdir()
        return json.loads(path.read_bytes())

    monkeypatch.setattr(sys.modules["result_file"], "RESULTS", tmp_path / "results")
    monkeypatch.setattr(benchmark, "repeat", recorded)
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


@pytest.mark.slow
def test_without_time_two_are_recorded_the_second_like_the_first(
    benchmark: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(
        n_layer=1, n_head=2, n_embd=16, vocab_size=64, n_positions=64, bos_token_id=1
    )
    transformers.GPT2LMHeadModel(config).save_pretrained(tmp_path / "tiny")
    options = ["--model", str(tmp_path / "tiny"), "--dtype", "fp32", "--prompt-len", "8"]
    options += ["--new-tokens", "2", "--warmup", "1", "--latency-runs", "2", "--trace-runs", "2"]

    found = benchmark.repeat(tmp_path / "runs", "cpu", 3, time.monotonic(), options)

    first, second = (read_manifest(tmp_path / "runs" / f"repeat-{n}") for n in (1, 2))
    assert not (tmp_path / "runs" / "repeat-3").exists()
    assert "no time left for recordings 3 to 3" in capsys.readouterr().err
    assert first.host_speed is not None
    assert second.host_speed is not None
    assert (first.host_speed.like, second.host_speed.like) == (None, first.run_id)
    (speeds,) = rows(found, "host_speed", workload="repeat-2", during="traces")
    assert speeds.samples == second.trace_speeds_ns()
    (beside,) = rows(found, "step_unprofiled_beside", workload="repeat-2", phase="decode")
    assert beside.n == 2
