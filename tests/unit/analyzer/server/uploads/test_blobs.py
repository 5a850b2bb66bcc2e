"""Originals in folders: whole under their hash or not there, also across file systems."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from analyzer.errors import AnalyzerError, Unreachable
from analyzer.server.layout import Layout
from analyzer.server.uploads.blobs import FolderBlobs, S3Blobs, open_blobs
from conftest import missing

CONTENT = b"as it was sent"
SHA256 = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture
def elsewhere(tmp_path: Path) -> Iterator[Path]:
    """A folder on another file system than the test's own."""
    shared = Path("/dev/shm")
    if not shared.is_dir() or shared.stat().st_dev == tmp_path.stat().st_dev:
        missing("no second file system here: /dev/shm is none of its own")
    with tempfile.TemporaryDirectory(dir=shared) as folder:
        yield Path(folder)


def shared_blobs(root: Path) -> FolderBlobs:
    return FolderBlobs(lambda team: root / team, shared=root)


def lake_file(folder: Path, data: str) -> Layout:
    path = folder / "lake.toml"
    path.write_text(f'catalog = "host=/nowhere"\ndata = "{data}"\n')
    return Layout.of_store(path)


def test_a_content_is_moved_to_another_file_system_whole(tmp_path: Path, elsewhere: Path) -> None:
    blobs = shared_blobs(elsewhere)
    content = tmp_path / "content"
    content.write_bytes(CONTENT)

    blobs.keep("default", SHA256, content)

    assert not content.exists()
    assert blobs.size("default", SHA256) == len(CONTENT)
    assert b"".join(blobs.pieces("default", SHA256)) == CONTENT
    assert blobs.fetch("default", SHA256, tmp_path).read_bytes() == CONTENT
    assert blobs.names("default") == [SHA256]


def test_a_copy_that_does_not_fit_leaves_the_content_and_nothing_else(
    tmp_path: Path, elsewhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blobs = shared_blobs(elsewhere)
    content = tmp_path / "content"
    content.write_bytes(CONTENT)

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        blobs.keep("default", SHA256, content)

    assert content.read_bytes() == CONTENT
    assert blobs.size("default", SHA256) is None
    assert list((elsewhere / "default").iterdir()) == []


def test_what_a_killed_copy_left_is_no_original_and_goes_after_a_day(tmp_path: Path) -> None:
    blobs = shared_blobs(tmp_path)
    (tmp_path / "default").mkdir()
    old = tmp_path / "default" / f".{SHA256}.0a1b2c3d"
    new = tmp_path / "default" / f".{SHA256}.4e5f6071"
    for path in (old, new):
        path.write_bytes(CONTENT[:3])
    os.utime(old, (0, 0))

    assert blobs.names("default") == []

    assert not old.exists()
    assert new.exists()


def test_a_folder_that_vanished_is_said_and_no_reason_to_call_an_original_gone(
    tmp_path: Path,
) -> None:
    root = tmp_path / "mounted"
    blobs = shared_blobs(root)
    assert blobs.size("default", SHA256) is None
    root.rmdir()

    for ask in (blobs.size, blobs.drop):
        with pytest.raises(Unreachable, match="is it mounted"):
            ask("default", SHA256)
    with pytest.raises(Unreachable, match="is it mounted"):
        blobs.names("default")


def test_originals_of_a_lake_lie_beside_its_data_where_upkeep_does_not_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")

    found = open_blobs(lake_file(tmp_path, "data/lake"))
    assert found.place("default", SHA256) == f"{tmp_path}/data/lake.originals/default/{SHA256}"
    found = open_blobs(lake_file(tmp_path, "s3://bucket/a/lake/"))
    assert isinstance(found, S3Blobs)
    assert found.place("default", SHA256) == f"s3://bucket/a/lake.originals/default/{SHA256}"
    assert found.file("default", SHA256) is None
    with pytest.raises(AnalyzerError, match="give a prefix"):
        open_blobs(lake_file(tmp_path, "s3://bucket"))
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    with pytest.raises(AnalyzerError, match="AWS_SECRET_ACCESS_KEY"):
        open_blobs(lake_file(tmp_path, "s3://bucket/a"))


@pytest.mark.parametrize("reference", ["", "..", "../../x", "0" * 63, "F" * 64])
def test_only_a_hash_names_an_original(tmp_path: Path, reference: str) -> None:
    blobs = shared_blobs(tmp_path)
    for ask in (blobs.size, blobs.drop, blobs.file):
        with pytest.raises(AnalyzerError, match="no SHA-256"):
            ask("default", reference)
