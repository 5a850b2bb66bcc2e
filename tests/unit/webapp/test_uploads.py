"""Files that a person dropped become runs, and wait for whoever reads."""

from __future__ import annotations

import io
import threading

import pytest

from tests.support.nsys_files import graph_run
from tests.support.small_traces import CPU_EVENTS, written
from webapp import data, store, uploads

PATIENCE_S = 240


def test_uploaded_files_become_runs_whatever_their_names(tmp_path, monkeypatch):
    monkeypatch.setenv("HOSTBOUND_DB", str(tmp_path / "new.duckdb"))
    content = written(tmp_path / "t.json", CPU_EVENTS).read_bytes()
    results = uploads.load([("../../evil.json", io.BytesIO(content))])
    assert [(r.state, r.name) for r in results] == [("stored", "evil")]
    assert not (tmp_path.parent / "evil.json").exists()


@pytest.mark.parametrize("name", ["report.sqlite", "no suffix at all"])
def test_an_uploaded_file_of_another_profiler_is_told_by_its_content(tmp_path, monkeypatch, name):
    monkeypatch.setenv("HOSTBOUND_DB", str(tmp_path / "new.duckdb"))
    content = io.BytesIO(graph_run("node").write(tmp_path / "made").read_bytes())
    (result,) = uploads.load([(name, content)])
    assert (result.state, result.kernels) == ("stored", 4)


def test_an_uploaded_run_directory_is_one_run(tmp_path, monkeypatch, samples_dir):
    monkeypatch.setenv("HOSTBOUND_DB", str(tmp_path / "new.duckdb"))
    folder = samples_dir / "gpt2-prefill-bs2-s512"
    files = [(path.name, io.BytesIO(path.read_bytes())) for path in sorted(folder.iterdir())]
    (result,) = uploads.load(files)
    assert result.state == "stored"
    assert result.kernels == 235


def test_an_upload_waits_for_whoever_reads_in_the_same_process(tmp_path, monkeypatch):
    monkeypatch.setenv("HOSTBOUND_DB", str(tmp_path / "shared.duckdb"))
    store.lock_in_process()
    content = written(tmp_path / "one.json", CPU_EVENTS).read_bytes()
    uploads.load([("one.json", io.BytesIO(content))])
    other = written(tmp_path / "two.json", CPU_EVENTS[:2]).read_bytes()
    results = []
    uploading = threading.Thread(
        target=lambda: results.extend(uploads.load([("two.json", io.BytesIO(other))]))
    )
    with store.one_connection():
        assert len(data.runs()) == 1
        uploading.start()
        uploading.join(0.5)
        assert uploading.is_alive()
    uploading.join(PATIENCE_S)
    assert [result.state for result in results] == ["stored"]
    assert len(data.runs()) == 2


def test_an_upload_from_a_page_that_has_read_does_not_wait_for_itself(tmp_path, monkeypatch):
    monkeypatch.setenv("HOSTBOUND_DB", str(tmp_path / "own.duckdb"))
    store.lock_in_process()
    content = written(tmp_path / "one.json", CPU_EVENTS).read_bytes()
    uploads.load([("one.json", io.BytesIO(content))])
    other = written(tmp_path / "two.json", CPU_EVENTS[:2]).read_bytes()
    with store.one_connection():
        assert len(data.runs()) == 1
        (result,) = uploads.load([("two.json", io.BytesIO(other))])
        assert result.state == "stored"
        assert len(data.runs()) == 2


def test_uploaded_nonsense_is_refused_in_words(tmp_path, monkeypatch):
    monkeypatch.setenv("HOSTBOUND_DB", str(tmp_path / "new.duckdb"))
    results = uploads.load([("holiday.json", io.BytesIO(b"no trace at all"))])
    assert results[0].state == "failed"
    assert results[0].error


def test_what_is_wrong_with_a_dropped_file_names_it_and_no_folder_of_the_server(
    tmp_path, monkeypatch
):
    monkeypatch.setenv("HOSTBOUND_DB", str(tmp_path / "new.duckdb"))
    files = {"holiday.json": b"no trace at all", "x.json": b"{}", "y.json.gz": b"\x1f\x8b0"}
    for name, content in files.items():
        for result in uploads.load([(name, io.BytesIO(content))]):
            assert name.rpartition("/")[2] in result.error
            assert "hostbound-upload" not in result.error
            assert "/tmp" not in result.error
    manifest = [("manifest.json", io.BytesIO(b"{")), ("trace.json", io.BytesIO(b"{}"))]
    for result in uploads.load(manifest):
        assert "hostbound-upload" not in f"{result.error} {result.name}"


def test_the_sample_runs_are_loaded_by_a_button(tmp_path, monkeypatch):
    monkeypatch.setenv("HOSTBOUND_DB", str(tmp_path / "new.duckdb"))
    results = uploads.load_samples()
    assert {result.state for result in results} == {"stored"}
    assert "gpt2-prefill-bs1-s512" in {result.name for result in results}
