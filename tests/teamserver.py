"""A real `analyzer serve` for tests: its own process, on a free port of loopback."""

from __future__ import annotations

import hashlib
import io
import json
import os
import signal
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx

ROOT = Path(__file__).resolve().parent.parent
PATIENCE_S = 60.0


def make_token(data: Path, team: str = "perf", scopes: str = "upload,read,admin") -> str:
    """A token by the command line."""
    done = subprocess.run(
        [
            *(sys.executable, "-m", "analyzer.cli", "token", "create"),
            *("--data", str(data), "--team", team, "--scope", scopes),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return done.stdout.strip()


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def wait_for(condition: Callable[[], Any], what: str, patience_s: float = PATIENCE_S) -> Any:
    """The first true value of a condition; fails the test when it takes too long."""
    deadline = time.monotonic() + patience_s
    while time.monotonic() < deadline:
        if value := condition():
            return value
        time.sleep(0.05)
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


class TeamServer:
    """A server process over a folder; started and killed as often as a test likes."""

    def __init__(self, data: Path, *options: str, db: bool = False) -> None:
        self.data = data
        self._where = ("--db" if db else "--data", str(data))
        self._options = options
        self.log: list[dict[str, Any]] = []
        self.stderr: list[str] = []
        self.process: subprocess.Popen[str] | None = None
        self.url = ""

    def start(
        self, *options: str, limit_files: int | None = None, program: str | None = None
    ) -> TeamServer:
        """Start and wait until it is ready; `program` is run in the place of the command."""

        def confine() -> None:
            if limit_files is not None:
                import resource

                resource.setrlimit(resource.RLIMIT_FSIZE, (limit_files, limit_files))

        given = (*self._options, *options)
        self.log, self.stderr = [], []
        self.process = subprocess.Popen(
            [
                *(sys.executable, *(("-c", program) if program else ("-m", "analyzer.cli"))),
                *("serve", *self._where),
                *(("--port", "0") if "--port" not in given else ()),
                *(("--workers", "1") if "--workers" not in given else ()),
                *(("--no-pages",) if "--pages" not in given else ()),
                *(option for option in given if option != "--pages"),
            ],
            cwd=ROOT,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=confine if limit_files is not None else None,
            env={k: v for k, v in os.environ.items() if not k.startswith("STREAMLIT_")},
        )
        threading.Thread(target=self._listen, args=(self.process,), daemon=True).start()
        wait_for(lambda: self.event("serving") or self.process.poll() is not None, "a start")
        serving = self.event("serving")
        assert serving, f"the server ended with {self.process.poll()}: {self.stderr}"
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

    def kill(self) -> None:
        """SIGKILL: no time to do anything."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()

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

    def client(self, token: str | None = None, **options: Any) -> TeamClient:
        return TeamClient(self.url, token, **options)


class TeamClient(httpx.Client):
    """Speaks to a server as one token."""

    def __init__(self, url: str, token: str | None = None, **options: Any) -> None:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        headers |= options.pop("headers", {})
        super().__init__(
            base_url=url, headers=headers, timeout=PATIENCE_S, trust_env=False, **options
        )

    def announce(self, content: bytes, **fields: Any) -> httpx.Response:
        body = {"sha256": sha256(content), "size": len(content), **fields}
        return self.post("/api/v1/uploads", json=body)

    def send_bytes(self, url: str, content: bytes, offset: int = 0) -> httpx.Response:
        return self.patch(
            url,
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
        return [run["run_id"] for run in self.get("/api/v1/runs").json()["runs"]]


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
