"""The measurements of a run directory beside its traces: launch floors, kernel replay, latency.

A file that is not of the form that the collector writes is refused in one line.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np

from analyzer.attribution import classification, decomposition
from analyzer.attribution.decomposition import Floor
from analyzer.attribution.intervals import Ints
from analyzer.attribution.kernel_match import Replayed
from analyzer.errors import AnalyzerError
from analyzer.ingest.sources import Source, read_json

FLOOR_DEFINITION = "api_start_to_kernel_start"


@dataclass(frozen=True)
class FloorSamples:
    """Samples of the null kernel through one launch API, in ns."""

    launch_api: str
    definition: str
    samples_ns: Ints


@dataclass(frozen=True)
class LatencyRequest:
    """One request without profiler, in ns; `itl_ns` are the gaps between tokens."""

    ttft_ns: int | None
    total_ns: int | None
    itl_ns: list[int]


@dataclass(frozen=True)
class Latency:
    """Requests in order, and the host wall time of each step by phase, in ns."""

    requests: list[LatencyRequest]
    steps: dict[str, list[int]]


@dataclass(frozen=True)
class Measurements:
    """What was measured beside the traces.

    Attributes:
        floors: Of each launch API and definition; empty if not measured.
        replays: One a kernel of a replayed op call; None without a kernel replay.
        latency: None if not measured.
    """

    floors: list[FloorSamples]
    replays: list[Replayed] | None
    latency: Latency | None


def read_measurements(source: Source) -> Measurements:
    """Read the measurements of a source; a trace alone has none.

    Raises:
        AnalyzerError: A file cannot be read, or is not as the collector writes it.
    """
    # A run directory has one file of each, or none.
    path_of = {file.role: file.path for file in source.files}
    floor, replay, latency = (path_of.get(role) for role in ("floor", "replay", "latency"))
    return Measurements(
        floors=_floors(floor) if floor else [],
        replays=_replays(replay) if replay else None,
        latency=_latency(latency) if latency else None,
    )


def launch_floor(floors: list[FloorSamples], clean_gaps: list[Ints]) -> Floor:
    """The measured floor if the run has one, else an estimate from its clean launches.

    Args:
        clean_gaps: `decomposition.clean_gaps` of each trace.
    """
    by_api: dict[str, int] = {}
    for floor in floors:
        p50 = decomposition.percentile(floor.samples_ns, 50)
        if floor.definition == FLOOR_DEFINITION and p50 >= 0:  # else the clocks differ
            by_api[floor.launch_api] = p50
    if by_api:
        default = by_api.get("cudaLaunchKernel") or sorted(by_api.values())[len(by_api) // 2]
        return Floor("null_kernel", default, by_api)
    samples = np.concatenate(clean_gaps) if clean_gaps else np.empty(0, np.int64)
    return decomposition.trace_floor(samples)


def _floors(path: Path) -> list[FloorSamples]:
    entries: Any = read_json(path).get("floors", [])
    if not isinstance(entries, list):
        raise AnalyzerError(f"{path} has no list of floors; measure it again.")
    floors: list[FloorSamples] = []
    for entry in cast("list[Any]", entries):
        try:
            samples = np.array([int(v) for v in entry["samples_ns"]], np.int64)
            api, definition = str(entry["launch_api"]), str(entry["definition"])
        except (KeyError, TypeError, ValueError) as error:
            raise AnalyzerError(f"{path} has a floor without {error}; measure it again.") from error
        if len(samples):
            floors.append(FloorSamples(api, definition, samples))
    return floors


@contextmanager
def _as_written(path: Path) -> Generator[None, None, None]:
    """What is not of the form that the collector writes is the file's fault, not ours."""
    try:
        yield
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise AnalyzerError(
            f"{path} is not as the collector writes it ({error}); record the run again."
        ) from error


def _latency(path: Path) -> Latency:
    with _as_written(path):
        value = read_json(path)
        requests: list[LatencyRequest] = []
        for request in value.get("requests", []):
            itl: list[Any] = request.get("itl_ns") or []
            gaps = [int(v) for v in itl]
            requests.append(LatencyRequest(request.get("ttft_ns"), request.get("total_ns"), gaps))
        steps: dict[str, list[Any]] = value.get("steps") or {}
        return Latency(requests, {p: [int(v) for v in s] for p, s in steps.items() if s})


def _replays(path: Path) -> list[Replayed]:
    found: list[Replayed] = []
    with _as_written(path):
        for op in read_json(path).get("ops", []):
            kernels: list[dict[str, Any]] = op.get("kernels") or [{}]
            for kernel in kernels:
                name = kernel.get("name")
                found.append(
                    Replayed(
                        op=op.get("op"),
                        dims=op.get("input_dims"),
                        types=op.get("input_types"),
                        strides=op.get("input_strides"),
                        concrete=op.get("concrete_inputs"),
                        reason=op.get("reason"),
                        name=name,
                        clean_name=classification.clean_name(name) if name else None,
                        position=kernel.get("position", 0),
                        grid=_list_text(kernel.get("grid")),
                        block=_list_text(kernel.get("block")),
                        shared_memory=kernel.get("shared_memory"),
                        launch_api=kernel.get("launch_api"),
                        occurrences=kernel.get("count", 0),
                        dispatch_ns=[int(v) for v in kernel.get("dispatch_ns", [])],
                        launch_ns=[int(v) for v in kernel.get("launch_ns", [])],
                        exec_ns=[int(v) for v in kernel.get("exec_ns", [])],
                    )
                )
    return found


def _list_text(value: Any) -> str | None:
    """A grid or block as the trace writes it."""
    if value is None:
        return None
    return value if isinstance(value, str) else "[" + ", ".join(str(v) for v in value) + "]"
