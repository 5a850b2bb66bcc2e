"""A recording is whole and its command ends well, whatever becomes of its upload."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import tus_server
from collector import cli
from collector.upload.spool import Spool
from schemas.errors import UploadError
from schemas.run_directory import read_manifest
from tus_server import Fault, TusServer

pytest.importorskip("torch")

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


def record_script(folder: Path, spool: Spool, *options: str) -> tuple[int, Path]:
    """Record a small script with one try to send it; returns the exit code and the run."""
    script = folder / "my.py"
    script.write_text("import torch\ntorch.ones(7).sum()\n")
    out = folder / "runs" / "mine"
    where = ["--device", "cpu", "--out", str(out), "--spool", str(spool.folder)]
    arguments = ["record", *where, "--patience", "0", *options, "--script", str(script)]
    return cli.main(arguments), out


def test_a_recorded_run_is_sent(
    server: TusServer, spool: Spool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out = record_script(tmp_path, spool, "--upload", server.url)

    assert code == 0
    assert capsys.readouterr().out == f"{out}\n"
    assert server.declared[0]["name"] == "my"
    assert len(server.stored) == 1
    assert spool.entries() == ([], [])


def test_a_recording_without_a_server_is_whole_and_spooled(
    spool: Spool, tmp_path: Path, server: TusServer, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out = record_script(tmp_path, spool, "--upload", NO_SERVER)

    assert code == 0
    assert capsys.readouterr().err.splitlines()[-1].endswith("sends it later.")
    assert read_manifest(out).name == "my"
    (entry,) = spool.entries()[0]
    assert (entry.path, entry.url) == (str(out), NO_SERVER)


def test_a_recording_that_the_server_refuses_is_whole_and_a_finding(
    server: TusServer, spool: Spool, tmp_path: Path
) -> None:
    server.faults = [Fault("POST", status=403)]

    code, out = record_script(tmp_path, spool, "--upload", server.url)

    assert code == 1
    assert read_manifest(out).name == "my"


def test_an_interrupted_upload_leaves_the_recording_and_the_entry(
    server: TusServer,
    spool: Spool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("schemas.endpoint.Endpoint.request", interrupted)
    code, out = record_script(tmp_path, spool, "--upload", server.url)

    assert code == 130
    assert "is recorded" in capsys.readouterr().err
    assert read_manifest(out).name == "my"
    assert len(spool.entries()[0]) == 1


def test_delete_after_leaves_nothing_but_what_the_server_has(
    server: TusServer, spool: Spool, tmp_path: Path
) -> None:
    code, out = record_script(tmp_path, spool, "--upload", server.url, "--delete-after")

    assert code == 0
    assert not out.exists()
    assert len(server.stored) == 1


@pytest.mark.parametrize(
    "options", [["--upload", "nowhere"], ["--upload", NO_SERVER, "--token-file", "/no/such"]]
)
def test_what_could_not_be_sent_is_refused_before_the_recording(
    spool: Spool, tmp_path: Path, options: list[str]
) -> None:
    code, out = record_script(tmp_path, spool, *options)

    assert code == 2
    assert not out.exists()


def test_own_code_is_spooled_and_waits_for_no_server(
    spool: Spool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    import collector

    monkeypatch.delenv("HOSTBOUND_TOKEN", raising=False)
    target = tmp_path / "mine"
    with collector.recording(target, device="cpu", upload=NO_SERVER + "/", spool=spool.folder):
        torch.ones(4).sum()

    (entry,) = spool.entries()[0]
    assert (entry.path, entry.url, entry.state) == (str(target), NO_SERVER, "waiting")


def test_own_code_goes_on_if_the_spool_is_gone_meanwhile(
    spool: Spool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import collector

    with collector.recording(tmp_path / "mine", device="cpu", upload=NO_SERVER, spool=spool.folder):
        spool.folder.rmdir()
        spool.folder.write_text("a file")

    assert "recorded but not spooled" in capsys.readouterr().err
    assert read_manifest(tmp_path / "mine").name == "mine"


def test_own_code_is_told_of_a_wrong_address_before_it_runs(tmp_path: Path) -> None:
    import collector

    with (
        pytest.raises(UploadError, match="no address"),
        collector.recording(tmp_path / "mine", device="cpu", upload="nowhere"),
    ):
        pytest.fail("the block ran")
