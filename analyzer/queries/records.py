"""What queries give back: runs, what they were read from, kernels, ops, latency; a line a field.

`costs.py` has what a step cost. Times are integer nanoseconds on the trace's clock, unknown is
None. Fields stand in the order in which `--json` has them.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from schemas.manifest import Manifest
from schemas.run_directory import manifest_from_json

# -- a run and what it was read from


@dataclass(frozen=True)
class Run:
    """A run's row of the store, with its host's."""

    run_id: str  # first 32 hex digits of the content hash
    name: str  # shown; need not be unique
    source: str  # run_directory | trace
    path: str  # where it was read from, as given
    content_sha256: str  # of the files' roles and hashes
    recording_id: str | None  # the manifest's run_id; None for a bare trace
    created_at: str | None  # when it was recorded, ISO 8601
    ingested_at: str  # ISO 8601, UTC
    analyzer_version: str  # that loaded it
    host_id: str | None  # hash of the host's row
    model: str | None  # as the recorder named it
    mode: str  # eager | hybrid | compile | graph | foreign
    attention: str | None  # implementation, e.g. sdpa
    dtype: str | None  # of the weights
    batch_size: int | None  # sequences
    prompt_len: int | None  # tokens of a prompt
    new_tokens: int | None  # tokens generated for each sequence
    gpu: str | None  # its name, by the trace or the manifest
    step_annotation: str  # globs that were asked for, comma separated
    phases: str | None  # JSON: the manifest's plan of phases
    manifest: str | None  # JSON: the whole manifest; None for a bare trace
    trace_metadata: str | None  # JSON: top-level fields of the first trace
    host: str | None  # a name or a random id
    cpu: str | None  # model of the host's CPU
    cpu_count: int | None  # CPUs that the recording could use
    cpu_governor: str | None  # of its clock
    memory_bytes: int | None  # of the host
    os: str | None  # of the host
    gpu_count: int | None  # GPUs of the host
    gpu_memory_bytes: int | None  # of one GPU
    driver: str | None  # version of the GPU's driver
    versions: str | None  # JSON: library -> version

    @cached_property
    def recorded(self) -> Manifest | None:
        """The manifest, parsed once; None for a run that came without one.

        Raises:
            RunDirectoryError: The store holds a manifest that cannot be read.
        """
        if not self.manifest:
            return None
        return manifest_from_json(self.manifest, Path(self.name))

    @cached_property
    def library_versions(self) -> dict[str, str]:
        """Library -> version; empty if unknown."""
        return json.loads(self.versions or "{}")


@dataclass(frozen=True)
class ListedRun:
    """A run in a list, with the figures by which one chooses: sums over its steps."""

    run_id: str  # first 32 hex digits of the content hash
    name: str  # shown; need not be unique
    model: str | None  # as the recorder named it
    mode: str  # eager | hybrid | compile | graph | foreign
    attention: str | None  # implementation, e.g. sdpa
    dtype: str | None  # of the weights
    batch_size: int | None  # sequences
    prompt_len: int | None  # tokens of a prompt
    new_tokens: int | None  # tokens generated for each sequence
    gpu: str | None  # its name
    host: str | None  # a name or a random id
    source: str  # run_directory | trace
    created_at: str | None  # when it was recorded, ISO 8601
    ingested_at: str  # ISO 8601, UTC
    phases: str | None  # JSON: the manifest's plan of phases
    steps: int | None  # marked steps; without marks the whole trace is one
    kernels: int | None  # kernels of the steps
    launches: int | None  # kernel and graph launches of the steps
    device_active_ns: int | None  # sum of kernel durations
    orchestration_ns: int | None  # what the host spent to get the kernels launched
    hdbi: float | None  # 0 host-bound, 1 device-bound
    idle_share: float | None  # of the steps' host time, while the device was idle
    step_elapsed_ns: int | None  # median step
    floor_source: str | None  # null_kernel | trace | none
    launch_floor_ns: int | None  # launch start to kernel start of the empty kernel
    warnings: int  # that its trace gave rise to


@dataclass(frozen=True)
class RunFile:
    """A file that a run was read from."""

    file: str  # name in the run directory, or of the trace
    role: str  # trace | capture | manifest | replay | floor | latency | execution_trace
    sha256: str  # of its bytes
    bytes: int  # as stored (compressed)


@dataclass(frozen=True)
class Trace:
    """A trace of a run."""

    trace_id: int  # ordinal in the run
    file: str  # that holds it
    document: int  # ordinal of the JSON document in the file
    role: str  # trace | capture
    rank: int | None  # of the process in a distributed run
    events: int  # events read, all phases
    json_bytes: int  # decompressed
    start_ns: int | None  # first start of an op, call or device event
    end_ns: int | None  # last end of one
    step_source: str | None  # what told its steps; None for a capture
    step_coverage: float | None  # share of its launches that are in steps
    step_confidence: float | None  # 1: marked; repetition: what the repetitions have in common
    metadata: str  # JSON: top-level fields without the events


@dataclass(frozen=True)
class StepGroup:
    """The steps of one phase and batch, warm-up left out; medians, but for what is a sum."""

    phase: str  # prefill | decode | mixed | capture | step | trace
    batch: int | None  # requests; None where no mark says
    steps: int  # how many
    host_ns: int  # start to end on the host
    device_ns: int | None  # first start to last end of what they launched
    period_ns: int | None  # start to the start of the next step
    between_ns: int | None  # end to that start
    exposed_ns: int | None  # sum: host ranges with no device busy
    between_exposed_ns: int | None  # sum: between steps, no device busy
    overlap: float | None  # part of the host ranges beside device work


@dataclass(frozen=True)
class Finding:
    """Something that the reader of a run should know."""

    trace_id: int | None  # None: the run as a whole
    code: str  # e.g. truncated, bad_time, orphan_device_events
    severity: str  # warning | note
    count: int  # how often it was seen
    place: str | None  # first place seen: byte offset or event index
    message: str  # one line: what was found, where, what it means


@dataclass(frozen=True)
class Check:
    """What a trace can prove in one respect; figures are groups, as docs/schema.md names them."""

    trace_id: int | None  # None: all traces of the run together
    name: str  # e.g. graph_launches, dropped_events, truncated
    verdict: str  # ok | touched | unknown
    count: int  # how often it was seen
    total: int | None  # of how many
    share: float | None  # count / total, or of time
    found: str  # what was found, in a clause
    at_least: list[str]  # figures that are a lower bound
    at_most: list[str]  # figures that are an upper bound
    not_judged: list[str]  # figures of which not even a bound holds
    effect: str | None  # what follows for the figures
    remedy: str | None  # what to do about it


@dataclass(frozen=True)
class Description:
    """What a run is and what it was read from."""

    run: Run
    files: list[RunFile]  # by role and name
    traces: list[Trace]  # in order
    quality: list[Finding]  # warnings first

    def with_json(self) -> dict[str, Any]:
        """The record with the JSON texts in it parsed, as `show --json` and the API have it."""
        value: dict[str, Any] = asdict(self)
        for key in ("manifest", "trace_metadata", "phases", "versions"):
            value["run"][key] = json.loads(value["run"][key]) if value["run"][key] else None
        for trace in value["traces"]:
            trace["metadata"] = json.loads(trace["metadata"])
        return value


# -- kernels, ops, launches


@dataclass(frozen=True)
class Family:
    """Kernels of one family; copies and memsets are families of their own."""

    events: int  # device events
    distinct_kernels: int  # kernel identities
    device_ns: int  # sum of their durations
    launches: int | None  # kernel launches; None for copies
    clean_launches: int | None  # of them, on a stream that was seen idle
    launch_ns: int | None  # median T_launch of clean launches
    above_floor_ns: int | None  # median launch cost less the launch floor
    ft_ns: int | None  # framework translation
    ct_ns: int | None  # CUDA-library translation
    share: float | None  # of all families' device time


@dataclass(frozen=True)
class Kernel:
    """A kernel identity: name, launch configuration, op, shapes."""

    kernel_id: int  # ordinal in the run
    kernel: str  # raw name
    clean_name: str  # demangled, without arguments
    family: str  # gemm, attention, elementwise, ...
    op: str | None  # innermost op that launched it
    input_dims: str | None  # of the op, text as in the trace
    input_types: str | None  # of the op
    input_strides: str | None  # of the op
    grid: str | None  # text as in the trace
    block: str | None  # text as in the trace
    shared_memory: int | None  # bytes
    registers: int | None  # per thread
    is_library: bool  # of a CUDA library, by evidence
    kernels: int  # how often it ran
    device_ns: int  # sum of its durations
    min_ns: int  # its shortest run
    p50_ns: int  # its median run
    max_ns: int  # its longest run
    launches: int | None  # launches that it was the first kernel of
    launch_ns: int | None  # median T_launch of clean launches
    host_ns: int | None  # dFT + dCT + dKT as far as known
    match_tier: str | None  # of the kernel replay; None without one
    same_configuration: bool | None  # grid, block and shared memory of the replay are equal too
    match_reason: str | None  # why it is unmatched


@dataclass(frozen=True)
class Op:
    """The launches under innermost ops of one name."""

    op: str  # its name; "(none)" for launches outside of ops
    launches: int  # kernel and graph launches
    kernels: int  # kernels that they started
    t_py_ns: int | None  # Python before the outermost op
    t_dispatch_ns: int | None  # from the outermost op to the launch
    ft_ns: int | None  # framework translation
    ct_ns: int | None  # CUDA-library translation
    kt_ns: int | None  # launch path at the floor
    host_ns: int  # dFT + dCT + dKT as far as known
    device_ns: int | None  # of the kernels


@dataclass(frozen=True)
class MatchTier:
    """The launches whose kernels the kernel replay matched in one way."""

    launches: int  # how many
    same_configuration: int  # of them, with grid, block and shared memory equal too
    cost_share: float | None  # of the launches' dFT + dCT + dKT
    same_configuration_cost_share: float | None  # of it, those of equal configuration


@dataclass(frozen=True)
class Coverage:
    """How much of a run is linked and attributed: counts."""

    device_events: int  # all of them
    with_launch: int  # whose launch is known
    with_op: int  # whose op is known
    op_from_capture: int  # of them, by the capture of a graph
    in_step: int  # whose launch is in a step
    launches: int  # kernel and graph launches
    clean_launches: int  # on a stream that was seen idle
    ops: int  # operators
    regions: int  # wraps of operators
    ops_with_shapes: int  # whose input shapes were recorded
    calls: int  # API calls
    streams: int  # that had work
    kernel_identities: int  # of name, configuration, op, shapes
    distinct_kernels: int  # of name


@dataclass(frozen=True)
class Floor:
    """A launch floor, measured with an empty kernel."""

    launch_api: str  # e.g. cudaLaunchKernel
    definition: str  # from where to where its time is taken
    n: int  # samples
    p5_ns: int  # 5 % of samples are at most so long
    p50_ns: int  # median
    mean_ns: int  # mean
    p95_ns: int  # 95 % of samples are at most so long


@dataclass(frozen=True)
class Latency:
    """A time that was measured without the profiler."""

    n: int  # samples
    p50_ns: int  # median
    p95_ns: int  # 95 % of samples are at most so long
    p99_ns: int  # 99 % of samples are at most so long
    mean_ns: int  # mean


Latencies = dict[str, Latency]  # ttft, tpot, itl, prefill_step, decode_step as far as measured


# -- what comparisons and predictions ask


@dataclass(frozen=True)
class KernelSequence:
    """The kernels that a step launched, in order."""

    phase: str  # of the step
    step_index: int  # ordinal in its phase and trace
    kernels: int  # how many
    sequence: str | None  # digest of names and configurations in order; None without kernels


@dataclass(frozen=True)
class ScheduledCall:
    """An API call of a step's launching thread; times count from the step's start."""

    call_id: int  # ordinal in the run
    account: str  # launch | graph_launch | memory | wait | other_call
    start_ns: int  # may be 0
    dur_ns: int  # on the host
    step_ns: int  # the step's time on the host


@dataclass(frozen=True)
class ScheduledEvent:
    """A device event whose call started in a step; times count from the step's start."""

    call_id: int  # that started it
    kind: str  # kernel | memcpy | memset | mtia
    family: str | None  # None for copies and memsets
    device: str  # as in the trace
    lane: str  # device/stream
    start_ns: int  # on the device
    dur_ns: int  # on the device
    in_graph: bool  # a node of a graph replay
    mine: bool  # its call is one of the launching thread


@dataclass(frozen=True)
class StepProduct:
    """A matrix product or attention that a step asks for, with its shapes."""

    step_id: int  # ordinal in the run
    op: str  # innermost operator
    input_dims: str | None  # JSON, as in the trace; None without recorded shapes
    input_types: str | None  # JSON, as in the trace; None without recorded shapes
    times: int  # how often in the step


@dataclass(frozen=True)
class GraphGaps:
    """The time between two nodes of a graph replay; None without replays."""

    n: int  # gaps measured
    p5_ns: int | None  # 5 % of samples are at most so long
    mean_ns: int | None  # mean
    p95_ns: int | None  # 95 % of samples are at most so long
