"""The study's script on a CPU: it records, goes on where it stopped, and packs what there is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("transformers")

from benchmarks.study import __main__ as study
from benchmarks.study import archives, index, jobs, recording, worker
from benchmarks.study.jobs import Job
from schemas.run_directory import read_manifest


@pytest.fixture
def two_jobs(monkeypatch: pytest.MonkeyPatch) -> list[Job]:
    """An eager and a captured GPT-2, and one job that cannot work."""
    made = [
        Job("eager", 8),
        Job("impossible", 8, kind="no such kind"),
        Job("graph", 8, mode="graph"),
    ]
    monkeypatch.setattr(jobs, "planned", lambda: made)
    return made


def test_a_folder_without_runs_is_refused_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lost = tmp_path / "lost"
    lost.mkdir()
    (lost / index.INDEX).write_text('{"name": "gone", "state": "done"}\n')
    missing = tmp_path / "missing"
    for command in (["analyse", missing], ["analyse", lost], ["unpack", missing, missing / "out"]):
        assert study.main([str(part) for part in command]) == 2
        error = capsys.readouterr().err
        assert str(command[1]) in error
        assert error.count("\n") == 1
    assert not missing.exists()


def test_a_job_that_fails_costs_itself_only(two_jobs: list[Job], tmp_path: Path) -> None:
    assert worker.work(tmp_path, ["eager", "impossible", "graph"], 60, True) == 3
    assert worker.work(tmp_path, ["graph"], 60, True) == 0

    entries = index.read(tmp_path)
    assert [(e["name"], e["state"]) for e in entries] == [
        ("eager", "done"),
        ("impossible", "failed"),
        ("graph", "done"),
    ]
    assert "KeyError" in entries[1]["reason"]
    assert [read_manifest(tmp_path / n).mode for n in ("eager", "graph")] == ["eager", "graph"]


def test_what_a_cpu_rehearsed_is_analysed_without_figures_of_a_device(
    two_jobs: list[Job], tmp_path: Path
) -> None:
    pytest.importorskip("duckdb")
    from benchmarks.study import analysis, results

    runs, target = tmp_path / "runs", tmp_path / "study.json"
    worker.work(runs, ["eager"], 60, True)
    analysis.analyse(runs, target)

    found = results.read(target)
    (steps,) = found.all("step_unprofiled", name="eager", phase="decode")
    assert steps["n"] == 4  # two requests of two decode steps
    assert {value for row in found.all("ledger_less_wall") for value in row["samples"]} == {0}
    assert not found.all("predicted", name="eager")
    assert found.one("compile_low")["p50"] > 0  # from the package's samples


def test_nothing_is_begun_after_the_time_is_over(two_jobs: list[Job], tmp_path: Path) -> None:
    assert worker.work(tmp_path, ["eager"], -1, True) == 0
    assert index.read(tmp_path) == []


def test_what_is_done_is_not_done_again(tmp_path: Path) -> None:
    """The real jobs in a real worker: those of GPT-2, of which all but one are marked as done."""
    names = [job.name for job in jobs.planned() if job.item == 2]
    for name in names[:-1]:
        index.note(tmp_path, name, "done", 1.0)

    assert recording.record(tmp_path, 120, [2], rehearse=True) == 0

    assert [entry["name"] for entry in index.read(tmp_path)] == names
    assert not (tmp_path / names[0]).exists()
    assert read_manifest(tmp_path / names[-1]).batch_size == 8


def test_packing_keeps_the_limits_and_unpacking_gives_everything_back(tmp_path: Path) -> None:
    out, packed, back = tmp_path / "out", tmp_path / "packed", tmp_path / "back"
    index.note(out.mkdir() or out, "x", "done", 1.0)
    for number in range(5):
        (out / f"run-{number}").mkdir()
        (out / f"run-{number}" / "data").write_bytes(bytes(range(256)) * number)

    written = archives.pack(out, packed, most=3, limit=5_000)
    assert len(written) <= 3
    assert all(path.stat().st_size < 16_384 for path in written)
    assert archives.unpack(packed, back) == 6
    assert (back / "run-4" / "data").read_bytes() == (out / "run-4" / "data").read_bytes()
    assert json.loads((back / index.INDEX).read_text())["state"] == "done"


def test_every_job_has_a_name_of_its_own_and_an_item() -> None:
    names = [job.name for job in jobs.planned()]
    assert len(set(names)) == len(names)
    assert {job.item for job in jobs.planned()} == set(range(1, 10))
