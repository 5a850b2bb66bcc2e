"""One recording: the passes of a workload, or of several variants of it interleaved.

Order: capture traces (graph, hybrid), latency without profiler, traces with the launch floor, or
traces and then execution trace and kernel replay. Each pass is a request of its own, so that none
perturbs another.

Of several variants, each measures a little and then the next one: A B, B A, A B, ... They meet the
same minutes of the host, and its main thread stays on one CPU, as CPUs of one host may differ in
speed (docs/decisions/0007). Each becomes a run directory of its own, in one group. The launch floor
is that of the host: it is measured once, among the traces, for all of them.
"""

from __future__ import annotations

import math
import secrets
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from datetime import datetime, timezone
from pathlib import Path

import torch

from collector import environment
from collector.calibration import DEFINITION, calibrate
from collector.progress import Progress, say
from collector.record import trace_pass
from collector.record.job import Place, finish, joined
from collector.record.latency import LatencyPass
from collector.record.placement import current_cpu, on_one_cpu
from collector.record.request import Request, Variant
from collector.replay import kernel_replay
from collector.replay.recorded_run import replay_into
from collector.workloads import make, models, tensor_parallel
from collector.writer import RunDirectoryWriter
from schemas.manifest import Group, HostSpeed, Job, Manifest, TraceFile
from schemas.measurements import LaunchFloors
from schemas.run_directory import (
    CAPTURE_TRACE,
    EXECUTION_TRACE,
    LATENCY,
    NULL_KERNEL,
    STEP_ANNOTATION_PREFIX,
    TRACE,
)

# Interleaved: latency requests of one variant before the next one's.
BLOCK = 5
# Interleaved: parts in which the launch floor is measured, spread over the traces.
FLOOR_PARTS = 5


def record(
    variants: Sequence[Variant],
    model: models.LoadedModel | None = None,
    where: Place | None = None,
) -> list[Path]:
    """Record variants into their run directories; returns these.

    Args:
        variants: Of one device; requests and traces to take are those of the first one.
        model: The model of all of them, if the caller has it on the device already.
        where: The rank that this process is of a job; its run directories go into the job's
            folders, which the variants name.

    Raises:
        CollectorError: A variant cannot be run here; nothing is left behind.
    """
    for variant in variants:
        variant.request.check()
    targets = [where.target(v.target) if where else v.target for v in variants]
    first = variants[0].request
    with ExitStack() as stack, torch.inference_mode():
        writers = [stack.enter_context(RunDirectoryWriter(target)) for target in targets]
        job: Job | None = None
        if where:
            job = stack.enter_context(joined(where, first.device, first.tensor_parallel))
        session = _Session(_recordings(variants, writers, model, job))
        session.measure()
        for recording, group in zip(session.recordings, session.groups(), strict=True):
            recording.writer.seal(recording.manifest(group, job))
        written = [writer.publish() for writer in writers]
    if job:
        for variant in variants:
            finish(variant.target, job)
    return written


def _recordings(
    variants: Sequence[Variant],
    writers: Sequence[RunDirectoryWriter],
    model: models.LoadedModel | None,
    job: Job | None,
) -> list[VariantRecording]:
    """Build models and workloads side by side; variants share a model where they can."""
    loaded: dict[tuple[object, ...], models.LoadedModel] = {}
    found: list[VariantRecording] = []
    for number, (variant, writer) in enumerate(zip(variants, writers, strict=True)):
        r = variant.request
        own = number if r.mode == "hybrid" else None  # that runtime changes the model it is given
        key = (r.model, r.dtype, r.device, r.seed, r.attention, r.experts, own)
        if model is not None:
            loaded[key] = model
        if key not in loaded:
            say(f"building {r.model} ({r.dtype}, {r.device})")
            loaded[key] = models.load(r.model, r.dtype, r.device, r.seed, r.attention, r.experts)
            if job and r.tensor_parallel > 1:
                tensor_parallel.split(loaded[key].module, job.rank, r.tensor_parallel, r.model)
        found.append(VariantRecording(variant, writer, loaded[key]))
    return found


class VariantRecording:
    """The passes of one variant, and what they have measured."""

    def __init__(
        self, variant: Variant, writer: RunDirectoryWriter, model: models.LoadedModel
    ) -> None:
        request = variant.request
        ids_BT = make.prompt_ids(
            model, request.batch_size, request.prompt_len, request.seed, request.prompt
        )
        self.request = request
        self.name = variant.name
        self.writer = writer
        self.run_id = secrets.token_hex(16)
        self.workload, self._graphs = make.make(
            model,
            request.mode,
            ids_BT,
            request.new_tokens,
            request.device,
            request.all_logits,
        )
        self._floor_speeds_ns: list[int] | None = None
        self._model_name = model.name
        self._batch_size, self._prompt_len = ids_BT.shape
        self._scratch = writer.path / ".trace.json"
        self._traces: list[TraceFile] = []
        self._notes: list[str] = []
        self._passes = {
            "latency": trace_pass.PERTURBS["latency"],
            "trace": trace_pass.PERTURBS["stacks" if request.stacks else "trace"],
        }
        self._latency_speeds_ns: list[int] = []

    def record_capture(self) -> None:
        """Record the capture of the CUDA graphs, if there are any."""
        graphs, request = self._graphs, self.request
        if graphs is None:
            return
        say("recording the capture of the graphs")
        trace_pass.record_capture(
            lambda: graphs.capture_all(request.prompt_len, request.new_tokens),
            request.device,
            self._scratch,
        )
        self.writer.add_gzip(CAPTURE_TRACE, self._scratch)
        self._passes["capture"] = trace_pass.PERTURBS["capture"]
        self._traces.append(TraceFile(CAPTURE_TRACE, "capture", self._passes["capture"]))

    def add_latency(self, latency: LatencyPass) -> None:
        """Write what the latency pass has measured."""
        self.writer.add_json(LATENCY, latency.measured())
        self._latency_speeds_ns = latency.speeds_ns

    def warm_up_profiler(self) -> None:
        """Profile one request and drop it: the first one in a process sets the profiler up."""
        r = self.request
        trace_pass.warm_up(self.workload, r.new_tokens, r.device, r.stacks)

    def record_trace(self, number: int) -> None:
        """Record trace `number`, from 0 on."""
        r = self.request
        file = TRACE if number == 0 else TRACE.replace(".", f"-{number + 1}.", 1)
        times = trace_pass.record(self.workload, r.new_tokens, r.device, self._scratch, r.stacks)
        self.writer.add_gzip(file, self._scratch)
        self._traces.append(
            TraceFile(
                file,
                "trace",
                self._passes["trace"],
                times.profiled,
                times.host_speed,
                times.unprofiled,
            )
        )

    def add_floors(self, floors: LaunchFloors, speeds_ns: list[int]) -> None:
        """Write the launch floors, and keep the host's speeds around them."""
        self.writer.add_json(NULL_KERNEL, floors)
        self._floor_speeds_ns = speeds_ns
        self._passes["floor"] = trace_pass.PERTURBS["replay"]

    def replay(self, samples: int) -> None:
        """Record the execution trace, and replay the op calls of the traces."""
        r = self.request
        say("recording the execution trace")
        trace_pass.record_execution_trace(self.workload, r.new_tokens, r.device, self._scratch)
        self.writer.add_gzip(EXECUTION_TRACE, self._scratch)
        before = calibrate()
        self._notes += replay_into(self.writer, r.device, samples, r.replay_budget_s)
        self._floor_speeds_ns = [before, calibrate()]
        for name in ("execution_trace", "replay"):
            self._passes[name] = trace_pass.PERTURBS[name]

    def manifest(self, group: Group | None, job: Job | None) -> Manifest:
        """Return what the run directory says of itself."""
        r = self.request
        phases = [{"phase": "prefill", "steps": 1}]
        if r.new_tokens > 1:
            phases.append({"phase": "decode", "steps": r.new_tokens - 1})
        notes = [*self._notes]
        if not r.has_gpu:
            notes.append("recorded on a CPU: no kernels, no launch floor, no kernel replay")
        if r.experts:
            notes.append(f"experts: {r.experts}")
        if r.all_logits:
            notes.append("logits: of every position of the prompt")
        return Manifest(
            run_id=self.run_id,
            name=self.name,
            created_at=datetime.now(timezone.utc).isoformat(timespec="seconds"),
            mode=r.mode,
            traces=self._traces,
            model=self._model_name,
            attention=r.attention,
            dtype=str(models.DTYPES[r.dtype]).removeprefix("torch."),
            device=r.device,
            batch_size=self._batch_size,
            prompt_len=self._prompt_len,
            new_tokens=r.new_tokens,
            seeds={"weights": r.seed, "prompt": r.seed},
            phases=phases,
            step_annotation=[f"{STEP_ANNOTATION_PREFIX}*"],
            command=" ".join(["collector", *sys.argv[1:]]),
            environment=environment.describe(r.device),
            passes=self._passes,
            notes=notes,
            host_speed=HostSpeed(DEFINITION, self._latency_speeds_ns, self._floor_speeds_ns),
            group=group,
            job=job,
        )


class _Session:
    """The recordings of one process, measured in one loop."""

    def __init__(self, recordings: list[VariantRecording]) -> None:
        self.recordings = recordings
        self._request: Request = recordings[0].request
        self._is_group = len(recordings) > 1
        self._cpu = current_cpu() if self._is_group else None

    def measure(self) -> None:
        """Run all passes of all recordings."""
        for recording in self.recordings:
            recording.record_capture()
        self._measure_latency()
        self._record_traces()
        if self._request.has_gpu and self._request.replay_runs is not None:
            for recording in self.recordings:
                with on_one_cpu(self._cpu):
                    recording.replay(self._request.replay_runs)

    def groups(self) -> Iterator[Group | None]:
        """What each manifest says of the group."""
        count, group_id = len(self.recordings), secrets.token_hex(16)
        for number in range(1, count + 1):
            yield Group(group_id, number, count, self._cpu) if self._is_group else None

    def _in_order(self, number: int) -> list[VariantRecording]:
        """Return the recordings of one round: every second one goes back, so that a steady drift
        of the host favours none.
        """
        return self.recordings[::-1] if number % 2 else self.recordings

    def _measure_latency(self) -> None:
        r, done = self._request, 0
        bar, total = Progress("latency"), (r.warmup + r.latency_runs) * len(self.recordings)

        def tick() -> None:
            nonlocal done
            done += 1
            bar(done, total)

        say(f"measuring latency: {r.warmup} + {r.latency_runs} requests without profiler")
        passes = {
            recording.run_id: LatencyPass(
                recording.workload, r.new_tokens, r.device, r.latency_runs, tick
            )
            for recording in self.recordings
        }
        for latency in passes.values():
            latency.warm_up(r.warmup)
        block = BLOCK if self._is_group else r.latency_runs
        for number, first in enumerate(range(0, r.latency_runs, block)):
            for recording in self._in_order(number):
                with on_one_cpu(self._cpu):
                    if self._is_group:
                        passes[recording.run_id].settle()
                    passes[recording.run_id].take(min(block, r.latency_runs - first))
        for recording in self.recordings:
            recording.add_latency(passes[recording.run_id])

    def _record_traces(self) -> None:
        """Record every trace of every variant, and the launch floor among them."""
        runs = self._request.trace_runs
        has_floor = self._request.has_gpu and self._request.replay_runs is None
        parts = min(FLOOR_PARTS, runs) if self._is_group else 1
        floor_after = {(part + 1) * runs // parts - 1 for part in range(parts) if has_floor}
        floors: list[LaunchFloors] = []
        speeds_ns: list[int] = []
        for recording in self.recordings:
            with on_one_cpu(self._cpu):
                recording.warm_up_profiler()
        for number in range(runs):
            for recording in self._in_order(number):
                of = f" of {recording.name}" if self._is_group else ""
                say(f"recording trace {number + 1} of {runs}{of}")
                with on_one_cpu(self._cpu):
                    recording.record_trace(number)
            if number in floor_after:
                say("measuring the launch floor")
                with on_one_cpu(self._cpu):
                    self._measure_floor(parts, floors, speeds_ns)
        if has_floor:
            for recording in self.recordings:
                recording.add_floors(kernel_replay.joined(floors), speeds_ns)

    def _measure_floor(self, parts: int, floors: list[LaunchFloors], speeds_ns: list[int]) -> None:
        """Measure one part of the launch floor, with the host's speed before and after."""
        r = self._request
        trace_pass.unprofiled_request(self.recordings[0].workload, 1, r.device)
        before = calibrate()
        floors.append(kernel_replay.floor(r.device, math.ceil(r.floor_runs / parts)))
        speeds_ns += [before, calibrate()]
