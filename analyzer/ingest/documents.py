"""The measurements of a run directory beside its traces: launch floors, kernel replay, latency."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from analyzer.attribution import classification, decomposition
from analyzer.attribution.decomposition import Floor
from analyzer.attribution.intervals import Ints
from analyzer.attribution.kernel_match import Replayed
from analyzer.ingest.sources import Source
from schemas.measurements import (
    KernelReplay,
    Latency,
    LaunchFloor,
    LaunchFloors,
    ReplayedKernel,
    ReplayedOp,
)
from schemas.run_directory import read_document

FLOOR_DEFINITION = "api_start_to_kernel_start"


@dataclass(frozen=True)
class Measurements:
    """What was measured beside the traces.

    Attributes:
        floors: Of each launch API and definition, those with samples; empty if not measured.
        replays: One a kernel of a replayed op call; None without a kernel replay.
        latency: None if not measured.
    """

    floors: list[LaunchFloor]
    replays: list[Replayed] | None
    latency: Latency | None


def read_measurements(source: Source) -> Measurements:
    """Read the measurements of a source; a trace alone has none.

    Raises:
        RunDirectoryError: A file cannot be read, or is not as the collector writes it.
    """
    # A run directory has one file of each, or none; of ranks the first one's count.
    path_of = {file.role: file.path for file in reversed(source.files)}
    floor, replay, latency = (path_of.get(role) for role in ("floor", "replay", "latency"))
    floors = read_document(floor, LaunchFloors).floors if floor else []
    return Measurements(
        floors=[one for one in floors if one.samples_ns],
        replays=_replays(read_document(replay, KernelReplay)) if replay else None,
        latency=read_document(latency, Latency) if latency else None,
    )


def launch_floor(floors: Sequence[LaunchFloor], clean_gaps: Sequence[Ints]) -> Floor:
    """Return the measured floor if the run has one, else an estimate from its clean launches.

    Args:
        clean_gaps: `decomposition.clean_gaps` of each trace.
    """
    by_api: dict[str, int] = {}
    for floor in floors:
        p50 = decomposition.percentile(np.array(floor.samples_ns, np.int64), 50)
        if floor.definition == FLOOR_DEFINITION and p50 >= 0:  # else the clocks differ
            by_api[floor.launch_api] = p50
    if by_api:
        default = by_api.get("cudaLaunchKernel") or sorted(by_api.values())[len(by_api) // 2]
        return Floor("null_kernel", default, by_api)
    samples = np.concatenate(clean_gaps) if clean_gaps else np.empty(0, np.int64)
    return decomposition.trace_floor(samples)


def _replays(replay: KernelReplay) -> list[Replayed]:
    """One a kernel of each op call; an op call without any has one without a name."""
    return [
        _replayed(op, kernel) for op in replay.ops for kernel in op.kernels or [ReplayedKernel()]
    ]


def _replayed(op: ReplayedOp, kernel: ReplayedKernel) -> Replayed:
    return Replayed(
        op=op.op,
        dims=op.input_dims,
        types=op.input_types,
        strides=op.input_strides,
        concrete=op.concrete_inputs,
        reason=op.reason,
        name=kernel.name,
        clean_name=classification.clean_name(kernel.name) if kernel.name else None,
        position=kernel.position,
        grid=_list_text(kernel.grid),
        block=_list_text(kernel.block),
        shared_memory=kernel.shared_memory,
        launch_api=kernel.launch_api,
        occurrences=kernel.count,
        dispatch_ns=kernel.dispatch_ns,
        launch_ns=kernel.launch_ns,
        exec_ns=kernel.exec_ns,
    )


def _list_text(value: Sequence[int] | None) -> str | None:
    """A grid or block as the trace writes it."""
    return None if value is None else f"[{', '.join(map(str, value))}]"
