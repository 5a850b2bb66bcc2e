"""A run directory is one tar, always the same, readable from any offset."""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from collector.writer import RunDirectoryWriter
from schemas.errors import RunDirectoryError
from schemas.manifest import Environment, Manifest, TraceFile
from schemas.packing import open_archive, trace_with_capture

GOLDEN = "25ae9e4254610f6871b0b777d9a554c384e215d32405ed923cb0bca09b50c264"


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


def test_it_is_what_gnu_tar_writes(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    owner = ["--owner=0", "--group=0", "--numeric-owner", "--mtime=@0", "--mode=0644"]
    names = ["latency.json", "manifest.json", "trace.json.gz"]
    done = subprocess.run(
        ["tar", "--format=ustar", *owner, "-C", str(run), "-cf", "-", *names],
        capture_output=True,
        check=False,
    )
    if b"GNU tar" not in subprocess.run(["tar", "--version"], capture_output=True).stdout:
        pytest.skip("this tar is not GNU's")

    assert content(run) == done.stdout


def test_its_hash_is_the_same_on_every_host_and_in_every_version(tmp_path: Path) -> None:
    """If this changes, servers take every run that they have for a new one."""
    (tmp_path / "manifest.json").write_text(
        '{"schema_version": 1, "run_id": "0", "name": "n", "created_at": "", "mode": "eager", '
        '"traces": [{"file": "trace.json.gz"}], "environment": {}, "files": {}}'
    )
    (tmp_path / "trace.json.gz").write_bytes(b"trace")

    assert open_archive(tmp_path).sha256() == GOLDEN


def test_a_file_of_more_than_8_gib_has_a_header_that_says_so(tmp_path: Path) -> None:
    """Plain tar headers end there; this one is extended."""
    run = make_run(tmp_path / "run")
    size = 9 << 30
    with (run / "trace.json.gz").open("r+b") as stream:
        stream.truncate(size)
    archive = open_archive(run)
    head = next(m.head for m in archive.members if m.path and m.path.name == "trace.json.gz")

    with tarfile.open(fileobj=io.BytesIO(head), mode="r|") as tar:
        member = tar.next()
    assert member is not None
    assert (member.name, member.size) == ("trace.json.gz", size)
    assert archive.size > size


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


def test_a_trace_and_that_of_its_capture_are_one_tar_even_of_the_same_name(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    trace, capture = tmp_path / "t.json", tmp_path / "other" / "t.json"
    trace.write_bytes(b"trace")
    capture.write_bytes(b"capture")

    archive = trace_with_capture(trace, capture)

    whole = io.BytesIO()
    archive.copy_to(whole)
    assert whole.getvalue() == b"".join(archive.read())
    with tarfile.open(fileobj=io.BytesIO(whole.getvalue()), mode="r:") as tar:
        members = {member.name: tar.extractfile(member) for member in tar.getmembers()}
        read = {name: stream.read() for name, stream in members.items() if stream}
    assert read == {"t.json": b"trace", "capture/t.json": b"capture"}
    assert (archive.format, archive.name, archive.host) == ("run-directory.tar", None, None)


def test_a_file_that_is_not_the_recorded_one_is_found_before_it_is_sent(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    (run / "trace.json.gz").write_bytes(b"u" * 700)

    with pytest.raises(RunDirectoryError, match="not the file that was recorded"):
        open_archive(run).sha256()


def test_a_file_that_shrinks_while_it_is_read_is_an_error_and_no_short_archive(
    tmp_path: Path,
) -> None:
    archive = open_archive(make_run(tmp_path / "run"))
    (tmp_path / "run" / "trace.json.gz").write_bytes(b"")

    with pytest.raises(RunDirectoryError, match="became shorter"):
        b"".join(archive.read())


def test_a_folder_without_manifest_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunDirectoryError, match=r"manifest\.json is missing"):
        open_archive(tmp_path)


def test_a_run_that_lacks_a_file_is_refused(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    (run / "latency.json").unlink()

    with pytest.raises(RunDirectoryError, match=r"lacks latency\.json"):
        open_archive(run)


def test_a_name_too_long_for_a_tar_is_refused(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    name = "x" * 101
    (run / name).touch()
    manifest = (run / "manifest.json").read_text()
    (run / "manifest.json").write_text(manifest.replace("latency.json", name))

    with pytest.raises(RunDirectoryError, match="too long"):
        open_archive(run)


@pytest.mark.parametrize("file", ["notes.txt", "empty.json", "missing.json"])
def test_what_is_no_trace_is_refused(tmp_path: Path, file: str) -> None:
    (tmp_path / "notes.txt").write_text("hello")
    (tmp_path / "empty.json").touch()

    with pytest.raises(RunDirectoryError, match=file):
        open_archive(tmp_path / file)


def test_the_way_of_an_upload_needs_no_torch(root: Path) -> None:
    code = (
        "import sys\nfrom collector import cli\nfrom collector.upload import sending\n"
        "cli.main(['upload', '--list', '--spool', sys.argv[1]])\n"
        "sys.exit('torch' in sys.modules)"
    )
    command = [sys.executable, "-c", code, "/nonexistent"]
    assert subprocess.run(command, cwd=root, check=False).returncode == 0
