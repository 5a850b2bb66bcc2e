"""`collector record`: the separate passes of one workload, into one run directory.

Order: capture trace (graph, hybrid), latency without profiler, traces, execution trace, kernel
replay.
Each pass is a request of its own, so that none perturbs another. With turns (`turns.py`) latency,
traces and launch floor are measured bit by bit, in turn with other recordings.
"""

from __future__ import annotations

import math
import secrets
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch

from collector import (
    environment,
    host_speed,
    kernel_replay,
    latency,
    models,
    op_calls,
    trace_pass,
    workloads,
)
from collector.errors import CollectorError
from collector.progress import Progress, say
from collector.turns import ALONE, FLOOR, PATIENCE_S, TRACES, Alone, Turns
from collector.writer import RunDirectoryWriter
from schemas.run_directory import (
    CAPTURE_TRACE,
    EXECUTION_TRACE,
    KERNEL_REPLAY,
    LATENCY,
    NULL_KERNEL,
    STEP_ANNOTATION_PREFIX,
    TRACE,
    HostSpeed,
    Manifest,
    TraceFile,
    TurnsTaken,
)

# Calibrations of the host's speed among the requests of the latency pass.
LATENCY_SPEEDS = 10
STEADY_BUDGET_S = 20.0
# Each looks at all others' seats, a hundred times a second.
MOST_IN_TURNS = 64
# With turns: the parts in which the launch floor is measured.
FLOOR_TURNS = 5


@dataclass(frozen=True)
class Request:
    """What to record. `prompt` is text; None draws `prompt_len` ids from the seed.

    Attributes:
        steady_budget_s: Seconds that may go into waiting for a steady host and into traces that
            are recorded again; 0 takes the host as it is. None: 20, in turns 0, as the others wait
            meanwhile and see the same host anyway.
        like: A run directory: record while the host runs as fast as it did there.
        turns: A folder that is shared with other recordings; they measure in turns.
        turns_of: How many recordings share it, this one included.
        turns_patience_s: Seconds to wait for those that do not come.
    """

    model: str
    mode: str = "eager"
    batch_size: int = 1
    prompt_len: int = 512
    new_tokens: int = 10
    attention: str = "sdpa"
    experts: str | None = None
    dtype: str = "bf16"
    device: str = "cuda:0"
    warmup: int = 10
    latency_runs: int = 50
    trace_runs: int = 3
    replay_runs: int = 150
    replay: bool = True
    replay_budget_s: float | None = None
    stacks: bool = False
    prompt: str | None = None
    seed: int = 0
    all_logits: bool = False
    steady_budget_s: float | None = None
    like: Path | None = None
    turns: Path | None = None
    turns_of: int = 2
    turns_patience_s: float = PATIENCE_S

    @property
    def budget_s(self) -> float:
        """`steady_budget_s`, or what stands for None."""
        if self.steady_budget_s is not None:
            return self.steady_budget_s
        return STEADY_BUDGET_S if self.turns is None else 0.0

    def check(self) -> None:
        """Raise CollectorError for values that cannot be run."""
        for name in ("batch_size", "prompt_len", "new_tokens", "trace_runs", "latency_runs"):
            if getattr(self, name) < 1:
                option = "--" + name.replace("_", "-")
                raise CollectorError(f"{option} is {getattr(self, name)}; it must be 1 or more.")
        if not (math.isfinite(self.budget_s) and self.budget_s >= 0):
            raise CollectorError(
                f"--steady-budget is {self.budget_s}; give seconds, 0 turns it off."
            )
        if self.turns is not None and self.like is not None:
            raise CollectorError(
                "--like and --turns are two ways to one end: leave --like out, recordings in turns "
                "see the same host."
            )
        if self.turns is not None and not 2 <= self.turns_of <= MOST_IN_TURNS:
            raise CollectorError(
                f"--turns-of is {self.turns_of}; turns are taken by 2 to {MOST_IN_TURNS} of them."
            )
        if not (math.isfinite(self.turns_patience_s) and self.turns_patience_s >= 0):
            raise CollectorError(f"--turns-patience is {self.turns_patience_s}; give seconds.")
        if self.mode not in workloads.MODES:
            raise CollectorError(
                f"mode {self.mode!r} is not known; there are: {', '.join(workloads.MODES)}."
            )
        if self.all_logits and self.mode not in ("eager", "compile"):
            raise CollectorError("--all-logits is for the modes eager and compile.")
        check_device(self.device)


def check_device(device: str) -> None:
    """Raise CollectorError if a torch device cannot be used here."""
    try:
        parsed = torch.device(device)
    except RuntimeError as error:
        raise CollectorError(f"{device!r} is no torch device; give cuda:0 or cpu.") from error
    if parsed.type == "cuda" and not torch.cuda.is_available():
        raise CollectorError(
            f"{device} was asked for but this torch sees no CUDA GPU; `collector doctor` says why. "
            "Record what a CPU can show with --device cpu."
        )
    if parsed.type == "cuda" and (parsed.index or 0) >= torch.cuda.device_count():
        raise CollectorError(
            f"{device} is not there: this host has {torch.cuda.device_count()} GPUs."
        )
    if parsed.type not in ("cuda", "cpu"):
        raise CollectorError(f"{device} is not supported; give cuda:0 or cpu.")


def record(
    request: Request, target: Path, name: str, model: models.LoadedModel | None = None
) -> Path:
    """Record a request into `target`; returns the run directory.

    Args:
        model: The request's model, if the caller has it on the device already.

    Raises:
        CollectorError: The request cannot be run here; nothing is left behind.
    """
    request.check()
    held_to = None  # known before the work begins, or refused
    if request.like is not None:
        held_to = host_speed.of_run(request.like, environment.describe(request.device))
    run_id = secrets.token_hex(16)
    with (
        RunDirectoryWriter(target) as writer,
        _seat(request, run_id, name) as seat,
        torch.inference_mode(),
    ):
        if model is None:
            say(f"building {request.model} ({request.dtype}, {request.device})")
            model = models.load(
                request.model,
                request.dtype,
                request.device,
                request.seed,
                request.attention,
                request.experts,
            )
        ids_BT = workloads.prompt_ids(
            model, request.batch_size, request.prompt_len, request.seed, request.prompt
        )
        workload, engine = workloads.make(
            model,
            request.mode,
            ids_BT,
            request.new_tokens,
            request.device,
            request.all_logits,
        )
        notes: list[str] = []
        pace = _Pace()
        traces, steadiness = _passes(request, writer, workload, engine, pace, held_to, seat)
        speeds = [trace.host_speed_ns for trace in traces if trace.host_speed_ns]
        notes += _unsteady("trace", request, steadiness, speeds)
        passes = {"latency": trace_pass.PERTURBS["latency"]}
        passes["trace"] = trace_pass.PERTURBS["stacks" if request.stacks else "trace"]
        if engine is not None:
            passes["capture"] = trace_pass.PERTURBS["capture"]
        if not request.device.startswith("cuda"):
            notes.append("recorded on a CPU: no kernels, no launch floor, no kernel replay")
        elif not request.replay:
            say("measuring the launch floor")
            passes["floor"] = trace_pass.PERTURBS["replay"]
            floors, speeds = _floor(request, workload, steadiness, seat)
            writer.add_json(NULL_KERNEL, floors)
            pace.floor_ns = [speed for pair in speeds for speed in pair]
            notes += _unsteady("launch floor", request, steadiness, speeds)
        else:
            passes["execution_trace"] = trace_pass.PERTURBS["execution_trace"]
            passes["replay"] = trace_pass.PERTURBS["replay"]
            with seat.turn(FLOOR):  # minutes, and one profile: not to be cut into parts
                before = host_speed.calibrate()
                notes += _replay(request, writer, workload)
                pace.floor_ns = [before, host_speed.calibrate()]
        taken, of_turns = seat.described()
        return writer.finish(
            _manifest(
                request,
                run_id,
                name,
                model,
                ids_BT,
                traces,
                passes,
                notes + of_turns,
                pace.described(steadiness.target),
                taken,
            )
        )


def _seat(request: Request, run_id: str, name: str) -> Turns | Alone:
    """The recording's seat among those that it takes turns with."""
    if request.turns is None:
        return ALONE
    return Turns(request.turns, request.turns_of, run_id, name, request.turns_patience_s)


@dataclass
class _Pace:
    """The host's speed beside the passes that are not traces, in ns."""

    latency_ns: list[int] = field(default_factory=list[int])
    floor_ns: list[int] | None = None

    def described(self, target: host_speed.Target) -> HostSpeed:
        """What the manifest says of it."""
        return HostSpeed(
            host_speed.DEFINITION, self.latency_ns, self.floor_ns, target.ns, target.like
        )


def _unsteady(
    what: str,
    request: Request,
    steadiness: host_speed.Steadiness,
    speeds_ns: list[list[int]],
) -> list[str]:
    """The note on what was kept although the host was off its target, said here too."""
    note = host_speed.unsteady_note(what, steadiness.target, speeds_ns, request.budget_s)
    if note is None:
        return []
    say(note)
    return [note]


def _passes(
    request: Request,
    writer: RunDirectoryWriter,
    workload: workloads.Workload,
    engine: Any,
    pace: _Pace,
    target: host_speed.Target | None,
    seat: Turns | Alone,
) -> tuple[list[TraceFile], host_speed.Steadiness]:
    """Latency, capture and timed traces; these at the speed of `target`, or of the latency pass."""
    traces: list[TraceFile] = []
    scratch = writer.path / ".trace.json"
    if engine is not None and hasattr(engine, "capture_all"):
        say("recording the capture of the graphs")
        length = request.prompt_len
        trace_pass.record_capture(
            lambda: engine.capture_all(length, request.new_tokens), request.device, scratch
        )
        writer.add_gzip(CAPTURE_TRACE, scratch)
        traces.append(TraceFile(CAPTURE_TRACE, "capture", trace_pass.PERTURBS["capture"]))
    say(f"measuring latency: {request.warmup} + {request.latency_runs} requests without profiler")
    bar, every = Progress("latency"), max(request.latency_runs // LATENCY_SPEEDS, 1)

    def tick(done: int) -> None:
        bar(done, request.warmup + request.latency_runs)
        if done > request.warmup and (done - request.warmup - 1) % every == 0:
            pace.latency_ns.append(host_speed.calibrate())

    writer.add_json(
        LATENCY,
        latency.measure(
            workload,
            request.new_tokens,
            request.warmup,
            request.latency_runs,
            request.device,
            tick,
            seat,
        ),
    )
    steadiness = host_speed.Steadiness(
        target or host_speed.of_latency(pace.latency_ns), request.budget_s
    )
    with seat.turn(TRACES):
        trace_pass.warm_up(workload, request.new_tokens, request.device, request.stacks)
    for number in range(request.trace_runs):
        file = TRACE if number == 0 else TRACE.replace(".", f"-{number + 1}.", 1)
        with seat.turn(TRACES):
            say(f"recording trace {number + 1} of {request.trace_runs}")
            held = trace_pass.record(
                workload, request.new_tokens, request.device, scratch, steadiness, request.stacks
            )
            writer.add_gzip(file, scratch)
        perturbs = trace_pass.PERTURBS["stacks" if request.stacks else "trace"]
        traces.append(
            TraceFile(
                file,
                "trace",
                perturbs,
                held.value.profiled,
                held.speeds_ns,
                held.value.unprofiled,
                held.attempts,
            )
        )
    return traces, steadiness


def _floor(
    request: Request,
    workload: workloads.Workload,
    steadiness: host_speed.Steadiness,
    seat: Turns | Alone,
) -> tuple[dict[str, Any], list[list[int]]]:
    """The launch floor, at the speed of the traces: every launch in T_Orchestration counts it.

    Returns what null_kernel.json holds, and the host's speeds before and after each part of it.
    """

    def wait() -> None:
        trace_pass.run_request(workload, 1, annotate=False)

    def measure() -> Callable[[], dict[str, Any]]:
        found = kernel_replay.floor(request.device, samples)
        return lambda: found

    parts: list[dict[str, Any]] = []
    speeds: list[list[int]] = []
    count = FLOOR_TURNS if seat.is_shared else 1
    samples = math.ceil(request.replay_runs / count)
    for _ in range(count):
        with seat.turn(FLOOR):
            if seat.is_shared:
                wait()
            held = steadiness.hold(wait, measure)
        parts.append(held.value)
        speeds.append(held.speeds_ns)
    return kernel_replay.joined(parts), speeds


def _replay(
    request: Request, writer: RunDirectoryWriter, workload: workloads.Workload
) -> list[str]:
    say("recording the execution trace")
    scratch = writer.path / ".execution.json"
    trace_pass.record_execution_trace(workload, request.new_tokens, request.device, scratch)
    writer.add_gzip(EXECUTION_TRACE, scratch)
    return replay_into(
        writer.path, request.device, request.replay_runs, request.replay_budget_s, writer
    )


def replay_into(
    run_dir: Path,
    device: str,
    samples: int,
    budget_s: float | None,
    writer: RunDirectoryWriter,
) -> list[str]:
    """Replay the op calls of the traces in `run_dir`; adds both JSON files, returns notes."""
    events = [op_calls.load_trace(path) for path in sorted(run_dir.glob("trace*.json.gz"))]
    nodes = op_calls.load_execution_trace(run_dir / EXECUTION_TRACE)
    calls = op_calls.from_run(events, nodes)
    del events, nodes
    say(f"replaying {len(calls)} distinct op calls, {samples} samples each, and the empty kernel")
    replayed, floors = kernel_replay.replay(calls, device, samples, budget_s, Progress("replay"))
    writer.add_json(KERNEL_REPLAY, replayed)
    writer.add_json(NULL_KERNEL, floors)
    failed = [op for op in replayed["ops"] if op["reason"]]
    notes = (
        [f"{len(failed)} of {len(calls)} distinct op calls could not be replayed"] if failed else []
    )
    return notes + [f"no floor for {api}: {why}" for api, why in floors["missing"].items()]


def _manifest(
    request: Request,
    run_id: str,
    name: str,
    model: models.LoadedModel,
    ids_BT: torch.Tensor,
    traces: list[TraceFile],
    passes: dict[str, str],
    notes: list[str],
    speed: HostSpeed,
    taken: TurnsTaken | None,
) -> Manifest:
    phases = [{"phase": "prefill", "steps": 1}]
    if request.new_tokens > 1:
        phases.append({"phase": "decode", "steps": request.new_tokens - 1})
    if request.experts:
        notes = [*notes, f"experts: {request.experts}"]
    if request.all_logits:
        notes = [*notes, "logits: of every position of the prompt"]
    return Manifest(
        run_id=run_id,
        name=name,
        created_at=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        mode=request.mode,
        traces=traces,
        model=model.name,
        attention=request.attention,
        dtype={"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}[request.dtype],
        device=request.device,
        batch_size=int(ids_BT.shape[0]),
        prompt_len=int(ids_BT.shape[1]),
        new_tokens=request.new_tokens,
        seeds={"weights": request.seed, "prompt": request.seed},
        phases=phases,
        step_annotation=[f"{STEP_ANNOTATION_PREFIX}*"],
        command=" ".join(["collector", *sys.argv[1:]]),
        environment=environment.describe(request.device),
        passes=passes,
        notes=notes,
        host_speed=speed,
        turns=taken,
    )
