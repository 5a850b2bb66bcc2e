"""The distributed job that this process is one rank of, as torchrun tells it.

Each rank writes a run directory of its own into the job's folder, `rank-R`. `job.json` names all of
them and is written last, by the rank that finds the others' there.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import orjson

from collector.errors import CollectorError
from schemas.manifest import Job
from schemas.run_directory import JOB, read_manifest


@dataclass(frozen=True)
class Place:
    """Where a process stands in its job.

    Attributes:
        local_rank: On its host: the number of its GPU.
    """

    rank: int
    world_size: int
    local_rank: int

    def device(self, asked: str) -> str:
        """The device of this rank: `cuda:0`, the default, is each one's own."""
        return f"cuda:{self.local_rank}" if asked == "cuda:0" else asked

    def target(self, folder: Path) -> Path:
        """Where this rank's run directory goes."""
        return folder / f"rank-{self.rank}"


def place() -> Place | None:
    """The place that torchrun gave this process; None for a process alone.

    Raises:
        CollectorError: The variables contradict each other.
    """
    values = [os.environ.get(name, "") for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK")]
    if not values[0] or not values[1]:
        return None
    try:
        rank, world_size, local_rank = int(values[0]), int(values[1]), int(values[2] or values[0])
    except ValueError as error:
        raise CollectorError(
            f"RANK, WORLD_SIZE and LOCAL_RANK are {', '.join(values)}; start with torchrun."
        ) from error
    if not 0 <= rank < world_size:
        raise CollectorError(f"RANK is {rank} of WORLD_SIZE {world_size}; start with torchrun.")
    return Place(rank, world_size, local_rank) if world_size > 1 else None


@contextmanager
def joined(where: Place, device: str, tensor_parallel: int) -> Generator[Job, None, None]:
    """Join the ranks of a job for the time of a recording; yields what manifests say of it.

    Raises:
        CollectorError: The ranks cannot reach each other.
    """
    import torch
    import torch.distributed as dist  # deferred: only a job needs it

    if device.startswith("cuda"):
        torch.cuda.set_device(torch.device(device))
    try:
        dist.init_process_group("nccl" if device.startswith("cuda") else "gloo")
        told: list[str] = [secrets.token_hex(16)]
        dist.broadcast_object_list(told, 0)  # pyright: ignore[reportUnknownMemberType]
    except (RuntimeError, ValueError) as error:
        first = str(error).splitlines()[0]
        raise CollectorError(
            f"rank {where.rank} cannot join the others: {first} Start all with torchrun."
        ) from error
    try:
        yield Job(told[0], where.rank, where.world_size, tensor_parallel)
    finally:
        dist.destroy_process_group()


def of_script(where: Place, folder: Path) -> Job:
    """What manifests say of the job of a script, which joins its ranks itself.

    The id is made of what all ranks have in common.
    """
    names = ("TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT")
    common = [os.environ.get(name, "") for name in names] + [str(folder.resolve())]
    text = "\n".join(common)
    return Job(hashlib.sha256(text.encode()).hexdigest()[:32], where.rank, where.world_size)


def finish(folder: Path, job: Job) -> None:
    """Write the job's manifest if this is the last of its ranks."""
    ranks: list[dict[str, object]] = []
    for rank in range(job.world_size):
        path = Place(rank, job.world_size, 0).target(folder)
        if not path.is_dir():
            return
        ranks.append({"rank": rank, "directory": path.name, "run_id": read_manifest(path).run_id})
    whole = {"schema_version": 1, **asdict(job), "ranks": ranks}
    del whole["rank"]
    scratch = folder / f".{JOB}.{job.rank}"
    scratch.write_bytes(orjson.dumps(whole, option=orjson.OPT_INDENT_2) + b"\n")
    scratch.replace(folder / JOB)  # of two last ones each writes the same


def start(ranks: int, folder: Path) -> int:
    """Start this command once for each rank, on GPUs of this host; returns the exit code.

    All refuse alike, so what the first failing rank says is said once. A folder that nothing was
    written to goes.
    """
    is_new = not folder.exists()
    with ExitStack() as stack:
        said = [stack.enter_context(tempfile.TemporaryFile("w+")) for _ in range(ranks - 1)]
        processes = [
            subprocess.Popen(
                [sys.executable, "-m", "collector.cli", *sys.argv[1:]],
                env=os.environ | _variables(rank, ranks, port),
                stderr=said[rank - 1] if rank else None,
            )
            for port in [_free_port()]
            for rank in range(ranks)
        ]
        try:
            codes = _ended(processes)
        except BaseException:
            for process in processes:
                process.kill()
            raise
        failed = [rank for rank, code in enumerate(codes) if code]
        if failed and not codes[0]:
            said[failed[0] - 1].seek(0)
            sys.stderr.write(said[failed[0] - 1].read())
    if failed and is_new and folder.is_dir():
        for path in [*sorted(folder.rglob("*"), reverse=True), folder]:
            if path.is_dir() and not any(path.iterdir()):
                path.rmdir()
    # One that was ended for another's failure tells nothing.
    return next((codes[rank] for rank in failed if codes[rank] > 0), 1) if failed else 0


def _ended(processes: Sequence[subprocess.Popen[bytes]]) -> list[int]:
    """The exit codes; when one has failed, the others have ten seconds to end by themselves."""
    while any(process.poll() is None for process in processes):
        if any(process.poll() for process in processes):
            for process in processes:
                try:
                    process.wait(10)
                except subprocess.TimeoutExpired:
                    process.terminate()
        time.sleep(0.05)
    return [process.wait() for process in processes]


def _variables(rank: int, ranks: int, port: int) -> dict[str, str]:
    """What torchrun would tell a rank of one host."""
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
    }


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]
