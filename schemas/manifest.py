"""The manifest of a run directory: what was run, where, and which files hold it.

Both sides share these records: the collector writes them, everybody else reads them with
`run_directory.read_manifest`. Times are integer nanoseconds above 0; unknown is None. A field that
a later program of the same version added is left alone.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any

from msgspec import Meta

RUN_SCHEMA_VERSION = 1

MODES = ("eager", "hybrid", "compile", "graph", "foreign")

Nanoseconds = Annotated[int, Meta(gt=0)]


@dataclass(frozen=True)
class TraceFile:
    """One Kineto trace of a run.

    Attributes:
        file: Name inside the run directory.
        role: "trace" (counts in every figure) or "capture" (only resolves the ops and names of
            graph replays).
        perturbs: What the pass that wrote it changes in the timings, in words.
        step_wall_ns: Host wall time of each step of this pass, profiled, in order; empty if not
            taken.
        host_speed_ns: What `HostSpeed.definition` took just before and just after the pass; None
            if not taken.
        unprofiled_step_wall_ns: Host wall time of each step of the request without profiler just
            before this one, in order; None if not taken.
    """

    file: str
    role: str = "trace"
    perturbs: str = ""
    step_wall_ns: list[Nanoseconds] = field(default_factory=list[int])
    host_speed_ns: list[Nanoseconds] | None = None
    unprofiled_step_wall_ns: list[Nanoseconds] | None = None


@dataclass(frozen=True)
class HostSpeed:
    """How fast the host was during the passes: the time of one fixed piece of work in ns, so that
    more is slower. Times of the same definition, CPU and Python may be compared.

    Attributes:
        definition: What the fixed piece of work is, and how its time is taken.
        latency_ns: Times taken among the requests of the latency pass.
        floor_ns: Times just before and just after the launch floor (each part of it, if there
            are several) or the kernel replay; None without that pass.
    """

    definition: str
    latency_ns: list[Nanoseconds] = field(default_factory=list[int])
    floor_ns: list[Nanoseconds] | None = None


@dataclass(frozen=True)
class Group:
    """Variants that one process recorded interleaved: trace k of each lies beside trace k of the
    others.

    Attributes:
        id: Random hex text, the same in every run of the group.
        variant: Place of this run in the order of the variants, from 1 on.
        variants: How many there are.
        cpu: The one on which the main thread ran while it measured; None if it was not placed.
    """

    id: str
    variant: int
    variants: int
    cpu: int | None = None


@dataclass(frozen=True)
class Job:
    """The distributed job that a run is one rank of.

    Attributes:
        id: Random hex text, the same in every rank's manifest.
        rank, world_size: As the launcher numbers them.
        tensor_parallel: Over how many ranks each matrix is split; 1: each rank runs a whole model.
    """

    id: str
    rank: int
    world_size: int
    tensor_parallel: int = 1


@dataclass(frozen=True)
class Environment:
    """Host, GPU and software of a recording. Unknown is None, never a made-up value.

    `host` is a name or a random id, as the person who recorded chose; `versions` maps a library to
    its version ("python", "torch", "transformers", "triton", "cuda_runtime", "cuda_driver",
    "cupti").
    """

    host: str | None = None
    cpu: str | None = None
    cpu_count: int | None = None
    cpu_governor: str | None = None
    memory_bytes: int | None = None
    os: str | None = None
    gpu: str | None = None
    gpu_count: int | None = None
    gpu_memory_bytes: int | None = None
    gpu_clocks: dict[str, int] | None = None
    driver: str | None = None
    versions: dict[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True)
class Manifest:
    """What was run, where, and which files hold it.

    Attributes:
        run_id: Random hex text, unique for a recording.
        mode: One of MODES; "foreign" is somebody else's trace.
        phases: The plan of a trace run, e.g. [{"phase": "prefill", "steps": 1}, {"phase": "decode",
            "steps": 9}].
        step_annotation: Globs of the annotations that mark steps, e.g. ["hostbound.*"].
        files: SHA-256 of each other file, by name.
        passes: What each pass perturbs, by pass name ("latency", "trace", "replay", ...).
        host_speed: How fast the host was; None if not measured. That of a trace is in `traces`.
        group: The variants that it was recorded interleaved with; None if alone.
        job: What it is one rank of; None of one process.
    """

    run_id: str
    name: str
    created_at: str
    mode: str
    traces: list[TraceFile]
    schema_version: int = RUN_SCHEMA_VERSION
    model: str | None = None
    attention: str | None = None
    dtype: str | None = None
    device: str | None = None
    batch_size: int | None = None
    prompt_len: int | None = None
    new_tokens: int | None = None
    seeds: dict[str, int] = field(default_factory=dict[str, int])
    phases: list[Any] = field(default_factory=list[Any])
    step_annotation: list[str] = field(default_factory=list[str])
    command: str | None = None
    environment: Environment = field(default_factory=Environment)
    passes: dict[str, str] = field(default_factory=dict[str, str])
    files: dict[str, str] = field(default_factory=dict[str, str])
    notes: list[str] = field(default_factory=list[str])
    host_speed: HostSpeed | None = None
    group: Group | None = None
    job: Job | None = None

    def trace_speeds_ns(self) -> list[int]:
        """Every host speed taken beside a timed trace, in ns; empty if none was."""
        timed = [trace for trace in self.traces if trace.role == "trace"]
        return [value for trace in timed for value in trace.host_speed_ns or ()]

    def to_json(self) -> str:
        """Return the manifest as indented JSON text."""
        return json.dumps(asdict(self), indent=2, ensure_ascii=False) + "\n"
