"""How conversions and servers end: a job that cannot be done, a server that is told to stop, two at
once. What ends them in the middle is in `test_server_faults.py`.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pytest

from analyzer import queries
from analyzer.server.check import check
from support.team_server import (
    PATIENCE_S,
    TeamServer,
    analyzer,
    make_token,
    sha256,
    trace_bytes,
    wait_for,
)

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("server"), pytest.mark.timeout(900)]

LARGE = 120_000  # launches: its conversion and its commit take long enough to be met in the middle


@pytest.fixture(scope="module")
def large() -> bytes:
    return trace_bytes(LARGE)


class Folder:
    """A data folder with a token; servers come and go."""

    def __init__(self, data: Path) -> None:
        self.data = data
        self.token = make_token(data)
        self.server = TeamServer(data)

    @property
    def team(self) -> Path:
        return self.data / "teams" / "perf"

    def assert_sound(self) -> None:
        assert check(self.data) == []


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Folder]:
    folder = Folder(tmp_path / "data")
    yield folder
    folder.server.stop()


def test_a_job_that_kills_every_worker_fails_and_its_original_is_kept(
    folder: Folder, large: bytes
) -> None:
    folder.server.start()
    with folder.server.client(folder.token) as client:
        url = client.announce(large).json()["url"]
        client.send_bytes(url, large)
        killed: set[int] = set()

        def ended() -> bool:
            if folder.server.event("job started"):
                for worker in folder.server.workers():
                    if worker not in killed:
                        killed.add(worker)
                        os.kill(worker, signal.SIGKILL)
            shown = client.get(f"/api/v1/uploads/{sha256(large)}").json()
            return shown["state"] == "failed"

        wait_for(ended, "the end of all attempts")
        job = client.job_of(large)
        assert job["attempts"] == 3
        assert "the original is kept" in job["error"]
        assert (folder.team / "blobs" / sha256(large)).read_bytes() == large

        assert client.post(f"/api/v1/jobs/{job['id']}/retry").status_code == 200
        assert client.job_of(large)["state"] == "done"
    folder.server.stop()
    folder.assert_sound()


def test_a_conversion_that_takes_too_long_is_stopped(folder: Folder, large: bytes) -> None:
    folder.server.start("--job-seconds", "0.001")
    with folder.server.client(folder.token) as client:
        job = client.upload(large)
        assert job["state"] == "failed"
        assert "longer than" in job["error"]
        assert client.upload(trace_bytes())["state"] in ("done", "failed")
    folder.server.stop()
    folder.assert_sound()


# A machine of 300 MiB, on which a server has been told nothing about memory.
_SMALL_MACHINE = """
import sys
from analyzer import cli
from analyzer.server.jobs import memory
memory.total_bytes = lambda: 300 << 20
sys.exit(cli.main())
"""


@pytest.mark.parametrize("told", [True, False])
def test_a_conversion_that_needs_too_much_memory_is_stopped(
    folder: Folder, large: bytes, told: bool
) -> None:
    options = ("--job-memory", "260M") if told else ()
    folder.server.start(*options, program=None if told else _SMALL_MACHINE)
    with folder.server.client(folder.token) as client:
        job = client.upload(large)
        assert job["state"] == "failed"
        assert "MiB of memory" in job["error"]
        assert (folder.team / "blobs" / sha256(large)).read_bytes() == large
        assert client.upload(trace_bytes())["state"] == "done"
    folder.server.stop()
    folder.assert_sound()


def test_sigterm_lets_the_running_job_end(folder: Folder, large: bytes) -> None:
    folder.server.start("--grace-seconds", str(PATIENCE_S))
    with folder.server.client(folder.token) as client:
        url = client.announce(large).json()["url"]
        client.send_bytes(url, large)
        wait_for(lambda: folder.server.event("job started"), "the job's start")

    assert folder.server.stop() == 0

    assert folder.server.event("job done")
    with queries.connect(folder.team / "store.duckdb") as connection:
        assert len(queries.runs(connection)) == 1
    folder.assert_sound()


def test_sigterm_queues_again_what_does_not_end_in_time(folder: Folder, large: bytes) -> None:
    folder.server.start("--grace-seconds", "0.1")
    with folder.server.client(folder.token) as client:
        url = client.announce(large).json()["url"]
        client.send_bytes(url, large)
        wait_for(lambda: folder.server.event("job started"), "the job's start")

    assert folder.server.stop() == 0
    folder.assert_sound()

    folder.server.start()
    with folder.server.client(folder.token) as client:
        assert client.job_of(large)["state"] == "done"
    folder.server.stop()
    folder.assert_sound()


def test_two_servers_do_not_share_a_folder(folder: Folder) -> None:
    folder.server.start()

    second = analyzer("serve", "--data", str(folder.data), "--port", "0", "--no-pages")

    assert second.returncode == 2
    assert "another server runs" in second.stderr


def test_readers_are_answered_while_runs_are_committed(folder: Folder) -> None:
    """DuckDB lets nobody read while another process writes: the server makes them take turns."""
    folder.server.start("--workers", "2")
    contents = [trace_bytes(2_000, seed=seed) for seed in range(8)]
    answers: list[int] = []
    with folder.server.client(folder.token) as client:
        client.upload(trace_bytes(3, seed=99))
        for content in contents:
            url = client.announce(content).json()["url"]
            assert client.send_bytes(url, content).status_code == 204

        def all_done() -> bool:
            for path in ("/api/v1/runs", "/api/v1/runs/latest/report"):
                answers.append(client.get(path).status_code)
            answer = client.post("/api/v1/sql", json={"sql": "SELECT count(*) FROM runs"})
            answers.append(answer.status_code)
            return client.get("/api/v1/jobs").json()["counts"]["done"] == 9

        wait_for(all_done, "all jobs")
        assert set(answers) == {200}
        assert len(client.run_ids()) == 9
    folder.server.stop()
    folder.assert_sound()


def test_a_commit_that_hangs_is_stopped_and_the_run_stored_later(folder: Folder) -> None:
    """Here another process holds the file; the server's readers of the team wait meanwhile."""
    content = trace_bytes(seed=1)
    folder.server.start()
    with folder.server.client(folder.token) as client:
        client.upload(trace_bytes())
    folder.server.stop()
    folder.server.start("--commit-seconds", "0.5")
    with (
        folder.server.client(folder.token) as client,
        duckdb.connect(str(folder.team / "store.duckdb")),
    ):
        # To replace a run nothing is read before the commit.
        url = client.announce(content, metadata={"replace": True}).json()["url"]
        client.send_bytes(url, content)
        wait_for(lambda: folder.server.event("commit stopped"), "the end of the commit")
        folder.server.stop()
    folder.server.start()
    with folder.server.client(folder.token) as client:
        job = client.job_of(content)
        if job["state"] == "failed":  # each of its attempts met the other process
            assert client.post(f"/api/v1/jobs/{job['id']}/retry").status_code == 200
            job = client.job_of(content)
        assert job["state"] == "done"
        assert len(client.run_ids()) == 2
    folder.server.stop()
    folder.assert_sound()


@pytest.mark.parametrize("left", [0, 12_388, -4_096])
def test_one_teams_damaged_store_is_that_teams_trouble_alone(folder: Folder, left: int) -> None:
    other = make_token(folder.data, "other")
    folder.server.start()
    for token in (folder.token, other):
        with folder.server.client(token) as client:
            client.upload(trace_bytes(400))
    folder.server.stop()
    store = folder.team / "store.duckdb"
    os.truncate(store, left if left >= 0 else store.stat().st_size + left)

    folder.server.start()
    content = trace_bytes(seed=3)
    with folder.server.client(other) as client:
        assert client.upload(content)["state"] == "done"
        assert len(client.run_ids()) == 2
    with folder.server.client(folder.token) as client:
        for path in ("runs", "runs/latest/report"):
            answer = client.get(f"/api/v1/{path}")
            assert answer.status_code == 503
            assert "damaged" in answer.json()["detail"]
            assert str(folder.data) not in answer.text
        job = client.upload(content)
        assert job["state"] == "failed"
        assert str(folder.data) not in job["error"]
    assert (folder.team / "blobs" / sha256(content)).read_bytes() == content
