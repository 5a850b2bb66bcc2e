"""A real `analyzer serve` for tests: its own process on loopback, started, killed, started again.

And what must be true of its folder whatever happened: every acknowledged original is intact, every
run is whole or absent.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx

from analyzer import queries
from analyzer.store.verify import verify
from schemas.run_directory import file_sha256

ROOT = Path(__file__).resolve().parents[2]
# Long enough for a machine that is busy with other work; no test takes it on one that is not.
PATIENCE_S = 240.0

# The command with the clock of the process moved on, as if its host lived at another date.
_AT_ANOTHER_DATE = """
import sys, time
real = time.time
time.time = lambda: real() + OFFSET_S
time.time_ns = lambda: int((real() + OFFSET_S) * 1e9)
from analyzer.cli import main
sys.exit(main())
"""


def at_another_date(offset_s: float) -> str:
    """A program for `TeamServer.start` whose clock is so far ahead, or behind."""
    return _AT_ANOTHER_DATE.replace("OFFSET_S", str(offset_s))


def free_port() -> int:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return bound.getsockname()[1]


def analyzer(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """The command line, in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "analyzer.cli", *arguments],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


def make_token(place: Path, team: str = "perf", scopes: str = "upload,read,admin") -> str:
    """A token by the command line, of a server's folder or of a lake."""
    option = "--db" if place.suffix == ".toml" else "--data"
    done = analyzer("token", "create", option, str(place), "--team", team, "--scope", scopes)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def wait_for(condition: Callable[[], Any], what: str, patience_s: float = PATIENCE_S) -> Any:
    """The first true value of a condition; fails the test when it takes too long."""
    deadline = time.monotonic() + patience_s
    while time.monotonic() < deadline:
        if value := condition():
            return value
        time.sleep(0.02)
    raise AssertionError(f"waited {patience_s:.0f} s for {what}")


def packed(folder: Path) -> bytes:
    """A run directory as one plain tar."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for file in sorted(folder.iterdir()):
            info = tarfile.TarInfo(file.name)
            info.size = file.stat().st_size
            with file.open("rb") as stream:
                archive.addfile(info, stream)
    return out.getvalue()


def make_distinct_run(sample: Path, target: Path, number: int) -> Path:
    """A copy of a run directory that is a run of its own."""
    shutil.copytree(sample, target)
    manifest = json.loads((target / "manifest.json").read_text(encoding="utf-8"))
    manifest["run_id"], manifest["name"] = f"{number:032x}", f"run {number}"
    (target / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    return target


def gone(pid: int) -> bool:
    """Whether a process has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


class TeamServer:
    """A server process over a folder; started and killed as often as a test likes.

    Args:
        port: Of every start; else each takes a free one, and `url` is known when it has started.
    """

    def __init__(self, data: Path, *options: str, db: bool = False, port: int = 0) -> None:
        self.data = data
        self._where = ("--db" if db else "--data", str(data))
        self._options = options
        self.port = port
        self.url = f"http://127.0.0.1:{port}" if port else ""
        self.token: str | None = None  # of questions that the server itself is asked here
        self.log: list[dict[str, Any]] = []
        self.stderr: list[str] = []
        self.process: subprocess.Popen[str] | None = None

    # -- start and end

    def start(
        self,
        *options: str,
        before: Callable[[], None] | None = None,
        program: str | None = None,
    ) -> TeamServer:
        """Start and wait until it is ready.

        Args:
            before: Run in the new process first.
            program: Run in the place of the command, with its arguments.
        """
        given = (*self._options, *options)
        self.log, self.stderr = [], []
        self.process = process = subprocess.Popen(
            [
                *(sys.executable, *(("-c", program) if program else ("-m", "analyzer.cli"))),
                *("serve", *self._where),
                *(("--port", str(self.port)) if "--port" not in given else ()),
                *(("--workers", "1") if "--workers" not in given else ()),
                *(("--no-pages",) if "--pages" not in given else ()),
                *(("--local",) if "--host" not in given else ()),
                *(option for option in given if option != "--pages"),
            ],
            cwd=ROOT,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=before,
            env={k: v for k, v in os.environ.items() if not k.startswith("STREAMLIT_")},
            start_new_session=True,
        )
        threading.Thread(target=self._listen, args=(process,), daemon=True).start()
        wait_for(lambda: self.event("serving") or process.poll() is not None, "a start")
        serving = self.event("serving")
        assert serving, f"the server ended with {process.poll()}: {self.stderr}"
        self.url = serving["url"]
        wait_for(self._is_ready, "readiness")
        return self

    def _is_ready(self) -> bool:
        try:
            return httpx.get(self.url + "/readyz", trust_env=False).status_code == 200
        except httpx.TransportError:
            return False

    def _listen(self, process: subprocess.Popen[str]) -> None:
        assert process.stderr is not None
        for line in process.stderr:
            self.stderr.append(line)
            if line.startswith("{"):
                self.log.append(json.loads(line))

    def event(self, name: str) -> dict[str, Any] | None:
        """The last line of the log of a kind."""
        return next((line for line in reversed(self.log) if line["event"] == name), None)

    def kill(self, with_workers: bool = False) -> None:
        """End it as a power cut or the kernel would; its workers see that it is gone, or go too."""
        if self.process is None:
            return
        if self.process.poll() is None:
            if with_workers:
                os.killpg(self.process.pid, signal.SIGKILL)
            else:
                self.process.kill()
        self.process.wait(PATIENCE_S)

    def stop(self, patience_s: float = PATIENCE_S) -> int:
        """SIGTERM, as an operator's service manager sends it; returns the exit code."""
        if self.process is None:
            return 0
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(patience_s)
        finally:
            self.process.kill()

    def workers(self) -> list[int]:
        """Its processes that convert."""
        assert self.process is not None
        found: list[int] = []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            with suppress(OSError):
                stat = (entry / "stat").read_text().rpartition(")")[2].split()
                command = (entry / "cmdline").read_bytes()
                if int(stat[1]) == self.process.pid and b"analyzer.server.jobs.worker" in command:
                    found.append(int(entry.name))
        return found

    # -- questions

    def get(self, path: str) -> Any:
        """The JSON at a path of the API."""
        with self.client(self.token) as client:
            answer = client.get(f"/api/v1/{path}")
        assert answer.status_code == 200, answer.text
        return answer.json()

    def runs(self) -> list[dict[str, Any]]:
        return self.get("runs?limit=1000")["runs"]

    def wait_for_jobs(self, patience_s: float = 2 * PATIENCE_S) -> dict[str, int]:
        """Wait until nothing is queued or running; returns how many jobs ended how."""

        def ended() -> dict[str, int] | None:
            counts = self.get("jobs?limit=1")["counts"]
            return counts if counts["queued"] + counts["running"] == 0 else None

        return wait_for(ended, "the end of all jobs", patience_s)

    def interrupted(self) -> int:
        """How many conversions ran when it ended; only while it is not running."""
        with sqlite3.connect(f"file:{self.data / 'server.sqlite'}?mode=ro", uri=True) as state:
            (row,) = state.execute("SELECT count(*) FROM jobs WHERE state = 'running'").fetchall()
        return row[0]

    # -- what must be true

    def store(self, team: str = "default") -> Path:
        return self.data / "teams" / team / "store.duckdb"

    def check_originals(self, acknowledged: Iterable[str], team: str = "default") -> None:
        """Every acknowledged original lies under its hash, and is it."""
        for digest in acknowledged:
            blob = self.data / "teams" / team / "blobs" / digest
            assert blob.is_file(), f"acknowledged and lost: {digest}"
            assert file_sha256(blob) == digest

    def check_store(self, team: str = "default") -> list[str]:
        """The store is sound: each run is whole; returns the run ids, none of them twice."""
        store = self.store(team)
        if not store.exists():
            return []
        assert verify(store) == []
        with queries.connect(store) as connection:
            found = [run["run_id"] for run in queries.runs(connection).to_dicts()]
        assert len(found) == len(set(found))
        return found

    def client(self, token: str | None = None, **options: Any) -> TeamClient:
        return TeamClient(self.url, token, **options)


class TeamClient(httpx.Client):
    """Speaks to a server as one token."""

    def __init__(self, url: str, token: str | None = None, **options: Any) -> None:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        headers |= options.pop("headers", {})
        options = {"timeout": PATIENCE_S, **options}
        super().__init__(base_url=url, headers=headers, trust_env=False, **options)

    def announce(self, content: bytes, **fields: Any) -> httpx.Response:
        body = {"sha256": sha256(content), "size": len(content), **fields}
        return self.post("/api/v1/uploads", json=body)

    def send_bytes(self, url: str, content: bytes, offset: int = 0) -> httpx.Response:
        return self.patch(
            str(self.base_url.join(url)),
            content=content,
            headers={
                "Content-Type": "application/offset+octet-stream",
                "Upload-Offset": str(offset),
                "Tus-Resumable": "1.0.0",
            },
        )

    def upload(self, content: bytes, **fields: Any) -> dict[str, Any]:
        """Announce and send; returns the job when it has ended."""
        answer = self.announce(content, **fields)
        assert answer.status_code in (200, 201), answer.text
        if answer.status_code == 201:
            offset = answer.json()["offset"]
            sent = self.send_bytes(answer.json()["url"], content[offset:], offset)
            assert sent.status_code == 204, sent.text
            assert sent.headers["Hostbound-Sha256"] == sha256(content)
        return self.job_of(content)

    def job_of(self, content: bytes) -> dict[str, Any]:
        """The job of a content when it has ended."""

        def ended() -> dict[str, Any] | None:
            upload = self.get(f"/api/v1/uploads/{sha256(content)}").json()
            ended = upload["state"] in ("done", "failed")
            return self.get(f"/api/v1/jobs/{upload['job_id']}").json() if ended else None

        return wait_for(ended, "a job")

    def run_ids(self) -> list[str]:
        answer = self.get("/api/v1/runs")
        assert answer.status_code == 200, answer.text
        return [run["run_id"] for run in answer.json()["runs"]]


def trace_bytes(launches: int = 3, name: str = "gemm", seed: int = 0) -> bytes:
    """A small sound trace as JSON: op, call and kernel for each launch. `seed` makes it another."""
    events: list[str] = []
    kernel = json.dumps(name)
    for i in range(launches):
        t = 10 + 40 * i + seed / 1000
        events += (
            f'{{"ph":"X","cat":"cpu_op","name":"aten::mm","pid":1,"tid":1,"ts":{t:.3f},"dur":20}}',
            f'{{"ph":"X","cat":"cuda_runtime","name":"cudaLaunchKernel","pid":1,"tid":1,'
            f'"ts":{t + 5:.3f},"dur":5,"args":{{"correlation":{i + 1}}}}}',
            f'{{"ph":"X","cat":"kernel","name":{kernel},"pid":0,"tid":7,"ts":{t + 15:.3f},'
            f'"dur":9,"args":{{"correlation":{i + 1},"device":0,"stream":7}}}}',
        )
    return ('{"schemaVersion":1,"traceEvents":[' + ",\n".join(events) + "]}").encode()
