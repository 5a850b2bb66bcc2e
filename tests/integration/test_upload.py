"""From a recording to a run in a real server, over a bad line and a server that comes and goes."""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from analyzer.cli import main as analyzer_main
from analyzer.server.auth.policy import OPEN, AccessPolicy
from analyzer.server.hosting import ServiceHosting
from analyzer.server.layout import Layout
from analyzer.server.limits import Limits
from analyzer.server.service import build
from collector import cli
from collector.upload.spool import Spool
from schemas.endpoint import parse_endpoint
from schemas.packing import open_archive
from schemas.run_directory import file_sha256
from schemas.upload_client import Uploader
from support.team_server import (
    PATIENCE_S,
    TeamServer,
    analyzer,
    free_port,
    make_distinct_run,
)
from tests.support.tracebuilder import TraceBuilder
from webapp import session, uploads

pytest.importorskip("fastapi")

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("upload"), pytest.mark.timeout(900)]

SAMPLE = "gpt2-bs8-s512"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TeamServer]:
    live = TeamServer(tmp_path_factory.mktemp("server") / "data", port=free_port())
    live.start()
    yield live
    live.stop()
    live.check_store()


@pytest.fixture
def spool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Spool:
    monkeypatch.delenv("HOSTBOUND_TOKEN", raising=False)
    return Spool(tmp_path / "spool")


class BadLine:
    """A way to a server that is cut after so many bytes, connection after connection.

    `cuts` says for each connection how many bytes pass to the server before both ends see it
    break; None: the server's answer is what gets lost. Afterwards the line is good. A line that
    `hangs` does not break there: what comes is lost and both ends wait, until one of them is gone.
    """

    def __init__(self, port: int, cuts: list[int | None], hangs: bool = False) -> None:
        self.cuts = cuts
        self.passed = 0
        self.hanging = threading.Semaphore(0)  # one for each connection that came to its cut
        self._hangs = hangs
        self._port = port
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listening.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listening.close()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listening.accept()
            except OSError:
                return
            cut = self.cuts.pop(0) if self.cuts else -1
            far = socket.create_connection(("127.0.0.1", self._port))
            for way in ((near, far, cut), (far, near, 0 if cut is None else -1)):
                threading.Thread(target=self._pass_on, args=way, daemon=True).start()

    def _pass_on(self, source: socket.socket, target: socket.socket, cut: int | None) -> None:
        left = cut if cut is not None and cut >= 0 else None
        with contextlib.suppress(OSError):
            while piece := source.recv(65536):
                if left is not None:
                    piece = piece[:left]
                    left -= len(piece)
                target.sendall(piece)
                self.passed += len(piece)
                if left == 0:
                    self.hanging.release()
                    while self._hangs and source.recv(65536):
                        pass
                    break
        for end in (source, target) if left == 0 else (target,):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR if left == 0 else socket.SHUT_WR)


@pytest.mark.parametrize("seed", range(12))
def test_a_run_sent_over_a_line_that_is_cut_again_and_again_arrives_whole(
    server: TeamServer, samples_dir: Path, tmp_path: Path, seed: int
) -> None:
    dice = random.Random(seed)
    run = make_distinct_run(samples_dir / SAMPLE, tmp_path / "run", 100 + seed)
    archive = open_archive(run)
    cuts = [
        dice.choice([None, dice.randrange(archive.size), dice.randrange(2000)]) for _ in range(12)
    ]
    line = BadLine(server.port, list(cuts))
    try:
        uploader = Uploader(
            parse_endpoint(line.url, None),
            PATIENCE_S,
            piece_bytes=dice.choice([100_000, 1 << 30]),
            sleep=lambda seconds: time.sleep(seconds / 100),
        )
        digest = uploader.send(archive, archive.sha256(), {}).sha256
        assert uploader.wait(digest).state == "done"
    finally:
        line.close()

    assert digest == archive.sha256()
    server.check_originals([digest])
    assert [r["name"] for r in server.runs()].count(f"run {100 + seed}") == 1


def test_what_passed_before_a_cut_is_not_sent_again(
    server: TeamServer, samples_dir: Path, tmp_path: Path
) -> None:
    run = make_distinct_run(samples_dir / SAMPLE, tmp_path / "run", 200)
    archive = open_archive(run)
    line = BadLine(server.port, [-1, archive.size * 3 // 4])
    try:
        endpoint = parse_endpoint(line.url, None)
        stored = Uploader(endpoint, PATIENCE_S).send(archive, archive.sha256(), {})
    finally:
        line.close()

    server.check_originals([stored.sha256])
    assert line.passed < archive.size * 1.3


def test_a_second_upload_sends_nothing_and_makes_no_second_run(
    server: TeamServer, spool: Spool, samples_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    answers = []
    for _ in range(2):
        assert upload(spool, samples_dir / SAMPLE, "--to", server.url, "--wait", "--json") == 0
        answers.append(json.loads(capsys.readouterr().out))

    first, second = answers
    assert first["run_ids"] == second["run_ids"]
    assert (first["sent_bytes"] > 0, second["sent_bytes"]) == (True, 0)
    assert [run["run_id"] for run in server.runs()].count(first["run_ids"][0]) == 1


def test_the_same_run_sent_by_several_at_once_is_one_run(
    server: TeamServer, samples_dir: Path, tmp_path: Path
) -> None:
    run = make_distinct_run(samples_dir / SAMPLE, tmp_path / "run", 300)
    archive = open_archive(run)
    digest, stored = archive.sha256(), []

    def send() -> None:
        uploader = Uploader(parse_endpoint(server.url, None), PATIENCE_S, piece_bytes=100_000)
        stored.append(uploader.send(archive, digest, {}).sha256)

    threads = [threading.Thread(target=send) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)

    assert stored == [digest] * 4
    server.wait_for_jobs()
    assert [r["name"] for r in server.runs()].count("run 300") == 1


@pytest.mark.parametrize("more", [{}, {"notes.txt": "mine"}], ids=["as recorded", "and notes"])
def test_a_run_is_the_same_content_whichever_way_it_comes(
    spool: Spool,
    samples_dir: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    more: dict[str, str],
) -> None:
    run = shutil.copytree(samples_dir / SAMPLE, tmp_path / "run")
    for name, text in more.items():
        (run / name).write_text(text)
    files = [(f"run/{path.name}", io.BytesIO(path.read_bytes())) for path in run.iterdir()]
    owned = tmp_path / "runs.duckdb"
    live = TeamServer(owned, db=True).start()
    try:
        assert upload(spool, run, "--to", live.url, "--wait") == 0
        collected = names_of_originals(tmp_path / "runs.duckdb.data")
        assert analyzer("ingest", str(run), "--db", str(owned)).returncode in (0, 1)
        ingested = names_of_originals(tmp_path / "runs.duckdb.data")
        assert sum(line["event"] == "job done" for line in live.log) == 2
    finally:
        live.stop()
    layout = Layout(tmp_path / "pages")
    service = build(layout, Limits(), AccessPolicy(), 1, lambda *_, **__: None)
    monkeypatch.setattr(uploads, "_PATIENCE_S", 0.0)
    monkeypatch.setattr(session, "hosted", lambda: (ServiceHosting(service), OPEN))
    try:
        assert uploads.load(files) == []  # kept; nobody converts here
    finally:
        service.database.close()

    assert collected == ingested == names_of_originals(layout.data)
    assert collected == {open_archive(run).sha256()}


def names_of_originals(data: Path) -> set[str]:
    return {path.name for path in (data / "teams" / "default" / "blobs").iterdir()}


@pytest.mark.parametrize("suffix", [".json", ".json.gz"])
def test_a_single_trace_is_a_run_too(
    server: TeamServer,
    spool: Spool,
    tmp_path: Path,
    suffix: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    trace = TraceBuilder()
    trace.add_op("aten::relu", 0, 10)
    path = trace.write(tmp_path / f"mine{suffix}")

    assert upload(spool, path, "--to", server.url, "--wait", "--json") == 0
    (run_id,) = json.loads(capsys.readouterr().out)["run_ids"]
    assert server.get(f"runs/{run_id}")["run"]["name"] == "mine"


def test_a_trace_that_is_none_is_stored_and_its_failure_is_told(
    server: TeamServer, spool: Spool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "none.json"
    path.write_text("this is no JSON")

    assert upload(spool, path, "--to", server.url, "--wait") == 1
    said = capsys.readouterr()
    assert "is stored as" in said.out
    assert "could not convert" in said.err
    server.check_originals([open_archive(path).sha256()])


def test_a_recording_is_seen_in_the_server(
    server: TeamServer, spool: Spool, checkpoint: Path, tmp_path: Path
) -> None:
    out = tmp_path / "runs" / "tiny"

    assert record(checkpoint, out, spool, server.url) == 0

    server.wait_for_jobs()
    (run,) = [run for run in server.runs() if run["name"] == "tiny-cpu"]
    report = server.get(f"runs/{run['run_id']}/report")
    assert report
    assert out.is_dir()


def test_what_is_recorded_while_the_server_is_down_is_sent_when_it_is_back(
    spool: Spool, checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    live = TeamServer(tmp_path / "data", port=free_port())
    out = tmp_path / "runs" / "tiny"

    assert record(checkpoint, out, spool, live.url, "--patience", "0.5") == 0
    assert "sends it later" in capsys.readouterr().err
    assert (out / "manifest.json").is_file()

    live.start()
    try:
        assert upload(spool, "--wait", "--delete-after") == 0
        assert [run["name"] for run in live.runs()] == ["tiny-cpu"]
        assert not out.exists()
    finally:
        live.stop()
    assert len(live.check_store()) == 1


def test_a_client_that_is_killed_again_and_again_deletes_nothing_too_early(
    server: TeamServer, spool: Spool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each is killed while the line holds it up: part of the file has come, or the answer hangs."""
    dice = random.Random(5)
    path = tmp_path / "large.json"
    path.write_bytes(b"[" + os.urandom(8 << 20))
    archive = open_archive(path)
    digest = archive.sha256()
    line = BadLine(server.port, [], hangs=True)
    command = [sys.executable, "-m", "collector.cli", "upload", "--spool", str(spool.folder)]
    first = [str(path), "--to", line.url, "--delete-after"]
    parts = [dice.randrange(10_000, archive.size // 6) for _ in range(5)]
    # An announcement passes, the bytes behind it do not; the last time all pass.
    for number, cuts in enumerate([*([part] * 9 for part in parts), [-1, None]]):
        line.cuts = list(cuts)
        with subprocess.Popen([*command, *(first if number == 0 else [])]) as client:
            assert line.hanging.acquire(timeout=PATIENCE_S)
            assert client.poll() is None
            client.kill()
        assert path.exists()
        assert file_sha256(path) == digest

    line.cuts = []
    assert upload(spool) == 0
    capsys.readouterr()
    line.close()
    assert not path.exists()
    server.check_originals([digest])
    assert spool.entries() == ([], [])


def test_only_a_token_that_may_upload_gets_a_run_in(
    spool: Spool,
    samples_dir: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    live = TeamServer(tmp_path / "data", port=free_port())
    tokens = {}
    for scope in ("upload", "read"):
        made = ["--data", str(live.data), "--team", "blue", "--scope", scope]
        assert analyzer_main(["token", "create", *made]) == 0
        tokens[scope] = capsys.readouterr().out.strip()
    live.start()
    run = samples_dir / SAMPLE
    try:
        assert upload(spool, run, "--to", live.url) == 2
        assert "HOSTBOUND_TOKEN" in capsys.readouterr().err
        monkeypatch.setenv("HOSTBOUND_TOKEN", tokens["read"])
        assert upload(spool, "--to", live.url) == 2
        assert "may upload" in capsys.readouterr().err
        (tmp_path / "token").write_text(tokens["upload"] + "\n")
        assert upload(spool, "--token-file", tmp_path / "token", "--wait") == 0
        live.token = tokens["read"]
        assert len(live.runs()) == 1
    finally:
        live.stop()
    live.check_originals([open_archive(run).sha256()], "blue")
    for token in tokens.values():
        assert token not in "".join(live.stderr)


def record(checkpoint: Path, out: Path, spool: Spool, url: str, *more: str) -> int:
    short = ["--prompt-len", "8", "--new-tokens", "3", "--warmup", "1", "--latency-runs", "2"]
    where = ["--device", "cpu", "--dtype", "fp32", "--out", str(out), "--name", "tiny-cpu"]
    send = ["--upload", url, "--spool", str(spool.folder), *more]
    return cli.main(["record", "--model", str(checkpoint), *short, *where, *send])


def upload(spool: Spool, *arguments: str | Path) -> int:
    return cli.main(["upload", *map(str, arguments), "--spool", str(spool.folder)])
