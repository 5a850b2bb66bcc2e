"""A real server in a process of its own: started, killed, started again on the same folder.

And what must be true of its folder whatever happened: every acknowledged original is intact, every
run is whole or absent.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from analyzer import queries
from analyzer.verify import verify
from schemas.run_directory import file_sha256

# The command with the clock of the process moved on, as if its host lived at another date.
_AT_ANOTHER_DATE = """
import sys, time
real, offset = time.time, float(sys.argv.pop(1))
time.time = lambda: real() + offset
time.time_ns = lambda: int((real() + offset) * 1e9)
from analyzer.cli import main
sys.exit(main())
"""


def free_port() -> int:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return bound.getsockname()[1]


def wait_until(claim: Callable[[], Any], what: str, limit_s: float = 60.0) -> Any:
    """Ask again and again until the claim holds; its value."""
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        if found := claim():
            return found
        time.sleep(0.02)
    raise AssertionError(f"in {limit_s} s it did not happen: {what}")


class LiveServer:
    """`analyzer serve --data` on a port that stays the same over restarts."""

    def __init__(self, data: Path, *options: str) -> None:
        self.data = data
        self.options = options
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.log = data.with_name(f"{data.name}.log")
        self.token: str | None = None
        self.process: subprocess.Popen[bytes] | None = None

    # -- start and end

    def start(
        self,
        *options: str,
        clock_offset_s: float = 0.0,
        before: Callable[[], None] | None = None,
        program: str | None = None,
    ) -> None:
        """Start it and wait until it is ready; `before` runs in the new process first.

        `program` is run instead of the command, with folder and port as its arguments.
        """
        command = [sys.executable, "-c", _AT_ANOTHER_DATE, str(clock_offset_s), "serve"]
        command += ["--data", str(self.data), "--port", str(self.port), "--no-pages"]
        if program is not None:
            command = [sys.executable, "-c", program, str(self.data), str(self.port)]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [*command, *self.options, *options],
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=before,
            )
        wait_until(self.is_ready, f"the server is ready; its log is {self.log}")

    def is_ready(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, self.log.read_text()[-3000:]
        try:
            with urllib.request.urlopen(f"{self.url}/readyz", timeout=5) as answer:
                return answer.status == 200
        except OSError:
            return False

    def kill(self, with_workers: bool = False) -> None:
        """End it as a power cut or the kernel would; its workers see that it is gone, or too."""
        if self.process is not None and self.process.poll() is None:
            if with_workers:
                os.killpg(self.process.pid, signal.SIGKILL)
            else:
                self.process.kill()
        self._gone()

    def stop(self) -> None:
        """End it as an operator does."""
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
        self._gone()

    def _gone(self) -> None:
        if self.process is not None:
            self.process.wait(60)
            self.process = None

    def workers(self) -> list[int]:
        """Its worker processes."""
        found = []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                command = (entry / "cmdline").read_bytes()
            except (OSError, ValueError, IndexError):
                continue
            if self.process and parent == self.process.pid and b"spawn_main" in command:
                found.append(int(entry.name))
        return found

    # -- questions

    def get(self, path: str) -> Any:
        request = urllib.request.Request(f"{self.url}/api/v1/{path}")
        if self.token:
            request.add_header("Authorization", f"Bearer {self.token}")
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)

    def runs(self) -> list[dict[str, Any]]:
        return self.get("runs?limit=1000")["runs"]

    def wait_for_jobs(self, limit_s: float = 120.0) -> dict[str, int]:
        """Wait until nothing is queued or running; returns how many jobs ended how."""

        def ended() -> dict[str, int] | None:
            counts = self.get("jobs?limit=1")["counts"]
            return counts if counts["queued"] + counts["running"] == 0 else None

        return wait_until(ended, "all jobs ended", limit_s)

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
        for sha256 in acknowledged:
            blob = self.data / "teams" / team / "blobs" / sha256
            assert blob.is_file(), f"acknowledged and lost: {sha256}"
            assert file_sha256(blob) == sha256

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


def make_distinct_run(sample: Path, target: Path, number: int) -> Path:
    """A copy of a run directory that is a run of its own."""
    shutil.copytree(sample, target)
    manifest = json.loads((target / "manifest.json").read_text(encoding="utf-8"))
    manifest["run_id"], manifest["name"] = f"{number:032x}", f"run {number}"
    (target / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    return target
