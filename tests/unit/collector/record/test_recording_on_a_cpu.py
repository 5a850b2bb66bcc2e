"""A host without a GPU records what it can: the whole pipeline on a tiny checkpoint."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from collector import cli
from collector.errors import CollectorError
from schemas.manifest import Manifest
from schemas.run_directory import file_sha256, read_manifest


def options(checkpoint: Path, out: Path, *more: str) -> list[str]:
    short = ["--prompt-len", "8", "--new-tokens", "3", "--warmup", "1", "--latency-runs", "2"]
    where = ["--device", "cpu", "--dtype", "fp32", "--out", str(out)]
    return ["record", "--model", str(checkpoint), *short, *where, "--trace-runs", "2", *more]


@pytest.fixture(scope="module")
def run(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "tiny"
    assert cli.main(options(checkpoint, out, "--batch-size", "2")) == 0
    return out


def annotations(trace: Path) -> list[str]:
    with gzip.open(trace) as stream:
        events: list[dict[str, Any]] = json.load(stream)["traceEvents"]
    marks = [e for e in events if e.get("cat") == "user_annotation"]
    return [e["name"] for e in sorted(marks, key=lambda e: e["ts"])]


def test_the_manifest_names_what_was_run_and_every_file_with_its_hash(run: Path) -> None:
    manifest = read_manifest(run)

    assert (manifest.mode, manifest.batch_size, manifest.prompt_len) == ("eager", 2, 8)
    assert {p.name for p in run.iterdir()} == {"manifest.json", *manifest.files}
    assert all(file_sha256(run / name) == digest for name, digest in manifest.files.items())


def test_it_says_that_a_cpu_shows_no_kernels(run: Path) -> None:
    manifest = read_manifest(run)

    assert any("no kernels" in note for note in manifest.notes)
    assert not (run / "kernel_replay.json").exists()
    assert not (run / "null_kernel.json").exists()
    assert manifest.environment.gpu is None


def test_prefill_and_every_decode_step_carry_their_own_annotation_in_every_trace(run: Path) -> None:
    expected = ["hostbound.prefill#0", "hostbound.decode#0", "hostbound.decode#1"]

    assert annotations(run / "trace.json.gz") == expected
    assert annotations(run / "trace-2.json.gz") == expected


def test_latency_holds_raw_samples_that_add_up(run: Path) -> None:
    latency = json.loads((run / "latency.json").read_bytes())

    assert len(latency["requests"]) == 2
    for request in latency["requests"]:
        assert len(request["itl_ns"]) == 2
        assert request["ttft_ns"] + sum(request["itl_ns"]) == request["total_ns"]
    assert len(latency["steps"]["prefill"]) == 2
    assert len(latency["steps"]["decode"]) == 4


def test_every_pass_says_what_it_perturbs(run: Path) -> None:
    manifest = read_manifest(run)

    assert set(manifest.passes) == {"latency", "trace"}
    assert all(trace.perturbs and len(trace.step_wall_ns) == 3 for trace in manifest.traces)


def test_a_second_recording_of_the_same_name_is_refused(
    run: Path, checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = read_manifest(run)

    assert cli.main(options(checkpoint, run)) == 2
    assert "exists already" in capsys.readouterr().err
    assert read_manifest(run) == before


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        (["--model", "gpt5"], "built in are"),
        (["--new-tokens", "0"], "--new-tokens is 0"),
        (["--prompt-len", "200"], "has 64"),
        (["--prompt", "@/no/such/file"], "cannot be read"),
        (["--prompt", "hello"], "--prompt"),
        (["--device", "tpu"], "no torch device"),
        (["--experts", "grouped_mm", "--model", "nowhere"], "there is no model"),
    ],
)
def test_what_cannot_be_run_is_refused_in_one_line_and_leaves_nothing(
    checkpoint: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    more: list[str],
    expected: str,
) -> None:
    assert cli.main(options(checkpoint, tmp_path / "out", *more)) == 2

    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert error.startswith("collector: ")
    assert expected in error
    assert list(tmp_path.iterdir()) == []


def test_a_gpu_that_is_not_there_is_refused(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("this host has a GPU")
    assert cli.main(options(checkpoint, tmp_path / "out", "--device", "cuda:0")) == 2
    assert "--device cpu" in capsys.readouterr().err


def test_own_code_becomes_a_run_with_its_steps_marked(tmp_path: Path) -> None:
    import torch

    import collector

    with collector.recording(tmp_path / "mine", name="mine", device="cpu") as rec:
        with rec.step("prefill"):
            torch.ones(4).sum()
        for _ in range(2):
            with rec.step("decode"):
                torch.ones(4).sum()

    manifest: Manifest = read_manifest(tmp_path / "mine")
    assert manifest.phases == [{"phase": "prefill", "steps": 1}, {"phase": "decode", "steps": 2}]
    assert annotations(tmp_path / "mine" / "trace.json.gz") == [
        "hostbound.prefill#0",
        "hostbound.decode#0",
        "hostbound.decode#1",
    ]


def test_own_code_that_fails_leaves_no_run(tmp_path: Path) -> None:
    import collector

    with pytest.raises(ZeroDivisionError), collector.recording(tmp_path / "mine", device="cpu"):
        _ = 1 / 0

    assert list(tmp_path.iterdir()) == []


def test_a_script_is_recorded_with_its_arguments(tmp_path: Path) -> None:
    script = tmp_path / "my.py"
    script.write_text("import sys, torch\nassert sys.argv[1:] == ['7']\ntorch.ones(7).sum()\n")
    out = tmp_path / "out"

    assert (
        cli.main(["record", "--device", "cpu", "--out", str(out), "--script", str(script), "7"])
        == 0
    )
    assert read_manifest(out).mode == "foreign"


def test_a_script_that_is_not_there_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["record", "--script", "/no/such.py"]) == 2
    assert "names no file" in capsys.readouterr().err


def test_a_run_without_execution_trace_cannot_be_replayed(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["replay", str(run)]) == 2
    assert "no execution_trace.json.gz" in capsys.readouterr().err


def test_the_doctor_names_each_failure_with_a_remedy(capsys: pytest.CaptureFixture[str]) -> None:
    code = cli.main(["doctor", "--json"])
    checks = json.loads(capsys.readouterr().out)

    missing = [check for check in checks if check["state"] == "missing"]
    assert code == (1 if missing else 0)
    assert all(check["remedy"] for check in missing)
    assert {"python", "torch", "CUDA", "CUPTI"} <= {check["name"] for check in checks}


def test_help_loads_no_torch() -> None:
    code = (
        "import sys\nfrom collector import cli\n"
        "try: cli.main(['--help'])\nexcept SystemExit: pass\n"
        "sys.exit('torch' in sys.modules)"
    )
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode
        == 0
    )


def test_a_prompt_longer_than_the_model_is_a_collector_error() -> None:
    import torch

    from collector.workloads import make
    from collector.workloads.models import LoadedModel

    model = LoadedModel(None, "m", 10, 4)
    with pytest.raises(CollectorError, match="has 4"):
        make.make(model, "eager", torch.zeros(1, 4, dtype=torch.int64), 1, "cpu")
