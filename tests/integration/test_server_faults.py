"""Whatever ends a server, its workers or its disk: nothing that it acknowledged is lost, every run
is whole or absent, and it goes on when it is back.

Moments are random within the phase that a test is about, which is waited for: no test depends on
how fast the machine is. The seeds are fixed, the scheduler is not.
"""

from __future__ import annotations

import os
import queue
import random
import resource
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import duckdb
import pytest

from analyzer.server.check import check
from analyzer.store import open_store
from schemas.endpoint import parse_endpoint
from schemas.packing import Archive, open_archive
from schemas.upload_client import GaveUp, Stored, Uploader
from support.team_server import (
    PATIENCE_S,
    TeamServer,
    at_another_date,
    free_port,
    gone,
    make_distinct_run,
    wait_for,
)

pytest.importorskip("fastapi")

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("faults"), pytest.mark.timeout(900)]

SAMPLE = "gpt2-bs8-s512"
DAY_S = 86_400.0


class Client(threading.Thread):
    """Sends archives in turn, as the collector does but with shorter waits.

    `acknowledged` are the hashes that the server has named; `pieces` counts answers of the server.
    """

    def __init__(self, url: str, archives: Iterable[Archive], piece_bytes: int = 1 << 30) -> None:
        super().__init__(daemon=True)
        self.acknowledged: list[str] = []
        self.pieces = 0
        self.error: BaseException | None = None
        self._archives = archives
        self._uploader = Uploader(
            parse_endpoint(url, None),
            2 * PATIENCE_S,
            piece_bytes=piece_bytes,
            progress=self._count,
            sleep=lambda seconds: time.sleep(seconds / 20),
        )

    def _count(self, done: int, total: int) -> None:
        self.pieces += 1

    def run(self) -> None:
        try:
            for archive in self._archives:
                stored = self._uploader.send(archive, archive.sha256(), {})
                self.acknowledged.append(stored.sha256)
        except BaseException as error:
            self.error = error

    def finish(self) -> None:
        self.join(2 * PATIENCE_S)
        assert not self.is_alive(), "the client did not end"
        if self.error is not None:
            raise self.error


class Supply:
    """Archives for a client, as many as it turns out to take: that depends on the machine's speed.

    `given` are those that it has been given so far.
    """

    def __init__(self, samples_dir: Path, folder: Path) -> None:
        self.given: list[Archive] = []
        self._samples_dir = samples_dir
        self._folder = folder
        self._waiting: queue.SimpleQueue[Archive | None] = queue.SimpleQueue()

    def __iter__(self) -> Iterator[Archive]:
        return iter(self._waiting.get, None)

    def more(self, count: int) -> None:
        for archive in make_archives(self._samples_dir, self._folder, count, len(self.given)):
            self.given.append(archive)
            self._waiting.put(archive)

    def end(self) -> None:
        self._waiting.put(None)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[TeamServer]:
    live = TeamServer(tmp_path / "data", "--workers", "2", port=free_port())
    yield live
    live.kill(with_workers=True)


def make_archives(samples_dir: Path, folder: Path, count: int, first: int = 0) -> list[Archive]:
    return [
        open_archive(make_distinct_run(samples_dir / SAMPLE, folder / f"run-{number}", number))
        for number in range(first, first + count)
    ]


def halt_at_work(
    server: TeamServer,
    supply: Supply,
    dice: random.Random,
    phase: Callable[[], object],
    longest_s: float,
) -> list[int]:
    """Stop the server and its workers as they are, at a random moment at which conversions run.

    Args:
        phase: Something that is another value when the phase has begun in which the moment is.
        longest_s: From then on; less each time that it turned out to be too late.

    Returns:
        The workers.
    """
    assert server.process is not None
    while True:
        before = phase()
        supply.more(3)
        wait_for(lambda before=before: phase() != before, "the phase to be met")
        time.sleep(dice.random() * longest_s)
        halted = [server.process.pid, *server.workers()]
        for pid in halted:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
        if server.interrupted():
            return halted[1:]
        let_go(halted)
        longest_s /= 2


def let_go(halted: Iterable[int]) -> None:
    for pid in halted:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def kill_and_check(server: TeamServer, client: Client, with_workers: bool) -> None:
    """Kill it; whatever it had acknowledged by then is on the disk, and the store is sound."""
    left = server.workers()
    server.kill(with_workers)
    let_go(left)  # if they were halted
    wait_for(lambda: all(gone(pid) for pid in left), "workers ended")
    server.check_originals(list(client.acknowledged))
    server.check_store()


def finish_and_check(server: TeamServer, client: Client, archives: list[Archive]) -> None:
    """Let everything end; each archive is one run, and nothing has failed."""
    client.finish()
    assert client.acknowledged == [archive.sha256() for archive in archives]
    counts = server.wait_for_jobs()
    assert counts["failed"] == 0, server.get("jobs")["jobs"]
    names = sorted(run["name"] for run in server.runs())
    assert names == sorted(archive.name for archive in archives)
    server.stop()
    server.check_originals(client.acknowledged)
    assert len(server.check_store()) == len(archives)
    assert check(server.data) == []


def test_a_server_killed_while_uploads_come_in_loses_nothing(
    server: TeamServer, samples_dir: Path, tmp_path: Path
) -> None:
    dice = random.Random(1)
    archives = make_archives(samples_dir, tmp_path, 4)
    pieces = 30
    client = Client(server.url, archives, archives[0].size // pieces)
    server.start()
    client.start()
    for _ in range(4):
        moment = client.pieces + dice.randrange(1, pieces)
        wait_for(lambda m=moment: client.pieces >= m or not client.is_alive(), "pieces passed")
        time.sleep(dice.random() * 0.003)
        kill_and_check(server, client, with_workers=dice.random() < 0.5)
        server.start()
    finish_and_check(server, client, archives)


def conversions_begun(server: TeamServer) -> int:
    return sum(line["event"] == "job started" for line in list(server.log))


@pytest.mark.parametrize("with_workers", [False, True])
def test_a_server_killed_while_it_converts_leaves_whole_runs_and_converts_the_rest(
    server: TeamServer, samples_dir: Path, tmp_path: Path, with_workers: bool
) -> None:
    dice = random.Random(2)
    supply = Supply(samples_dir, tmp_path)
    client = Client(server.url, supply)
    server.start()
    client.start()
    for _ in range(3):
        # A second passes until a worker is ready.
        halt_at_work(server, supply, dice, lambda: conversions_begun(server), 1.4)
        kill_and_check(server, client, with_workers)
        assert server.interrupted()
        server.start()
    supply.end()
    finish_and_check(server, client, supply.given)


@pytest.mark.parametrize("with_workers", [False, True])
def test_a_server_killed_while_a_run_is_committed_leaves_it_whole_or_absent(
    server: TeamServer, samples_dir: Path, tmp_path: Path, with_workers: bool
) -> None:
    """A commit is on its way while DuckDB writes its log beside the store, and into the store."""
    dice = random.Random(3)
    supply = Supply(samples_dir, tmp_path)
    client = Client(server.url, supply)
    store = server.store()

    def committed() -> object:
        # The first time it is the making of the store that is interrupted.
        log = store.with_name("store.duckdb.wal")
        return written(store), written(log), any(store.parent.glob(".*.new"))

    server.start()
    client.start()
    for _ in range(4):
        halt_at_work(server, supply, dice, committed, 0.07)
        kill_and_check(server, client, with_workers)
        assert server.interrupted()
        server.start()
    supply.end()
    finish_and_check(server, client, supply.given)


def test_what_a_killed_maker_of_a_store_left_hinders_nobody(
    server: TeamServer, samples_dir: Path, tmp_path: Path
) -> None:
    """A process with the number of the killed one makes the store anew; a server tidies up."""
    server.start()
    server.stop()
    folder = server.store().parent
    folder.mkdir(parents=True, exist_ok=True)
    half_made = folder / f".store.duckdb.{os.getpid()}.new"
    with duckdb.connect(str(half_made)) as connection:
        connection.execute("CREATE TABLE runs (x INTEGER)")
    shutil.copy(half_made, folder / ".store.duckdb.1.new")
    with open_store(server.store()).writing():
        pass
    assert not half_made.exists()

    (archive,) = make_archives(samples_dir, tmp_path, 1)
    client = Client(server.url, [archive])
    server.start()
    client.start()
    finish_and_check(server, client, [archive])
    assert [path.name for path in folder.glob(".*")] == []


def written(path: Path) -> tuple[int, int]:
    """When a file was last written, and its size; (0, 0) without one."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return 0, 0
    return found.st_mtime_ns, found.st_size


def test_a_killed_worker_costs_a_conversion_an_attempt_and_nothing_else(
    server: TeamServer, samples_dir: Path, tmp_path: Path
) -> None:
    dice = random.Random(1)
    supply = Supply(samples_dir, tmp_path)
    client = Client(server.url, supply)
    server.start()
    client.start()
    kills = 0
    while kills < 2 or not server.event("worker ended"):  # a third time fails a conversion
        at_work = halt_at_work(server, supply, dice, lambda: conversions_begun(server), 1.2)
        assert server.process is not None
        for worker in at_work:
            os.kill(worker, signal.SIGKILL)
        let_go([server.process.pid])
        kills += 1
    supply.end()
    finish_and_check(server, client, supply.given)


def test_a_client_that_falls_asleep_in_the_middle_goes_on_when_it_wakes_up(
    server: TeamServer, samples_dir: Path, tmp_path: Path
) -> None:
    (archive,) = make_archives(samples_dir, tmp_path, 1)
    server.start("--slow-seconds", "1")
    slept = 0

    def read(offset: int = 0, length: int | None = None) -> Iterator[bytes]:
        nonlocal slept
        for piece in archive.read(offset, length):
            yield piece[:1000]
            if not slept:
                slept += 1
                wait_for(lambda: answered(server, 408), "the server has given it up")
            yield piece[1000:]

    sleepy = SimpleNamespace(**{name: getattr(archive, name) for name in vars(archive)}, read=read)
    uploader = Uploader(parse_endpoint(server.url, None), PATIENCE_S)
    stored = uploader.send(cast("Archive", sleepy), archive.sha256(), {})

    assert slept == 1
    assert answered(server, 408)
    server.check_originals([stored.sha256])


def test_a_disk_that_is_full_stops_uploads_and_loses_nothing(
    server: TeamServer, samples_dir: Path, tmp_path: Path
) -> None:
    """The disk fills up in the middle of an upload, and has room again later."""
    archives = make_archives(samples_dir, tmp_path, 2)
    trace = tmp_path / "large.json"
    trace.write_bytes(b"[" + os.urandom(8 << 20))
    with small_disk(server.data, 100 << 20):
        server.start()
        first = Client(server.url, archives[:1])
        first.start()
        first.finish()
        server.wait_for_jobs()

        client = Client(server.url, [open_archive(trace), archives[1]], 200_000)
        client.start()
        wait_for(lambda: client.pieces > 5, "pieces passed")
        filler = fill(server.data)
        wait_for(
            lambda: any(line.get("status") == 507 for line in server.log),
            "the server says that it is full",
        )
        server.check_originals(first.acknowledged)
        assert len(server.runs()) == 1
        kill_and_check(server, client, with_workers=True)
        filler.unlink()
        server.start()

        client.finish()
        counts = server.wait_for_jobs()
        assert (counts["done"], counts["failed"]) == (2, 1)  # the large one is no trace
        server.stop()
        server.check_originals(first.acknowledged + client.acknowledged)
        assert len(server.check_store()) == 2


@pytest.mark.parametrize("killed", [False, True])
def test_a_disk_that_fills_up_while_runs_are_converted_leaves_whole_runs(
    server: TeamServer, samples_dir: Path, tmp_path: Path, killed: bool
) -> None:
    """With room again, with or without a new start, each run is converted."""
    archives = make_archives(samples_dir, tmp_path, 6)
    with small_disk(server.data, 100 << 20):
        server.start("--workers", "1")
        client = Client(server.url, archives)
        client.start()
        halted = wait_for(server.workers, "a conversion")
        os.kill(halted[0], signal.SIGSTOP)  # until the disk is full
        client.finish()
        filler = fill(server.data)
        let_go(halted)
        wait_for(
            lambda: any(" full" in line for line in server.stderr), "the disk is seen to be full"
        )
        server.check_originals(client.acknowledged)
        if killed:
            kill_and_check(server, client, with_workers=False)
        filler.unlink()
        if killed:
            server.start()

        server.wait_for_jobs()
        for job in server.get("jobs?state=failed")["jobs"]:  # it was tried while there was no room
            retry(server, job["id"])
        finish_and_check(server, client, archives)


def test_a_limit_on_file_sizes_is_told_as_a_full_disk_and_lifted_later(
    server: TeamServer, samples_dir: Path, tmp_path: Path
) -> None:
    trace = tmp_path / "large.json"
    trace.write_bytes(b"[" + os.urandom(40 << 20))
    archives = make_archives(samples_dir, tmp_path, 1)
    limit = 32 << 20
    server.start(before=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)))

    archive = open_archive(trace)
    uploader = Uploader(parse_endpoint(server.url, None), 2.0, piece_bytes=1 << 20)
    with pytest.raises(GaveUp, match="disk is full"):
        uploader.send(archive, archive.sha256(), {})
    client = Client(server.url, archives)
    client.start()
    client.finish()
    kill_and_check(server, client, with_workers=True)

    server.start()
    stored: Stored = uploader.send(archive, archive.sha256(), {})
    assert stored.sent_bytes <= archive.size - limit
    server.check_originals([stored.sha256, *client.acknowledged])


@pytest.mark.parametrize("years", [-20, 20])
def test_a_server_that_lives_at_another_date_takes_uploads_and_keeps_them(
    server: TeamServer, samples_dir: Path, tmp_path: Path, years: int
) -> None:
    """The clocks of client and server are apart, and the server's jumps from start to start."""
    archives = make_archives(samples_dir, tmp_path, 4)
    client = Client(server.url, archives, archives[0].size // 20)
    server.start(program=at_another_date(years * 365 * DAY_S))
    client.start()
    wait_for(lambda: client.pieces > 30, "pieces passed")
    kill_and_check(server, client, with_workers=True)
    server.start(program=at_another_date(-years * 365 * DAY_S))
    wait_for(lambda: client.pieces > 60, "pieces passed")
    kill_and_check(server, client, with_workers=True)
    server.start()
    finish_and_check(server, client, archives)


def test_a_token_ends_by_the_servers_clock_alone(
    server: TeamServer, samples_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from analyzer.cli import main
    from schemas.upload_client import Refused

    (archive,) = make_archives(samples_dir, tmp_path, 1)
    options = ["--data", str(server.data), "--team", "default", "--scope", "upload,read"]
    assert main(["token", "create", *options, "--expires", "2"]) == 0
    server.token = capsys.readouterr().out.strip()
    uploader = Uploader(parse_endpoint(server.url, server.token), PATIENCE_S)

    server.start(program=at_another_date(2 * DAY_S + 5))
    with pytest.raises(Refused, match="401"):
        uploader.send(archive, archive.sha256(), {})
    server.stop()
    server.start(program=at_another_date(2 * DAY_S - 600))
    assert uploader.send(archive, archive.sha256(), {}).sha256 == archive.sha256()


def answered(server: TeamServer, status: int) -> bool:
    """Whether a request was answered so."""
    return any(line.get("status") == status for line in server.log)


@contextmanager
def small_disk(place: Path, size: int) -> Iterator[None]:
    """A file system of its own at a folder; the test is skipped where none can be mounted."""
    place.mkdir(exist_ok=True)
    options = ["-t", "tmpfs", "-o", f"size={size},mode=700", "tmpfs", str(place)]
    try:
        done = subprocess.run(["mount", *options], capture_output=True, check=False)
    except OSError:
        pytest.skip("no mount here")
    if done.returncode != 0:
        pytest.skip("a small file system can be mounted by root only")
    try:
        yield
    finally:
        done = subprocess.run(["umount", "--lazy", str(place)], capture_output=True, check=False)
        assert done.returncode == 0, done.stderr


def fill(place: Path) -> Path:
    """Take all room that is left."""
    path = place / "filler"
    with path.open("wb", buffering=0) as stream, suppress(OSError):
        while stream.write(bytes(1 << 20)):
            pass
    with path.open("ab", buffering=0) as stream, suppress(OSError):
        while stream.write(bytes(512)):
            pass
    return path


def retry(server: TeamServer, job_id: str) -> None:
    endpoint = parse_endpoint(server.url, None)
    assert endpoint.request("POST", f"/api/v1/jobs/{job_id}/retry").status == 200
