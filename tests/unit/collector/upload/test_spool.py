"""What is spooled is sent later, and nothing is deleted before the server has named its hash."""

from __future__ import annotations

import json
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import tus_server
from collector import cli
from collector.errors import CollectorError
from collector.upload.spool import DELETING, Spool, default_folder
from collector.writer import RunDirectoryWriter
from schemas.endpoint import parse_endpoint
from schemas.manifest import Manifest, TraceFile
from schemas.upload_client import Uploader
from tus_server import Fault, TusServer

NO_SERVER = "http://127.0.0.1:1"


@pytest.fixture(scope="module")
def running_server() -> Iterator[TusServer]:
    with tus_server.running() as server:
        yield server


@pytest.fixture
def server(running_server: TusServer, monkeypatch: pytest.MonkeyPatch) -> TusServer:
    monkeypatch.delenv("HOSTBOUND_TOKEN", raising=False)
    running_server.reset()
    return running_server


@pytest.fixture
def spool(tmp_path: Path) -> Spool:
    return Spool(tmp_path / "spool")


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return make_run(tmp_path / "runs" / "mine")


def make_run(target: Path, trace: bytes = b"trace") -> Path:
    with RunDirectoryWriter(target) as writer:
        (writer.path / "trace.json.gz").write_bytes(trace)
        writer.finish(
            Manifest(
                "id", target.name, "2026-01-01T00:00:00", "eager", [TraceFile("trace.json.gz")]
            )
        )
    return target


def upload(spool: Spool, *arguments: str | Path) -> int:
    """The command, with one try and no wait."""
    options = ["--spool", str(spool.folder), "--patience", "0"]
    return cli.main(["upload", *map(str, arguments), *options])


def test_a_stored_run_leaves_no_entry_and_stays(
    server: TusServer, spool: Spool, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert upload(spool, run, "--to", server.url) == 0

    (digest,) = server.stored
    assert capsys.readouterr().out == f"{run} is stored as {digest}\n"
    assert spool.entries() == ([], [])
    assert (run / "manifest.json").is_file()


def test_a_run_that_cannot_be_sent_now_is_sent_by_a_later_call_without_arguments(
    server: TusServer, spool: Spool, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server.faults = [Fault("PATCH", status=503)]

    assert upload(spool, run, "--to", server.url) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert f"`collector upload --spool {spool.folder}` sends it later" in line
    assert server.stored == {}

    assert upload(spool) == 0
    assert len(server.stored) == 1
    assert spool.entries() == ([], [])


def test_an_entry_names_the_run_the_server_and_the_hash_but_no_token(
    spool: Spool, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOSTBOUND_TOKEN", "hb_secret")
    assert upload(spool, run, "--to", NO_SERVER) == 1

    (file,) = spool.folder.glob("*.json")
    entry = json.loads(file.read_bytes())
    assert (entry["path"], entry["url"], entry["state"]) == (str(run), NO_SERVER, "waiting")
    assert len(entry["sha256"]) == 64
    assert "hb_secret" not in file.read_text()
    assert stat.S_IMODE(spool.folder.stat().st_mode) == 0o700


def test_the_same_run_for_the_same_server_is_one_entry(spool: Spool, run: Path) -> None:
    upload(spool, run, run, "--to", NO_SERVER)
    upload(spool, run, "--to", NO_SERVER + "/")

    assert len(spool.entries()[0]) == 1


def test_one_run_that_cannot_be_sent_does_not_keep_the_others(
    server: TusServer, spool: Spool, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = make_run(tmp_path / "runs" / "other", b"other")

    assert upload(spool, tmp_path / "nothing", run, other, "--to", server.url) == 2
    assert "nothing cannot be read" in capsys.readouterr().err
    assert len(server.stored) == 2


def test_a_server_that_is_not_there_is_waited_for_once(
    spool: Spool, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = make_run(tmp_path / "runs" / "other")

    assert upload(spool, run, other, "--to", NO_SERVER) == 1
    first, second = capsys.readouterr().err.splitlines()
    assert "refused" in first
    assert "is not sent" in second
    assert len(spool.entries()[0]) == 2


def test_only_what_goes_to_the_named_server_is_sent(
    server: TusServer, spool: Spool, run: Path
) -> None:
    upload(spool, run, "--to", NO_SERVER)

    assert upload(spool, "--to", server.url) == 0
    assert len(spool.entries()[0]) == 1


def test_a_refused_run_stays_with_the_reason(
    server: TusServer, spool: Spool, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server.faults = [Fault("POST", status=413)]

    assert upload(spool, run, "--to", server.url) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "413" in line
    assert upload(spool, "--list") == 0
    listed = capsys.readouterr().out
    assert listed.startswith(f"refused  {run} -> {server.url}\n")
    assert "413" in listed


def test_delete_after_deletes_when_the_server_has_named_the_hash(
    server: TusServer, spool: Spool, run: Path
) -> None:
    assert upload(spool, run, "--to", server.url, "--delete-after") == 0

    assert not run.exists()
    assert len(server.stored) == 1
    assert spool.entries() == ([], [])


@pytest.mark.parametrize(
    "fault",
    [
        Fault("PATCH", lie="0" * 64),
        Fault("PATCH", keep=10),
        Fault("PATCH", status=422),
        Fault("PATCH", status=500),
        Fault("POST", status=403),
        Fault("PATCH", silent=True),
        Fault("PATCH", lose=True),
    ],
)
def test_without_the_acknowledgement_nothing_is_deleted(
    server: TusServer, spool: Spool, run: Path, fault: Fault
) -> None:
    server.faults = [fault, fault]
    before = {path.name: path.read_bytes() for path in run.iterdir()}

    assert upload(spool, run, "--to", server.url, "--delete-after") in (1, 2)

    assert {path.name: path.read_bytes() for path in run.iterdir()} == before
    (entry,) = spool.entries()[0]
    assert entry.delete_after


def test_the_wish_to_delete_is_kept_in_the_spool(
    server: TusServer, spool: Spool, run: Path
) -> None:
    server.faults = [Fault("POST", status=503)]
    upload(spool, run, "--to", server.url, "--delete-after")
    assert run.exists()

    assert upload(spool) == 0
    assert not run.exists()


def test_what_somebody_put_beside_the_run_is_not_deleted(
    server: TusServer, spool: Spool, run: Path
) -> None:
    (run / "notes.txt").write_text("mine")

    assert upload(spool, run, "--to", server.url, "--delete-after") == 0
    assert [path.name for path in run.iterdir()] == ["notes.txt"]


def test_a_deletion_that_was_interrupted_is_finished_without_sending(
    server: TusServer, spool: Spool, run: Path
) -> None:
    entry = spool.add(run, server.url, delete_after=True)
    spool.write(replace(entry, state=DELETING))
    (run / "manifest.json").unlink()

    assert upload(spool) == 0
    assert not run.exists()
    assert server.requests == []
    assert spool.entries() == ([], [])


def test_a_new_run_at_the_place_of_a_deleted_one_is_sent_before_it_goes(
    server: TusServer, spool: Spool, run: Path
) -> None:
    entry = spool.add(run, server.url, delete_after=True)
    spool.write(replace(entry, state=DELETING))
    shutil.rmtree(run)
    make_run(run, b"another recording")

    assert upload(spool) == 0
    (content,) = server.stored.values()
    assert b"another recording" in content


def test_a_path_that_is_no_text_is_refused(
    server: TusServer, spool: Spool, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    odd = run.with_name("\udcff")
    try:
        run.rename(odd)
    except OSError:
        pytest.skip("this file system takes no such names")

    assert upload(spool, odd, "--to", server.url) == 2
    assert "rename it" in capsys.readouterr().err


def test_a_run_that_is_gone_is_forgotten(
    server: TusServer, spool: Spool, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spool.add(run, server.url)
    shutil.rmtree(run)

    assert upload(spool) == 1
    assert "no longer there" in capsys.readouterr().err
    assert spool.entries() == ([], [])


def test_a_run_that_was_replayed_again_is_sent_as_it_is_now(
    server: TusServer, spool: Spool, run: Path
) -> None:
    old = spool.add(run, server.url).sha256
    shutil.rmtree(run)
    make_run(run, b"other samples")

    assert upload(spool) == 0
    assert old not in server.stored


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "{}",
        '{"version": 1, "path": "/x"}',
        '{"version": 1, "path": 1, "url": "u", "sha256": "", "size": 0, "format": "", "name": ""}',
        '{"version": 1, "path": "/x", "url": "u", "sha256": "", "size": 0, "format": "", "name": '
        '"", "members": ["../../etc/passwd"]}',
    ],
)
def test_a_damaged_entry_is_named_and_the_others_are_sent(
    server: TusServer, spool: Spool, run: Path, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    spool.add(run, server.url)
    (spool.folder / "broken.json").write_text(text)

    assert upload(spool) == 0
    assert "broken.json is damaged" in capsys.readouterr().err
    assert len(server.stored) == 1


def test_an_entry_of_a_later_version_is_left_alone(
    server: TusServer, spool: Spool, capsys: pytest.CaptureFixture[str]
) -> None:
    spool.check()
    (spool.folder / "new.json").write_text('{"version": 2}')

    assert upload(spool) == 0
    assert "another version" in capsys.readouterr().err
    assert (spool.folder / "new.json").exists()


def test_an_interruption_leaves_the_entry_and_no_traceback(
    server: TusServer,
    spool: Spool,
    run: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("schemas.endpoint.Endpoint.request", interrupted)
        assert upload(spool, run, "--to", server.url) == 130
    assert "goes on with it" in capsys.readouterr().err

    assert upload(spool) == 0
    assert len(server.stored) == 1


def test_waiting_tells_the_run_and_a_failed_conversion_is_a_finding(
    server: TusServer, spool: Spool, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server.states = [{"state": "done", "run_ids": ["abc"]}]
    assert upload(spool, run, "--to", server.url, "--wait") == 0
    assert capsys.readouterr().out.endswith(", run abc\n")

    server.states = [{"state": "failed", "error": "no events in it", "run_ids": []}]
    assert upload(spool, run, "--to", server.url, "--wait") == 1
    assert "could not convert" in capsys.readouterr().err


def test_json_is_one_object_a_run(
    server: TusServer, spool: Spool, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert upload(spool, run, "--to", server.url, "--json") == 0

    found = json.loads(capsys.readouterr().out)
    (digest,) = server.stored
    assert (found["sha256"], found["state"], found["error"]) == (digest, "stored", None)
    assert found["sent_bytes"] == len(server.stored[digest])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["x"], "--to URL"),
        (["x", "--to", "nowhere"], "no address"),
        (["x", "--to", "https://h", "--token-file", "/no/such"], "--token-file"),
    ],
)
def test_what_cannot_be_meant_is_refused_in_one_line(
    spool: Spool, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    assert upload(spool, *arguments) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line


@pytest.mark.parametrize("seconds", ["-1", "nan"])
def test_patience_is_a_time(capsys: pytest.CaptureFixture[str], seconds: str) -> None:
    assert cli.main(["upload", f"--patience={seconds}"]) == 2
    assert "--patience" in capsys.readouterr().err


def test_a_token_is_asked_for_on_no_command_line() -> None:
    with pytest.raises(SystemExit):
        cli.main(["upload", "--token", "secret"])


def test_nothing_spooled_is_told(spool: Spool, capsys: pytest.CaptureFixture[str]) -> None:
    assert upload(spool) == 0
    assert "nothing is spooled" in capsys.readouterr().err
    assert not spool.folder.exists()


def test_a_spool_that_cannot_be_written_is_refused(
    tmp_path: Path, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()

    assert upload(Spool(tmp_path / "file" / "spool"), run, "--to", NO_SERVER) == 2
    assert "--spool" in capsys.readouterr().err


def test_the_spool_is_where_a_programs_state_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", "/state")
    assert default_folder() == Path("/state/hostbound/spool")
    monkeypatch.setenv("XDG_STATE_HOME", "relative/is/ignored")
    monkeypatch.setenv("HOME", "/home/me")
    assert default_folder() == Path("/home/me/.local/state/hostbound/spool")


_SEND_AND_HOLD = """
import sys
from pathlib import Path
from collector.upload.spool import Spool
spool = Spool(Path(sys.argv[1]))
class Holding:
    def send(self, *_):
        print("sending", flush=True)
        sys.stdin.read()  # until the test ends it
spool.deliver(spool.entries()[0][0], Holding())
"""


def test_what_another_process_sends_is_left_to_it_until_it_ends(
    server: TusServer, spool: Spool, run: Path, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spool.add(run, server.url)
    command = [sys.executable, "-c", _SEND_AND_HOLD, str(spool.folder)]
    with subprocess.Popen(
        command, cwd=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"sending\n"

        assert upload(spool) == 1
        assert "by another process" in capsys.readouterr().err
        assert server.requests == []
        other.kill()

    assert upload(spool) == 0
    assert len(server.stored) == 1


def test_a_run_that_cannot_be_removed_is_stored_and_said_so(
    server: TusServer, spool: Spool, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    entry = spool.add(run, server.url, delete_after=True)
    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", refuse)
        with pytest.raises(CollectorError, match="cannot be removed"):
            spool.deliver(entry, Uploader(parse_endpoint(server.url, None), 0.0))
    assert upload(spool) == 0
    assert not run.exists()
