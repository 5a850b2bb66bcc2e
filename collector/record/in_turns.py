"""One recording in turns with others, or held to a speed of the host."""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from collector import environment
from collector.errors import CollectorError
from collector.progress import say
from collector.record import trace_pass
from collector.record.latency import LatencyPass
from collector.record.request import Variant
from collector.record.session import VariantRecording
from collector.record.steadiness import Held, Steadiness, of_latency, of_run, unsteady_note
from collector.record.trace_pass import TraceTimes
from collector.record.turns import ALONE, FLOOR, LATENCY, PATIENCE_S, TRACES, Alone, Turns
from collector.replay import kernel_replay
from collector.workloads import models
from collector.workloads.base import Workload
from collector.writer import RunDirectoryWriter
from schemas.measurements import LaunchFloors

STEADY_BUDGET_S = 20.0
# Each looks at all others' seats, a hundred times a second.
MOST_IN_TURNS = 64
# With turns: the parts in which the launch floor is measured.
FLOOR_TURNS = 5
# Requests of one turn.
BLOCK = 5


@dataclass(frozen=True)
class Waiting:
    """How to wait for a speed of the host, or for one's turn.

    Attributes:
        steady_budget_s: Seconds that may go into waiting for a steady host and into traces that
            are recorded again; 0 takes the host as it is. None: 20, in turns 0, as the others wait
            meanwhile and see the same host anyway.
        like: A run directory: record while the host runs as fast as it did there.
        turns: A folder that is shared with other recordings; they measure in turns.
        turns_of: How many recordings share it, this one included.
        turns_patience_s: Seconds to wait for those that do not come.
    """

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
        """Raise CollectorError for values that make no sense."""
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


def record(variant: Variant, waiting: Waiting, model: models.LoadedModel | None = None) -> Path:
    """Record a variant as `session.record` does, but in turns or at one speed of the host."""
    r = variant.request
    r.check()
    waiting.check()
    held_to = None  # known before the work begins, or refused
    if waiting.like is not None:
        held_to = of_run(waiting.like, environment.describe(r.device))
    run_id = secrets.token_hex(16)
    with (
        RunDirectoryWriter(variant.target) as writer,
        _seat(waiting, run_id, variant.name) as seat,
        torch.inference_mode(),
    ):
        if model is None:
            say(f"building {r.model} ({r.dtype}, {r.device})")
            model = models.load(r.model, r.dtype, r.device, r.seed, r.attention, r.experts)
        recording = VariantRecording(variant, writer, model)
        recording.run_id = run_id
        recording.record_capture()
        latency = _latency(recording, seat)
        steadiness = Steadiness(held_to or of_latency(latency.speeds_ns), waiting.budget_s)
        with seat.turn(TRACES):
            recording.warm_up_profiler()
        speeds: list[list[int]] = []
        for number in range(r.trace_runs):
            with seat.turn(TRACES):
                say(f"recording trace {number + 1} of {r.trace_runs}")
                held = _trace(recording, steadiness, recording.scratch)
                recording.keep_trace(number, held.value, held.attempts)
                speeds.append(held.speeds_ns)
        notes = _unsteady("trace", waiting, steadiness, speeds)
        if r.has_gpu and r.replay_runs is None:
            say("measuring the launch floor")
            notes += _floor(recording, waiting, steadiness, seat)
        elif r.has_gpu and r.replay_runs is not None:
            with seat.turn(FLOOR):  # minutes, and one profile: not to be cut into parts
                recording.replay(r.replay_runs)
        taken, of_turns = seat.described()
        manifest = recording.manifest(None)
        assert manifest.host_speed is not None
        speed = replace(
            manifest.host_speed, target_ns=steadiness.target.ns, like=steadiness.target.like
        )
        notes = [*manifest.notes, *notes, *of_turns]
        return writer.finish(replace(manifest, notes=notes, turns=taken, host_speed=speed))


def _latency(recording: VariantRecording, seat: Turns | Alone) -> LatencyPass:
    r = recording.request
    say(f"measuring latency: {r.warmup} + {r.latency_runs} requests without profiler")
    latency = LatencyPass(recording.workload, r.new_tokens, r.device, r.latency_runs)
    latency.warm_up(r.warmup)
    block = BLOCK if seat.is_shared else r.latency_runs
    for first in range(0, r.latency_runs, block):
        with seat.turn(LATENCY):
            if seat.is_shared:
                latency.settle()
            latency.take(min(block, r.latency_runs - first))
    recording.add_latency(latency)
    return latency


def _trace(recording: VariantRecording, steadiness: Steadiness, path: Path) -> Held[TraceTimes]:
    r = recording.request
    return record_trace(recording.workload, r.new_tokens, r.device, path, steadiness, r.stacks)


def record_trace(
    workload: Workload,
    new_tokens: int,
    device: str,
    path: Path,
    steadiness: Steadiness,
    stacks: bool = False,
) -> Held[TraceTimes]:
    """Record one request into a Kineto trace at `path` (.json), while the host is steady."""

    def plain(steps: int = new_tokens) -> list[int]:
        return trace_pass.unprofiled_request(workload, steps, device)

    def measure() -> Callable[[], TraceTimes]:
        unprofiled = plain()
        profile, walls = trace_pass.profiled_request(workload, new_tokens, device, stacks)

        def keep() -> TraceTimes:
            path.unlink(missing_ok=True)
            profile.export_chrome_trace(str(path))
            return TraceTimes(walls, unprofiled, [])

        return keep

    plain(min(new_tokens, 2))
    held = steadiness.hold(plain, measure)
    return replace(held, value=replace(held.value, host_speed=held.speeds_ns))


def _seat(waiting: Waiting, run_id: str, name: str) -> Turns | Alone:
    """The recording's seat among those that it takes turns with."""
    if waiting.turns is None:
        return ALONE
    return Turns(waiting.turns, waiting.turns_of, run_id, name, waiting.turns_patience_s)


def _unsteady(
    what: str, waiting: Waiting, steadiness: Steadiness, speeds_ns: list[list[int]]
) -> list[str]:
    """The note on what was kept although the host was off its target, said here too."""
    note = unsteady_note(what, steadiness.target, speeds_ns, waiting.budget_s)
    if note is None:
        return []
    say(note)
    return [note]


def _floor(
    recording: VariantRecording, waiting: Waiting, steadiness: Steadiness, seat: Turns | Alone
) -> list[str]:
    """The launch floor, at the speed of the traces: every launch in T_Orchestration counts it."""
    r = recording.request

    def wait() -> None:
        trace_pass.run_request(recording.workload, 1, annotate=False)

    count = FLOOR_TURNS if seat.is_shared else 1
    samples = math.ceil(r.floor_runs / count)

    def measure() -> Callable[[], LaunchFloors]:
        found = kernel_replay.floor(r.device, samples)
        return lambda: found

    parts: list[LaunchFloors] = []
    speeds: list[list[int]] = []
    for _ in range(count):
        with seat.turn(FLOOR):
            if seat.is_shared:
                wait()
            held = steadiness.hold(wait, measure)
        parts.append(held.value)
        speeds.append(held.speeds_ns)
    recording.add_floors(kernel_replay.joined(parts), [ns for pair in speeds for ns in pair])
    return _unsteady("launch floor", waiting, steadiness, speeds)
