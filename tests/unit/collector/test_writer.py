"""A run directory is there whole or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from collector.errors import CollectorError
from collector.writer import RunDirectoryWriter
from schemas.manifest import Manifest, TraceFile
from schemas.run_directory import read_manifest


def manifest() -> Manifest:
    return Manifest(
        "id", "name", "2026-01-01T00:00:00+00:00", "eager", [TraceFile("trace.json.gz")]
    )


def test_nothing_is_at_the_target_until_it_is_finished(tmp_path: Path) -> None:
    target = tmp_path / "run"
    with RunDirectoryWriter(target) as writer:
        writer.add_json("latency.json", {"requests": []})
        assert not target.exists()
        writer.finish(manifest())

    assert set(read_manifest(target).files) == {"latency.json"}


def test_an_interrupted_recording_leaves_nothing(tmp_path: Path) -> None:
    def interrupted() -> None:
        with RunDirectoryWriter(tmp_path / "run") as writer:
            writer.add_json("latency.json", {})
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()

    assert list(tmp_path.iterdir()) == []


def test_a_file_where_the_run_would_go_is_refused(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("mine")

    with pytest.raises(CollectorError, match="exists already"):
        RunDirectoryWriter(tmp_path / "run")


def test_an_added_file_is_compressed_and_its_source_removed(tmp_path: Path) -> None:
    source = tmp_path / "trace.json"
    source.write_bytes(b"x" * 100_000)
    with RunDirectoryWriter(tmp_path / "run") as writer:
        writer.add_gzip("trace.json.gz", source)
        writer.finish(manifest())

    assert not source.exists()
    assert (tmp_path / "run" / "trace.json.gz").stat().st_size < 1_000


def test_a_refused_recording_leaves_no_folder_that_it_made(tmp_path: Path) -> None:
    target = tmp_path / "runs" / "mine"
    with pytest.raises(RuntimeError), RunDirectoryWriter(target):
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []
