"""Originals are kept beside the store by content, given back unchanged, and checked."""

from __future__ import annotations

from pathlib import Path

import pytest

from analyzer import cli
from analyzer.errors import AnalyzerError
from analyzer.ingest import ingest
from analyzer.render.export import export
from analyzer.store import open_store
from analyzer.store.verify import verify
from tests.support.tracebuilder import TraceBuilder, worked_example


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "s.duckdb"


def test_a_run_directory_comes_back_file_by_file(
    store: Path, samples_dir: Path, tmp_path: Path
) -> None:
    source = samples_dir / "gpt2-prefill-bs1-s512-graph"
    (result,) = ingest(source, store, keep_originals=True)
    written = export(store, result.run_id or "", "original", tmp_path / "back")
    assert {file.name for file in written} == {file.name for file in (tmp_path / "back").iterdir()}
    for file in written:
        assert file.read_bytes() == (source / file.name).read_bytes()
    (again,) = ingest(tmp_path / "back", tmp_path / "other.duckdb")
    assert again.run_id == result.run_id
    assert verify(store) == []


def test_an_original_outlives_its_source_and_is_kept_once(store: Path, tmp_path: Path) -> None:
    trace = worked_example().write(tmp_path / "a.json")
    data = trace.read_bytes()
    for replace in (False, True):
        ingest(trace, store, keep_originals=True, replace_runs=replace)
    (kept,) = open_store(store).originals.iterdir()
    trace.write_text("edited")
    assert kept.read_bytes() == data


def test_originals_of_a_stored_run_can_be_kept_later(store: Path, tmp_path: Path) -> None:
    trace = worked_example().write(tmp_path / "a.json")
    (first,) = ingest(trace, store)
    with pytest.raises(AnalyzerError, match="--keep-originals"):
        export(store, first.run_id or "", "original", tmp_path / "back")
    assert not (tmp_path / "back").exists()
    (second,) = ingest(trace, store, keep_originals=True)
    assert second.state == "already stored"
    assert export(store, first.run_id or "", "original", tmp_path / "back")


def test_two_files_of_one_name_are_both_given_back(store: Path, tmp_path: Path) -> None:
    (tmp_path / "capture").mkdir()
    trace = worked_example().write(tmp_path / "a.json")
    capture = TraceBuilder().add_op("aten::mm", 0, 5).write(tmp_path / "capture" / "a.json")
    (result,) = ingest(trace, store, capture_trace=capture, keep_originals=True)
    written = export(store, result.run_id or "", "original", tmp_path / "back")
    assert {file.read_bytes() for file in written} == {trace.read_bytes(), capture.read_bytes()}


def test_a_damaged_original_is_found_and_not_given_back(store: Path, tmp_path: Path) -> None:
    trace = worked_example().write(tmp_path / "a.json")
    (result,) = ingest(trace, store, keep_originals=True)
    (kept,) = open_store(store).originals.iterdir()
    kept.write_bytes(kept.read_bytes()[:-1] + b"!")
    (problem,) = verify(store)
    assert str(kept) in problem.message
    with pytest.raises(AnalyzerError, match="damaged"):
        export(store, result.run_id or "", "original", tmp_path / "back")
    assert not (tmp_path / "back").exists()


def test_the_command_keeps_and_gives_back(store: Path, tmp_path: Path, capsys) -> None:
    trace = worked_example().write(tmp_path / "a.json")
    assert cli.main(["ingest", str(trace), "--keep-originals", "--db", str(store)]) in (0, 1)
    out = tmp_path / "back"
    arguments = ["export", "a", "--format", "original", "--out", str(out), "--db", str(store)]
    assert cli.main(arguments) == 0
    assert (out / "a.json").read_bytes() == trace.read_bytes()
