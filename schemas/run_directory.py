"""The run directory, version 1: the contract between a GPU host and the analysis.

    manifest.json            this file's `Manifest`, written last: without it the recording did not
                             finish
    trace.json.gz            Kineto trace of the first trace run; trace-2.json.gz, ... of further
                             ones
    capture_trace.json.gz    optional: the pass in which CUDA graphs were captured
    execution_trace.json.gz  optional: PyTorch execution trace (op schemas, scalars, strides)
    kernel_replay.json       optional: raw samples of each distinct op call, called alone
    null_kernel.json         optional: raw samples of the empty kernel, the launch floor by launch
                             API
    latency.json             optional: raw samples taken without the profiler

A file that was not measured is absent; nothing stands in for it. After the manifest is written the
folder is read-only. Times are integer nanoseconds. Standard library only.

kernel_replay.json: `{"definition": str, "ops": [ReplayedOp...]}` with
    ReplayedOp = {"op": "aten::addmm", "overload": str, "input_dims": str, "input_types": str,
                  "input_strides": str, "concrete_inputs": str,      (texts as in the Kineto trace)
                  "reason": str | null,                              (why it could not be replayed)
                  "samples": int,
                  "kernels": [{"position": int, "name": str, "grid": [x, y, z],
                               "block": [x, y, z], "shared_memory": int, "launch_api": str,
                               "count": int, "dispatch_ns": [int...], "launch_ns": [int...],
                               "exec_ns": [int...]}]}
null_kernel.json: `{"definitions": {name: text}, "floors": [Floor...]}` with
    Floor = {"launch_api": str, "definition": str, "samples_ns": [int...]}; the definition
    `api_start_to_kernel_start` is the launch floor, `unsynchronised_host_cost` the cost of a launch
    call back to back.
latency.json: `{"warmup": int, "requests": [{"ttft_ns": int, "itl_ns": [int...], "total_ns": int}],
    "steps": {"prefill": [int...], "decode": [int...]}}`; tpot_ns is derived, NULL for one token.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, cast

from schemas.errors import RunDirectoryError

RUN_SCHEMA_VERSION = 1

MANIFEST = "manifest.json"
TRACE = "trace.json.gz"
CAPTURE_TRACE = "capture_trace.json.gz"
EXECUTION_TRACE = "execution_trace.json.gz"
KERNEL_REPLAY = "kernel_replay.json"
NULL_KERNEL = "null_kernel.json"
LATENCY = "latency.json"

MODES = ("eager", "hybrid", "compile", "graph", "foreign")

# The collector marks each pass with `user_annotation`s of these names; `#N` counts them in a trace.
PREFILL_ANNOTATION = "hostbound.prefill"
DECODE_ANNOTATION = "hostbound.decode"
CAPTURE_ANNOTATION = "hostbound.capture"
STEP_ANNOTATION_PREFIX = "hostbound."


@dataclass(frozen=True)
class TraceFile:
    """One Kineto trace of a run.

    Attributes:
        file: Name inside the run directory.
        role: "trace" (counts in every figure) or "capture" (only lends ops and names to graph
            replays).
        perturbs: What the pass that wrote it changes in the timings, in words.
        step_wall_ns: Host wall time of each step of this pass, profiled, in order; empty if not
            taken.
        host_speed_ns: What `HostSpeed.definition` took just before and just after the pass; None
            if not taken.
        unprofiled_step_wall_ns: Host wall time of each step of the request without profiler just
            before this one, in order; None if not taken.
        attempts: How often the pass was recorded until the host was steady, this one included;
            None if nobody looked.
    """

    file: str
    role: str = "trace"
    perturbs: str = ""
    step_wall_ns: list[int] = field(default_factory=list[int])
    host_speed_ns: list[int] | None = None
    unprofiled_step_wall_ns: list[int] | None = None
    attempts: int | None = None


@dataclass(frozen=True)
class HostSpeed:
    """How fast the host was during the passes: the time of one fixed piece of work in ns, so that
    more is slower. Times of the same definition, CPU and Python may be compared.

    Attributes:
        definition: What the fixed piece of work is, and how its time is taken.
        latency_ns: Times taken among the requests of the latency pass.
        floor_ns: Times just before and just after the launch floor (each part of it, in turns) or
            the kernel replay; None without that pass.
        target_ns: The speed that traces were held to; None if there was nothing to hold to.
        like: `run_id` of the recording whose speed was the target; None: this recording's own.
    """

    definition: str
    latency_ns: list[int] = field(default_factory=list[int])
    floor_ns: list[int] | None = None
    target_ns: int | None = None
    like: str | None = None


@dataclass(frozen=True)
class Partner:
    """Another recording that took turns with this one: its manifest's `run_id` and `name`."""

    run_id: str
    name: str


@dataclass(frozen=True)
class TurnsTaken:
    """With whom a recording took turns, trace by trace: trace k of one was made beside trace k of
    the other.

    Attributes:
        seat: Place in the order, from 1 on.
        of: Recordings that were expected.
        cpu: The one on which the main threads of all ran; None if they were not placed.
        partners: The others that came and began to measure.
    """

    seat: int
    of: int
    cpu: int | None = None
    partners: list[Partner] = field(default_factory=list[Partner])


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
        turns: With whom it was recorded in turns; None if alone.
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
    phases: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    step_annotation: list[str] = field(default_factory=list[str])
    command: str | None = None
    environment: Environment = field(default_factory=Environment)
    passes: dict[str, str] = field(default_factory=dict[str, str])
    files: dict[str, str] = field(default_factory=dict[str, str])
    notes: list[str] = field(default_factory=list[str])
    host_speed: HostSpeed | None = None
    turns: TurnsTaken | None = None

    def trace_speeds_ns(self) -> list[int]:
        """Every host speed taken beside a timed trace, in ns; empty if none was."""
        timed = [trace for trace in self.traces if trace.role == "trace"]
        return [value for trace in timed for value in trace.host_speed_ns or ()]

    def to_json(self) -> str:
        """Return the manifest as indented JSON text."""
        return json.dumps(asdict(self), indent=2, ensure_ascii=False) + "\n"


def file_sha256(path: Path) -> str:
    """Return the SHA-256 of a file's bytes as hex text, read in pieces."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while piece := stream.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest()


def read_manifest(run_dir: Path) -> Manifest:
    """Read and check `manifest.json`.

    Raises:
        RunDirectoryError: It is missing, no JSON, of a newer version, or lacks a field.
    """
    path = run_dir / MANIFEST
    if not path.is_file():
        raise RunDirectoryError(
            f"{run_dir} is not a run directory: {MANIFEST} is missing. "
            "`collector record` writes it last, so the recording did not finish; record it again."
        )
    try:
        value: Any = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, UnicodeDecodeError) as error:
        raise RunDirectoryError(
            f"{path} is no JSON ({error}); copy the run directory again or record it again."
        ) from error
    if not isinstance(value, dict):
        raise RunDirectoryError(f"{path} holds no JSON object; it is not a Hostbound manifest.")
    return manifest_from_dict(value, path)  # pyright: ignore[reportUnknownArgumentType]


def manifest_from_dict(value: dict[str, Any], path: Path) -> Manifest:
    """Build a `Manifest` from parsed JSON; `path` only names the file in errors."""
    version = value.get("schema_version")
    if not isinstance(version, int) or version < 1:
        raise RunDirectoryError(f"{path} has no schema_version; it is not a Hostbound manifest.")
    if version > RUN_SCHEMA_VERSION:
        raise RunDirectoryError(
            f"{path} is of run-directory version {version}, this program knows "
            f"{RUN_SCHEMA_VERSION}: upgrade hostbound."
        )
    fields = _known(Manifest, value)
    try:
        fields["traces"] = [TraceFile(**_known(TraceFile, item)) for item in fields["traces"]]
        environment: dict[str, Any] = fields.get("environment") or {}
        fields["environment"] = Environment(**_known(Environment, environment))
        if speed := fields.get("host_speed"):
            fields["host_speed"] = HostSpeed(**_known(HostSpeed, speed))
        if turns := fields.get("turns"):
            fields["turns"] = _turns(turns)
        manifest = Manifest(**fields)
    except (AttributeError, KeyError, TypeError) as error:
        raise RunDirectoryError(f"{path} is incomplete: {error}; record the run again.") from error
    if manifest.mode not in MODES:
        raise RunDirectoryError(f"{path} has mode {manifest.mode!r}; known are {', '.join(MODES)}.")
    for name in [trace.file for trace in manifest.traces] + list(manifest.files):
        if Path(name).name != name:
            raise RunDirectoryError(f"{path} names {name!r}, which is not a file of that folder.")
    _check_speeds(manifest, path)
    return manifest


def _turns(value: dict[str, Any]) -> TurnsTaken:
    """Raises TypeError, or KeyError, for what is none."""
    fields = _known(TurnsTaken, value)
    partners = [Partner(**_known(Partner, item)) for item in fields.pop("partners", [])]
    taken = TurnsTaken(**fields, partners=partners)
    numbers = [taken.seat, taken.of, *([] if taken.cpu is None else [taken.cpu])]
    if any(type(number) is not int for number in numbers) or any(
        type(text) is not str for partner in partners for text in (partner.run_id, partner.name)
    ):
        raise TypeError(f"turns are {value!r:.60}")
    return taken


def _check_speeds(manifest: Manifest, path: Path) -> None:
    """Raise RunDirectoryError unless host speeds and the steps beside them are times in ns."""
    speed = manifest.host_speed
    found: list[Any] = []
    for trace in manifest.traces:
        found += [trace.host_speed_ns, trace.unprofiled_step_wall_ns, trace.step_wall_ns]
    if speed is not None:
        target = None if speed.target_ns is None else [speed.target_ns]
        found += [speed.latency_ns, speed.floor_ns, target]
    for times in found:
        if times is not None and not (
            isinstance(times, list)
            and all(type(value) is int and value > 0 for value in cast("list[Any]", times))
        ):
            raise RunDirectoryError(
                f"{path} has {times!r:.60} where a host speed or a step's time is a list of "
                "nanoseconds; copy the run directory again or record it again."
            )


def _known(record: type[Any], value: dict[str, Any]) -> dict[str, Any]:
    """The fields that a record has; a later program of the same version may have added others."""
    return {key: item for key, item in value.items() if key in record.__dataclass_fields__}
