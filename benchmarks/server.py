"""How does a team server hold up? Many upload and read at once, then one upload of 2 GB.

Load: 8 uploaders with 20 runs each, sent by the collector's own client, while 5 readers list,
report, compare and query what is there; who is told to come back later (429) does, and the wait is
part of its time. Nothing may be lost or doubled, no answer be an error:
otherwise the script says so, writes nothing and ends with 1. Then one large file on an idle server;
its memory is that of the server's process, which takes the bytes (a worker that converts is another
process). The file is no trace, so that no conversion disturbs. Client and server share the host.

    python -m benchmarks.server
    python -m benchmarks.server --uploaders 2 --runs 3 --large-bytes 100000000
"""

from __future__ import annotations

import argparse
import http.client
import itertools
import json
import os
import random
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

# This folder holds a collector.py of its own; the package is meant.
from analyzer import queries
from analyzer.store.verify import verify
from benchmarks import result_file
from schemas.endpoint import Answer, Endpoint
from schemas.packing import Archive, open_archive
from schemas.run_directory import file_sha256
from schemas.upload_client import Uploader

ROOT = Path(__file__).resolve().parent.parent
SAMPLES = ROOT / "analyzer" / "samples"
SQL = (
    "SELECT names.name, count(*) AS events, sum(dur_ns) AS device_ns FROM device_events "
    "JOIN names USING (run_id, name_id) GROUP BY ALL ORDER BY device_ns DESC LIMIT 20"
)


@dataclass(frozen=True)
class Watched(Endpoint):
    """An endpoint that counts the statuses it is answered with."""

    statuses: Counter[int] = field(default_factory=Counter[int], compare=False)

    def request(self, method: str, path: str, **more: Any) -> Answer:  # type: ignore[override]
        answer = super().request(method, path, **more)
        self.statuses[answer.status] += 1
        return answer


class Server:
    """`analyzer serve` on a folder of its own."""

    def __init__(self, data: Path, workers: int) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port: int = free.getsockname()[1]
        self.data = data
        self.log = data.with_name("server.log")
        command = [sys.executable, "-m", "analyzer.cli", "serve", "--data", str(data)]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [
                    *(*command, "--no-pages", "--local"),
                    *("--port", str(self.port), "--workers", str(workers)),
                ],
                cwd=ROOT,
                stdout=log,
                stderr=log,
            )
        self.endpoint = Watched(f"http://127.0.0.1:{self.port}")
        for _ in range(600):
            try:
                if self.endpoint.request("GET", "/readyz").status == 200:
                    return
            except Exception:  # not listening yet
                time.sleep(0.1)
        raise SystemExit(f"the server did not start; see {self.log}")

    def get(self, path: str) -> Any:
        return self.endpoint.request("GET", f"/api/v1/{path}").json()

    def wait_for_jobs(self) -> dict[str, int]:
        while True:
            counts = self.get("jobs?limit=1")["counts"]
            if counts["queued"] + counts["running"] == 0:
                return counts
            time.sleep(0.1)

    def memory(self, name: str) -> int:
        """VmRSS or VmHWM of the server's process, in bytes."""
        text = Path(f"/proc/{self.process.pid}/status").read_text(encoding="ascii")
        (line,) = [line for line in text.splitlines() if line.startswith(f"{name}:")]
        return int(line.split()[1]) * 1024

    def forget_peak(self) -> None:
        """Begin to measure the peak of memory anew."""
        Path(f"/proc/{self.process.pid}/clear_refs").write_text("5", encoding="ascii")

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(60)


@contextmanager
def serving(folder: Path, workers: int) -> Iterator[Server]:
    server = Server(folder / "data", workers)
    try:
        yield server
    finally:
        server.stop()


def make_runs(folder: Path, count: int) -> list[Archive]:
    """Runs of their own: the samples in turn, each with its own id and name."""
    samples = sorted(path.parent for path in SAMPLES.glob("*/manifest.json"))
    made = []
    for number, sample in zip(range(count), itertools.cycle(samples), strict=False):
        target = folder / f"run-{number}"
        shutil.copytree(sample, target)
        manifest = json.loads((target / "manifest.json").read_text(encoding="utf-8"))
        manifest["run_id"], manifest["name"] = f"{number:032x}", f"run {number}"
        (target / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
        made.append(open_archive(target))
    return made


@dataclass
class Load:
    """What was measured, in seconds, and what went wrong."""

    uploads: list[float] = field(default_factory=list[float])
    reads: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list[float]))
    statuses: Counter[int] = field(default_factory=Counter[int])
    busy: Counter[str] = field(default_factory=Counter[str])
    acknowledged: list[str] = field(default_factory=list[str])
    errors: list[str] = field(default_factory=list[str])


def upload_all(server: Server, archives: list[Archive], load: Load) -> None:
    """One uploader: its runs in turn."""
    endpoint = replace(server.endpoint, statuses=load.statuses)
    uploader = Uploader(endpoint, 300.0)
    for archive in archives:
        began = time.perf_counter()
        try:
            stored = uploader.send(archive, archive.sha256(), {})
        except Exception as error:
            load.errors.append(f"{archive.path.name}: {error}")
            return
        load.uploads.append(time.perf_counter() - began)
        load.acknowledged.append(stored.sha256)


def read_all(server: Server, seed: int, load: Load, ended: threading.Event) -> None:
    """One reader: asks for what is there, until told to end."""
    dice = random.Random(seed)
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=120)

    def ask(kind: str, method: str, path: str, body: Any = None) -> Any:
        began = time.perf_counter()
        content = None if body is None else json.dumps(body)
        headers = {"Content-Type": "application/json"}
        while True:
            connection.request(method, f"/api/v1/{path}", content, headers)
            answer = connection.getresponse()
            text = answer.read()
            if answer.status != 429:
                break
            load.busy[kind] += 1
            time.sleep(float(answer.headers.get("Retry-After", "1")))
        load.reads[kind].append(time.perf_counter() - began)
        if answer.status != 200:
            raise RuntimeError(f"{method} {path} was answered {answer.status}: {text[:200]!r}")
        return json.loads(text)

    while not ended.is_set():
        try:
            listed = ask("runs", "GET", "runs?limit=1000")
            ids = [run["run_id"] for run in listed["runs"]]
            if len(ids) < 2:
                time.sleep(0.1)
                continue
            first, second = dice.sample(ids, 2)
            ask("report", "GET", f"runs/{first}/report")
            ask("compare", "GET", f"compare?runs={first},{second}")
            ask("sql", "POST", "sql", {"sql": SQL})
        except Exception as error:
            load.errors.append(f"reader {seed}: {type(error).__name__}: {error}")
            return


def measure_load(server: Server, archives: list[Archive], uploaders: int, readers: int) -> Any:
    """Upload and read at once; returns the load, seconds to the last upload and the last run."""
    load, ended = Load(), threading.Event()
    reading = [
        threading.Thread(target=read_all, args=(server, seed, load, ended))
        for seed in range(readers)
    ]
    sending = [
        threading.Thread(target=upload_all, args=(server, archives[n::uploaders], load))
        for n in range(uploaders)
    ]
    began = time.perf_counter()
    for thread in [*reading, *sending]:
        thread.start()
    for thread in sending:
        thread.join()
    uploaded = time.perf_counter() - began
    server.wait_for_jobs()
    converted = time.perf_counter() - began
    ended.set()
    for thread in reading:
        thread.join()
    return load, uploaded, converted


def check(server: Server, archives: list[Archive], load: Load) -> list[str]:
    """What was lost, doubled or answered with an error; empty if nothing was."""
    wrong = list(load.errors)
    wrong += [f"{n} answers were {status}" for status, n in load.statuses.items() if status >= 400]
    expected = [archive.sha256() for archive in archives]
    if sorted(load.acknowledged) != sorted(expected):
        wrong.append(f"{len(load.acknowledged)} of {len(expected)} uploads were acknowledged")
    counts = server.wait_for_jobs()
    if counts["done"] != len(archives):
        wrong.append(f"conversions ended as {counts}")
    names = Counter(run["name"] for run in server.get("runs?limit=1000")["runs"])
    if names != Counter(archive.name for archive in archives):
        wrong.append(f"{names.total()} runs, {len(names)} of them different, are in the store")
    blobs = server.data / "teams" / "default" / "blobs"
    wrong += [f"{h} is not intact" for h in expected if file_sha256(blobs / h) != h]
    return wrong


def measure_large(server: Server, path: Path) -> tuple[float, int, dict[str, int]]:
    """Send one large file; returns seconds, bytes and the server's memory on the way."""
    archive = open_archive(path)
    digest = archive.sha256()
    memory = {"before": server.memory("VmRSS")}
    server.forget_peak()
    began = time.perf_counter()
    Uploader(server.endpoint, 300.0).send(archive, digest, {})
    seconds = time.perf_counter() - began
    memory["peak"] = server.memory("VmHWM")
    server.wait_for_jobs()
    memory["after"] = server.memory("VmRSS")
    return seconds, archive.size, memory


def write_large(path: Path, size: int) -> None:
    """A file that no compression makes smaller, and that is no trace."""
    block = os.urandom(1 << 20)
    with path.open("wb") as stream:
        for number in range(size >> 20):
            stream.write(number.to_bytes(8, "big") + block[8:])
        stream.write(block[: size & 0xFFFFF])


def main() -> int:
    """Load, check, one large upload, write."""
    parser = argparse.ArgumentParser(description="A team server under load.")
    parser.add_argument("--uploaders", type=int, default=8)
    parser.add_argument("--runs", type=int, default=20, help="of each uploader")
    parser.add_argument("--readers", type=int, default=5)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--large-bytes", type=int, default=2_000_000_000)
    parser.add_argument("--folder", type=Path, help="where to work (default: a temporary folder)")
    arguments = parser.parse_args()
    others = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="hostbound-bench-", dir=arguments.folder) as name:
        folder = Path(name)
        archives = make_runs(folder, arguments.uploaders * arguments.runs)
        with serving(folder, arguments.workers) as server:
            load, uploaded, converted = measure_load(
                server, archives, arguments.uploaders, arguments.readers
            )
            wrong = check(server, archives, load)
            large = folder / "large.json"
            write_large(large, arguments.large_bytes)
            seconds, size, memory = measure_large(server, large)
        store = folder / "data" / "teams" / "default" / "store.duckdb"
        wrong += [problem.message for problem in verify(store)]
        with queries.connect(store) as connection:
            events = connection.execute(
                "SELECT (SELECT count(*) FROM ops) + (SELECT count(*) FROM calls) + "
                "(SELECT count(*) FROM device_events)"
            ).fetchall()[0][0]
    if wrong:
        print("\n".join(wrong), file=sys.stderr)
        return 1
    parameters = {
        "uploaders": arguments.uploaders,
        "runs": len(archives),
        "readers": arguments.readers,
        "workers": arguments.workers,
    }
    sent = sum(archive.size for archive in archives)
    rows: list[tuple[str, str, dict[str, Any], list[float]]] = [
        ("uploads", "1/s", parameters, [len(archives) / uploaded]),
        ("uploaded", "MB/s", parameters, [sent / uploaded / 1e6]),
        ("upload", "s", parameters, load.uploads),
        ("converted", "runs/s", parameters | {"events": events}, [len(archives) / converted]),
        *(
            ("asked_to_wait", "answers", parameters | {"question": k}, [load.busy[k]])
            for k in load.reads
        ),
        *(("read", "s", parameters | {"question": k}, v) for k, v in sorted(load.reads.items())),
        ("large_upload", "MB/s", {"bytes": size}, [size / seconds / 1e6]),
        *(("server_rss", "MB", {"bytes": size, "when": k}, [v / 1e6]) for k, v in memory.items()),
    ]
    results = [result_file.result(*row) for row in rows]
    result_file.print_table(results)
    environment = result_file.environment("duckdb", "fastapi", "uvicorn", "starlette")
    environment["load_average_before"] = others  # what else this host did
    cpus = environment["cpu_count"]
    print(result_file.write("server", f"{cpus}-core-cpu", environment, results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
