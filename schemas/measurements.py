"""What a recording measured beside its traces: latency, launch floors, kernel replay.

Each record is the whole of one JSON document of a run directory (`run_directory.read_document`).
Samples are raw. Times are integer nanoseconds on one host clock: durations of what surely took time
are above 0, differences between a host and a device event are as they were read, negative where the
two clocks disagree.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from schemas.manifest import Nanoseconds


@dataclass(frozen=True)
class LatencyRequest:
    """One request without profiler.

    Attributes:
        ttft_ns: From token ids in host memory to the first token's value in host memory.
        itl_ns: Each gap between tokens; empty for a request of one token.
        total_ns: From the beginning to the last token.
    """

    ttft_ns: Nanoseconds
    itl_ns: list[Nanoseconds] = field(default_factory=list[int])
    total_ns: Nanoseconds | None = None


@dataclass(frozen=True)
class Latency:
    """latency.json: requests without profiler. TPOT is derived, unknown for one token.

    Attributes:
        definition: What was timed.
        warmup: Requests that were run before and left out.
        requests: In order.
        steps: Host wall time of each step, by phase ("prefill", "decode").
    """

    definition: str = ""
    warmup: int = 0
    requests: list[LatencyRequest] = field(default_factory=list[LatencyRequest])
    steps: dict[str, list[Nanoseconds]] = field(default_factory=dict[str, list[int]])


@dataclass(frozen=True)
class LaunchFloor:
    """Samples of the empty kernel through one launch API.

    Attributes:
        launch_api: "cudaLaunchKernel", "cuLaunchKernelEx", ...
        definition: Key of `LaunchFloors.definitions`; "api_start_to_kernel_start" is the launch
            floor.
        samples_ns: One a launch.
    """

    launch_api: str
    definition: str
    samples_ns: list[int]


@dataclass(frozen=True)
class LaunchFloors:
    """null_kernel.json: the launch floor of this host and GPU, by launch API.

    Attributes:
        definitions: What each definition of a floor means, in words.
        missing: Why a launch API has no floor, by API.
        floors: One a launch API and definition.
    """

    definitions: dict[str, str] = field(default_factory=dict[str, str])
    missing: dict[str, str] = field(default_factory=dict[str, str])
    floors: list[LaunchFloor] = field(default_factory=list[LaunchFloor])


@dataclass(frozen=True)
class ReplayedKernel:
    """One kernel of an op call that was made again, with its samples.

    Attributes:
        position: Place among the launches of the call, from 0 on.
        name: As the trace has it.
        grid, block: Launch configuration, three numbers each.
        shared_memory: Bytes.
        count: Samples in which it was launched.
        dispatch_ns: Op start, or end of the launch before, to the start of the launch.
        launch_ns: Launch start to kernel start.
        exec_ns: Kernel start to kernel end.
    """

    position: int = 0
    name: str | None = None
    grid: list[int] | None = None
    block: list[int] | None = None
    shared_memory: int | None = None
    launch_api: str | None = None
    count: int = 0
    dispatch_ns: list[int] = field(default_factory=list[int])
    launch_ns: list[int] = field(default_factory=list[int])
    exec_ns: list[int] = field(default_factory=list[int])


@dataclass(frozen=True)
class ReplayedOp:
    """One distinct op call of the traces; its texts are as in the Kineto trace, None if absent.

    Attributes:
        op: "aten::addmm", ...
        overload: Of the op's schema; None without a schema.
        calls_in_trace: How often the traces have it.
        samples: How often it was called for a sample.
        reason: Why it has no kernels; None if it has.
        kernels: In order of launch.
    """

    op: str
    overload: str | None = None
    input_dims: str | None = None
    input_types: str | None = None
    input_strides: str | None = None
    concrete_inputs: str | None = None
    calls_in_trace: int | None = None
    samples: int = 0
    reason: str | None = None
    kernels: list[ReplayedKernel] = field(default_factory=list[ReplayedKernel])


@dataclass(frozen=True)
class KernelReplay:
    """kernel_replay.json: each distinct op call alone, many times.

    Attributes:
        definition: How the samples were taken.
        ops: Those that could not be made again too, with their reason.
    """

    definition: str = ""
    ops: list[ReplayedOp] = field(default_factory=list[ReplayedOp])


Measurement = Latency | LaunchFloors | KernelReplay
