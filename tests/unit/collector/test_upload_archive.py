"""A run directory is one tar, always the same, readable from any offset."""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import tarfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from collector.archive import open_archive
from collector.errors import CollectorError
from collector.writer import RunDirectoryWriter
from schemas.errors import RunDirectoryError
from schemas.run_directory import Environment, Manifest, TraceFile


def make_run(target: Path, trace: bytes = b"t" * 700, name: str = "mine") -> Path:
    """A whole run directory with one trace and latency."""
    with RunDirectoryWriter(target) as writer:
        (writer.path / "trace.json.gz").write_bytes(trace)
        writer.add_json("latency.json", {"requests": []})
        writer.finish(
            Manifest(
                "id",
                name,
                "2026-01-01T00:00:00+00:00",
                "eager",
                [TraceFile("trace.json.gz")],
                environment=Environment(host="node-7"),
            )
        )
    return target


def content(run: Path) -> bytes:
    return b"".join(open_archive(run).read())


def test_it_is_a_plain_tar_of_the_manifest_and_the_files_it_names(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    with tarfile.open(fileobj=io.BytesIO(content(run)), mode="r:") as tar:
        members = {member.name: tar.extractfile(member) for member in tar.getmembers()}
        read = {name: stream.read() for name, stream in members.items() if stream}

    assert list(members) == sorted(members)
    assert read == {path.name: path.read_bytes() for path in run.iterdir()}


def test_it_is_what_the_tar_module_would_write(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    expected = io.BytesIO()
    with tarfile.open(fileobj=expected, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for path in sorted(run.iterdir()):
            info = tarfile.TarInfo(path.name)
            info.size = path.stat().st_size
            tar.addfile(info, io.BytesIO(path.read_bytes()))

    assert content(run) == expected.getvalue()


def test_where_when_and_by_whom_it_was_recorded_changes_nothing(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    elsewhere = tmp_path / "other" / "name"
    shutil.copytree(run, elsewhere)
    (elsewhere / "trace.json.gz").chmod(0o600)
    os.utime(elsewhere / "trace.json.gz", (1, 1))
    (elsewhere / ".DS_Store").write_text("no file of the run")

    assert open_archive(elsewhere).sha256() == open_archive(run).sha256()


def test_size_and_hash_are_those_of_its_bytes(tmp_path: Path) -> None:
    archive = open_archive(make_run(tmp_path / "run"))

    assert archive.size == len(b"".join(archive.read()))
    assert archive.sha256() == hashlib.sha256(b"".join(archive.read())).hexdigest()
    assert (archive.format, archive.name, archive.host) == ("run-directory.tar", "mine", "node-7")


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    trace=st.binary(max_size=1500),
    offset=st.integers(0, 25_000),
    length=st.none() | st.integers(0, 25_000),
)
def test_from_any_offset_it_is_the_rest(
    tmp_path: Path, trace: bytes, offset: int, length: int | None
) -> None:
    run = make_run(tmp_path / hashlib.sha256(trace).hexdigest()[:12] / f"{offset}-{length}", trace)
    try:
        whole = content(run)
        end = len(whole) if length is None else offset + length
        assert b"".join(open_archive(run).read(offset, length)) == whole[offset:end]
    finally:
        shutil.rmtree(run)


def test_large_files_are_read_in_pieces(tmp_path: Path) -> None:
    archive = open_archive(make_run(tmp_path / "run", b"x" * 3_500_000))

    assert max(len(piece) for piece in archive.read()) <= 1 << 20


@pytest.mark.parametrize(
    ("file", "format", "name"),
    [
        ("a.pt.trace.json.gz", "trace.json.gz", "a"),
        ("b.json", "trace.json", "b"),
    ],
)
def test_a_trace_goes_as_it_is(tmp_path: Path, file: str, format: str, name: str) -> None:
    path = tmp_path / file
    path.write_bytes(b'{"traceEvents": []}')

    archive = open_archive(path)

    assert (archive.format, archive.name, archive.host) == (format, name, None)
    assert b"".join(archive.read()) == path.read_bytes()


def test_a_file_that_is_not_the_recorded_one_is_found_before_it_is_sent(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    (run / "trace.json.gz").write_bytes(b"u" * 700)

    with pytest.raises(CollectorError, match="not the file that was recorded"):
        open_archive(run).sha256()


def test_a_file_that_shrinks_while_it_is_read_is_an_error_and_no_short_archive(
    tmp_path: Path,
) -> None:
    archive = open_archive(make_run(tmp_path / "run"))
    (tmp_path / "run" / "trace.json.gz").write_bytes(b"")

    with pytest.raises(CollectorError, match="became shorter"):
        b"".join(archive.read())


def test_a_folder_without_manifest_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunDirectoryError, match=r"manifest\.json is missing"):
        open_archive(tmp_path)


def test_a_run_that_lacks_a_file_is_refused(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    (run / "latency.json").unlink()

    with pytest.raises(CollectorError, match=r"lacks latency\.json"):
        open_archive(run)


@pytest.mark.parametrize("file", ["notes.txt", "empty.json", "missing.json"])
def test_what_is_no_trace_is_refused(tmp_path: Path, file: str) -> None:
    (tmp_path / "notes.txt").write_text("hello")
    (tmp_path / "empty.json").touch()

    with pytest.raises(CollectorError, match=file):
        open_archive(tmp_path / file)


def test_the_way_of_an_upload_needs_no_torch(root: Path) -> None:
    import subprocess
    import sys

    code = (
        "import sys\nfrom collector import cli, sending\n"
        "cli.main(['upload', '--list', '--spool', sys.argv[1]])\n"
        "sys.exit('torch' in sys.modules)"
    )
    command = [sys.executable, "-c", code, "/nonexistent"]
    assert subprocess.run(command, cwd=root, check=False).returncode == 0
