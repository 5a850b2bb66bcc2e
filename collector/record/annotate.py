"""`with collector.recording("out") as rec:` around anybody's code: marked steps become a run
directory.

    with collector.recording("runs/mine", name="mine") as rec:
        with rec.step("prefill"):
            ...
        for token in range(9):
            with rec.step("decode"):
                ...

The block runs once, under the profiler. An exception in it leaves no run directory. With `upload`
the run is noted for a server; `collector upload` sends it, so that your code waits for no network.
"""

from __future__ import annotations

import secrets
import sys
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from time import perf_counter_ns

import torch

from collector import environment
from collector.calibration import DEFINITION, calibrate
from collector.progress import say
from collector.record import trace_pass
from collector.upload.sending import Options, check
from collector.writer import RunDirectoryWriter
from schemas.errors import HostboundError
from schemas.manifest import HostSpeed, Job, Manifest, TraceFile
from schemas.run_directory import STEP_ANNOTATION_PREFIX, TRACE


class Recording:
    """Handed to the block; `step` marks one step."""

    def __init__(self) -> None:
        self.steps: Counter[str] = Counter()
        self.walls: list[int] = []

    @contextmanager
    def step(self, phase: str) -> Generator[None, None, None]:
        """Mark one prefill, decode or other step; counted by phase."""
        number = self.steps[phase]
        self.steps[phase] += 1
        began = perf_counter_ns()
        with torch.profiler.record_function(f"{STEP_ANNOTATION_PREFIX}{phase}#{number}"):
            yield
        self.walls.append(perf_counter_ns() - began)


@contextmanager
def recording(
    out: str | Path,
    *,
    name: str | None = None,
    device: str | None = None,
    stacks: bool = False,
    model: str | None = None,
    batch_size: int | None = None,
    prompt_len: int | None = None,
    upload: str | None = None,
    spool: str | Path | None = None,
    job: Job | None = None,
) -> Generator[Recording, None, None]:
    """Record the block into the run directory `out`.

    Args:
        device: "cuda:0", "cpu", ...; default: the first GPU if there is one.
        stacks: Record Python frames too; perturbs much more.
        upload: Address of a server: the run is spooled for it, for `collector upload` to send.
        spool: The spool's folder; default: that of `collector upload`.
        job: The distributed job that this process is one rank of.

    Raises:
        CollectorError: `out` exists or cannot be written; `upload` is no address, or the spool
            cannot be written.
    """
    target = Path(out)
    sending = Options(spool=None if spool is None else Path(spool))
    address = None if upload is None else check(sending, upload)
    where = device or ("cuda:0" if torch.cuda.is_available() else "cpu")
    with RunDirectoryWriter(target) as writer:
        scratch = writer.path / ".trace.json"
        rec = Recording()
        before = calibrate()
        with torch.profiler.profile(
            activities=trace_pass.activities(where), record_shapes=True, with_stack=stacks
        ) as profile:
            yield rec
            if where.startswith("cuda"):
                torch.cuda.synchronize()
        speeds = [before, calibrate()]
        profile.export_chrome_trace(str(scratch))
        writer.add_gzip(TRACE, scratch)
        perturbs = trace_pass.PERTURBS["stacks" if stacks else "trace"]
        writer.finish(
            Manifest(
                run_id=secrets.token_hex(16),
                name=name or target.name,
                created_at=datetime.now(timezone.utc).isoformat(timespec="seconds"),
                mode="foreign",
                traces=[TraceFile(TRACE, "trace", perturbs, rec.walls, speeds)],
                model=model,
                batch_size=batch_size,
                prompt_len=prompt_len,
                device=where,
                phases=[{"phase": p, "steps": n} for p, n in rec.steps.items()],
                step_annotation=[f"{STEP_ANNOTATION_PREFIX}*"] if rec.steps else [],
                command=" ".join(sys.argv),
                environment=environment.describe(where),
                passes={"trace": perturbs},
                host_speed=HostSpeed(DEFINITION),
                job=job,
            )
        )
    if address is not None:
        try:
            sending.open_spool().add(target, address)
        except HostboundError as error:  # the run is there; the caller's code goes on
            say(f"{target} is recorded but not spooled: {error}")
