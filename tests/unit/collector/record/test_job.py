"""Under torchrun each rank writes its run directory, and one manifest names the job."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from analyzer.ingest import ingest
from collector import cli
from collector.errors import CollectorError
from collector.record import job
from schemas.run_directory import read_manifest

RANKS = 2


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A two-layer Llama whose heads two ranks can share."""
    transformers = pytest.importorskip("transformers")
    path = tmp_path_factory.mktemp("models") / "llama"
    config = transformers.LlamaConfig(
        num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, hidden_size=32,
        intermediate_size=64, vocab_size=64, max_position_embeddings=64, bos_token_id=1,
    )  # fmt: skip
    transformers.LlamaForCausalLM(config).save_pretrained(path)
    return path


def collector(root: Path, *arguments: str, expected: int = 0) -> str:
    """Run the command in a process of its own, which may start others; returns what it says."""
    environment = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE")}
    done = subprocess.run(
        [sys.executable, "-m", "collector.cli", *arguments],
        env=environment | {"PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == expected, done.stderr
    return done.stderr


def options(model: Path, out: Path, *more: str) -> list[str]:
    short = ["--prompt-len", "8", "--new-tokens", "3", "--warmup", "1", "--latency-runs", "1"]
    where = ["--device", "cpu", "--dtype", "fp32", "--out", str(out), "--trace-runs", "1"]
    return ["record", "--model", str(model), *short, *where, *more]


@pytest.fixture(scope="module")
def recorded(root: Path, llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a job of two ranks, on CPUs."""
    folder = tmp_path_factory.mktemp("jobs") / "job"
    collector(root, *options(llama, folder, "--tp", str(RANKS)))
    return folder


def test_each_rank_has_its_run_directory_and_the_job_one_manifest(recorded: Path) -> None:
    manifests = [read_manifest(recorded / f"rank-{rank}") for rank in range(RANKS)]
    jobs = [manifest.job for manifest in manifests]
    assert [one and (one.rank, one.world_size, one.tensor_parallel) for one in jobs] == [
        (0, 2, 2), (1, 2, 2)
    ]  # fmt: skip
    whole = json.loads((recorded / "job.json").read_bytes())
    assert {one.id for one in jobs if one} == {whole["id"]}
    assert [rank["run_id"] for rank in whole["ranks"]] == [m.run_id for m in manifests]
    assert sorted(path.name for path in recorded.iterdir()) == ["job.json", "rank-0", "rank-1"]


def test_the_folder_is_loaded_as_one_run_of_ranks(recorded: Path, tmp_path: Path) -> None:
    (result,) = ingest(recorded, tmp_path / "s.duckdb", jobs=1)
    assert (result.state, result.steps) == ("stored", 3 * RANKS)
    codes = {finding.code for finding in result.findings}
    assert "no_collectives" in codes  # a CPU shows no kernels
    assert "ranks_missing" not in codes


def test_a_split_model_gives_what_the_whole_one_gives(
    root: Path, llama: Path, tmp_path: Path
) -> None:
    script = tmp_path / "same.py"
    script.write_text(
        "import sys, torch, torch.distributed as dist\n"
        "from transformers import AutoModelForCausalLM\n"
        "from collector.workloads.tensor_parallel import split\n"
        "dist.init_process_group('gloo')\n"
        "whole, part = (AutoModelForCausalLM.from_pretrained(sys.argv[1]) for _ in range(2))\n"
        "split(part, dist.get_rank(), 2, 'llama')\n"
        "ids = torch.arange(12).reshape(1, 12)\n"
        "with torch.inference_mode():\n"
        "    torch.testing.assert_close(part(ids).logits, whole(ids).logits)\n"
        "attention = part.model.layers[0].self_attn\n"
        "assert attention.q_proj.weight.shape == (16, 32), attention.q_proj.weight.shape\n"
        "assert attention.o_proj.weight.shape == (32, 16), attention.o_proj.weight.shape\n"
        "dist.destroy_process_group()\n",
        encoding="utf-8",
    )
    module = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]
    done = subprocess.run(
        [*module, str(RANKS), str(script), str(llama)],
        env=os.environ | {"PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_a_model_that_cannot_be_split_is_refused(
    root: Path, checkpoint: Path, tmp_path: Path
) -> None:
    """A GPT-2 has its three projections in one matrix."""
    said = collector(root, *options(checkpoint, tmp_path / "job", "--tp", "2"), expected=2)
    assert "--tp splits dense models of the Llama family, and" in said
    assert not (tmp_path / "job").exists()


def test_a_script_under_torchrun_is_one_job_too(root: Path, tmp_path: Path) -> None:
    script = tmp_path / "loop.py"
    script.write_text("import torch\nfor _ in range(3): torch.ones(4) @ torch.ones(4)\n")
    out = tmp_path / "job"
    for rank in range(RANKS):
        place = {"RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": str(rank)}
        done = subprocess.run(
            [sys.executable, "-m", "collector.cli", "record", "--device", "cpu", "--out", str(out),
             "--script", str(script)],
            env=os.environ | place | {"PYTHONPATH": str(root)}, capture_output=True, text=True,
            check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert (out / "job.json").exists() == (rank == RANKS - 1)
    ids = {one.id for r in range(RANKS) if (one := read_manifest(out / f"rank-{r}").job)}
    assert len(ids) == 1


@pytest.mark.parametrize(
    ("variables", "says"),
    [({"RANK": "2", "WORLD_SIZE": "2"}, "RANK is 2 of"), ({"RANK": "x", "WORLD_SIZE": "2"}, "are")],
)
def test_a_place_that_cannot_be_is_refused(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], says: str
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(CollectorError, match=says):
        job.place()


def test_one_process_under_torchrun_is_no_job(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}.items():
        monkeypatch.setenv(name, value)
    assert job.place() is None


def test_tp_must_be_what_torchrun_started(
    monkeypatch: pytest.MonkeyPatch, capsys, tmp_path: Path
) -> None:
    for name, value in {"RANK": "0", "WORLD_SIZE": "4", "LOCAL_RANK": "0"}.items():
        monkeypatch.setenv(name, value)
    arguments = ["record", "--model", "llama-3.2-1b", "--tp", "2", "--out", str(tmp_path / "job")]
    assert cli.main(arguments) == 2
    assert "--tp is 2, but torchrun started 4 ranks" in capsys.readouterr().err
