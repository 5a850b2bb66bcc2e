"""A server that dies, or whose worker or disk does: what it acknowledged stays, runs are whole or
absent, and it goes on where it was.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from analyzer import queries
from analyzer.server.check import check
from teamserver import (
    ROOT,
    TeamServer,
    make_token,
    sha256,
    trace_bytes,
    wait_for,
)

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("server")]

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


def workers_of(server: TeamServer) -> list[int]:
    """Processes of the server's workers: its children that spawned Python for it."""
    assert server.process is not None
    found: list[int] = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError):
            stat = (entry / "stat").read_text().rpartition(")")[2].split()
            command = (entry / "cmdline").read_bytes()
            if int(stat[1]) == server.process.pid and b"spawn_main" in command:
                found.append(int(entry.name))
    return found


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def test_an_upload_goes_on_after_the_server_was_killed(folder: Folder) -> None:
    content = trace_bytes(4_000)
    folder.server.start()
    with folder.server.client(folder.token) as client:
        url = client.announce(content).json()["url"]
        assert client.send_bytes(url, content[:300_000]).status_code == 204

        def pieces() -> Iterator[bytes]:
            yield content[300_000:400_000]
            folder.server.kill()  # in the middle of a request
            yield content[400_000:500_000]

        with pytest.raises(httpx.TransportError):
            client.send_bytes(url, pieces(), 300_000)  # type: ignore[arg-type]

    folder.server.start()
    with folder.server.client(folder.token) as client:
        again = client.announce(content).json()
        assert (again["status"], again["url"]) == ("incomplete", url)
        assert 300_000 <= again["offset"] <= 400_000
        assert client.upload(content)["state"] == "done"
    folder.server.stop()
    folder.assert_sound()


def test_a_conversion_is_done_after_the_server_was_killed(folder: Folder, large: bytes) -> None:
    folder.server.start()
    with folder.server.client(folder.token) as client:
        url = client.announce(large).json()["url"]
        assert client.send_bytes(url, large).headers["Hostbound-Sha256"] == sha256(large)
        wait_for(lambda: folder.server.event("job started"), "the job's start")
    (worker,) = workers_of(folder.server)
    folder.server.kill()
    wait_for(lambda: gone(worker), "the end of the orphan worker")
    folder.assert_sound()

    folder.server.start()
    with folder.server.client(folder.token) as client:
        job = client.job_of(large)
        assert (job["state"], job["attempts"]) == ("done", 2)
        assert client.run_ids() == job["run_ids"]
    folder.server.stop()
    folder.assert_sound()


@pytest.mark.parametrize("seed", range(4))
def test_a_run_is_whole_or_absent_when_the_server_is_killed_at_the_commit(
    folder: Folder, large: bytes, seed: int
) -> None:
    """The worker commits in a process of its own: it ends the commit or dies with the server."""
    first = trace_bytes(3, seed=1)
    folder.server.start()
    with folder.server.client(folder.token) as client:
        kept = client.upload(first)["run_ids"]
        url = client.announce(large).json()["url"]
        client.send_bytes(url, large)
    store = folder.team / "store.duckdb"
    before = store.stat().st_mtime_ns
    wal = store.with_name("store.duckdb.wal")
    wait_for(lambda: wal.exists() or store.stat().st_mtime_ns != before, "the commit")
    time.sleep(random.Random(seed).uniform(0, 0.3))  # somewhere in it
    workers = workers_of(folder.server)
    folder.server.kill()
    for worker in workers if seed % 2 else []:
        with contextlib.suppress(ProcessLookupError):
            os.kill(worker, signal.SIGKILL)
    wait_for(lambda: all(gone(worker) for worker in workers), "the end of the workers")

    with queries.connect(store) as connection:
        stored = queries.runs(connection)
    assert set(kept) <= set(stored["run_id"])
    for kernels in stored.filter(stored["run_id"] != kept[0])["kernels"]:
        assert kernels == LARGE, "a run is there in part"
    folder.assert_sound()

    folder.server.start()
    with folder.server.client(folder.token) as client:
        job = client.job_of(large)
        assert job["state"] == "done"
        assert set(client.run_ids()) == {*kept, *job["run_ids"]}
    folder.server.stop()
    folder.assert_sound()


def test_a_killed_worker_costs_its_job_an_attempt_and_nobody_else_anything(
    folder: Folder, large: bytes
) -> None:
    folder.server.start()
    with folder.server.client(folder.token) as client:
        url = client.announce(large).json()["url"]
        client.send_bytes(url, large)
        wait_for(lambda: folder.server.event("job started"), "the job's start")
        (worker,) = workers_of(folder.server)
        os.kill(worker, signal.SIGKILL)

        job = client.job_of(large)

        assert (job["state"], job["attempts"]) == ("done", 2)
        assert client.get("/readyz").status_code == 200
    folder.server.stop()
    folder.assert_sound()


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
                for worker in workers_of(folder.server):
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
    folder.server.start("--job-seconds", "0.5")
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
from analyzer.server import memory
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
    folder.server.start()
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


def test_a_full_disk_is_said_and_the_upload_goes_on_when_there_is_room(folder: Folder) -> None:
    """A limit on the size of the server's files stands in for the disk: they are refused alike."""
    content = trace_bytes(8_000)
    assert len(content) > 2_500_000
    folder.server.start(limit_files=1_500_000)
    with folder.server.client(folder.token) as client:
        url = client.announce(content).json()["url"]
        answer = client.send_bytes(url, content)
        assert answer.status_code == 507, answer.text
        assert "disk is full" in answer.json()["detail"]
        assert client.get("/readyz").status_code == 200
        offset = int(client.head(url).headers["Upload-Offset"])
        assert offset <= 1_500_000
    folder.server.stop()
    folder.assert_sound()

    folder.server.start()
    with folder.server.client(folder.token) as client:
        assert client.announce(content).json()["offset"] == offset
        assert client.upload(content)["state"] == "done"
    folder.server.stop()
    folder.assert_sound()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 24 MiB of our own, where the system lets one make it."""
    place = tmp_path / "disk"
    place.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", str(place)],
        capture_output=True,
        check=False,
    )
    if made.returncode != 0:
        pytest.skip("only root can make a small file system here")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def test_a_disk_that_is_really_full_loses_nothing_that_was_acknowledged(small_disk: Path) -> None:
    folder = Folder(small_disk / "data")
    filler = small_disk / "filler"

    def fill(left: int) -> None:
        filler.write_bytes(b"\0" * (_free(small_disk) - left))

    try:
        folder.server.start("--keep-free", "1")
        with folder.server.client(folder.token) as client:
            kept = client.upload(trace_bytes(3, seed=1))["run_ids"]

            # Full while bytes come.
            second = trace_bytes(6_000, seed=2)
            url = client.announce(second).json()["url"]
            fill(left=500_000)
            assert client.send_bytes(url, second).status_code == 507
            assert client.announce(trace_bytes(6_000, seed=3)).status_code == 507
            assert client.get("/readyz").status_code == 200
            assert client.run_ids() == kept
            filler.unlink()
            offset = int(client.head(url).headers["Upload-Offset"])
            assert 0 < offset < len(second)

            # Full when the run is written: the bytes are acknowledged, the conversion fails.
            assert client.send_bytes(url, second[offset:-1], offset).status_code == 204
            fill(left=100_000)
            assert client.send_bytes(url, second[-1:], len(second) - 1).status_code == 204
            job = client.job_of(second)
            assert job["state"] == "failed"
            assert client.run_ids() == kept
            filler.unlink()
            assert client.post(f"/api/v1/jobs/{job['id']}/retry").status_code == 200
            assert client.job_of(second)["state"] == "done"
        folder.server.stop()
        folder.assert_sound()
    finally:
        folder.server.stop()


def _free(place: Path) -> int:
    found = os.statvfs(place)
    return found.f_bavail * found.f_frsize


def test_two_servers_do_not_share_a_folder(folder: Folder) -> None:
    folder.server.start()

    second = subprocess.run(
        [
            *(sys.executable, "-m", "analyzer.cli", "serve", "--data", str(folder.data)),
            *("--port", "0", "--no-pages"),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

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
