"""Profiles of JAX and XLA (`.xplane.pb`, plain or gzip) to columns; this folder is the only place
that knows their planes.

A file is one process's; a folder of a session has one from each host. Times are integer nanoseconds
from the start of the profile. Such a file also names its host, as does its own name, and holds the
programs with their paths: only planes of devices and of the host's threads are read, and no error
quotes the file or its name in a folder.
"""

from __future__ import annotations

import mmap
import os
import re
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from analyzer.trace.events import FindingKind, Trace, finding
from analyzer.trace.reader import DEFAULTS, ReadOptions, each_file, ran_together
from analyzer.trace.stream import TraceError, TraceStream, first_bytes
from analyzer.trace.tabular.process import processes
from analyzer.trace.wire import WireError
from analyzer.trace.xplane.events import ProfileEvents
from analyzer.trace.xplane.space import Plane, messages_of_loss, planes

_SUFFIXES = (".xplane.pb", ".xplane.pb.gz")
_ENVIRONMENT = "Task Environment"
_GPU = "/device:GPU:"
# Facts of a GPU, under the names that PyTorch gives them where it has one.
_GPU_FACTS = {
    "memory_size": "totalGlobalMem",
    "compute_cap_major": "computeMajor",
    "compute_cap_minor": "computeMinor",
    "core_count": "numSms",
    "memory_bandwidth": "memoryBandwidth",
    "clock_rate": "clockRate",
}

_FINDINGS = {
    "several_hosts": FindingKind(
        "note",
        "the folder holds the profiles of {count} processes; this is number {number}, each is a "
        "trace of its own",
    ),
    "profiler_messages": FindingKind(
        "warning",
        "the profiler wrote {count} errors or warnings into the profile: events may be missing",
    ),
    "no_time": FindingKind("warning", "{count} events had no start or end and were left out"),
    "other_devices": FindingKind(
        "warning", "{count} events of devices that are no GPUs are not read: they are in no figure"
    ),
    "opaque_graph_replays": FindingKind(
        "warning",
        "{count} replays of CUDA graphs stand as one block each, without their kernels, so kernel "
        "counts, T_DeviceActive and HDBI are unknown; profile again with "
        "`XLA_FLAGS=--xla_gpu_enable_command_buffer=` (no graphs)",
    ),
}


# A first plane, with its id or without, and its name.
_FIRST_PLANE = re.compile(
    rb"\x0a[\x80-\xff]{0,4}[\x00-\x7f](?:\x08[\x80-\xff]{0,9}[\x00-\x7f])?"
    rb"\x12[\x01-\x7f](?:/(?:host|device|virtualdevice):|Task Environment"
    rb"|Host CPUs|Syscalls|#Chip)",
    re.DOTALL,
)


def sniff(path: Path) -> bool:
    """Return whether a file is a profile, or a folder a session: the profiles of processes that ran
    at the same time.
    """
    if path.is_dir():
        return bool(_files(path))
    return _FIRST_PLANE.match(first_bytes(path)) is not None


def sessions(folder: Path) -> list[Path]:
    """Return the sessions in a folder that JAX was told to write profiles to."""
    try:
        return sorted(path for path in folder.glob("plugins/profile/*") if _files(path))
    except OSError:
        return []


def read(path: Path, options: ReadOptions = DEFAULTS) -> list[Trace]:
    """Read a profile, or those of all processes of a session.

    Raises:
        TraceError: One cannot be read, is damaged, holds no event, or more than is read. The
            message is one line.
    """
    files = _files(path) if path.is_dir() else [path]
    if not files:
        raise TraceError(f"{path} holds no profile (*.xplane.pb); give the folder of a session.")
    traces = each_file(path, files, options, _read_one)
    for number, trace in enumerate(traces if len(traces) > 1 else ()):
        trace.document = number
        told = finding(_FINDINGS, "several_hosts", len(traces), number=number + 1)
        trace.findings.append(told)
    return traces


def _files(folder: Path) -> list[Path]:
    try:
        named = sorted(file for file in folder.iterdir() if file.name.endswith(_SUFFIXES))
    except OSError:
        return []
    files = [file for file in named if file.is_file() and sniff(file)]
    spans = [_span(file) for file in files] if len(files) > 1 else [None]
    return files if ran_together(spans) else []


def _span(path: Path) -> tuple[int, int] | None:
    """When a profile began and ended, if it tells."""
    try:
        with _mapped(path, DEFAULTS) as space:
            for plane in planes(space):
                if plane.name == _ENVIRONMENT:
                    stats = plane.stats()
                    start, end = (stats.get(f"profile_{what}_time") for what in ("start", "stop"))
                    return (start, end) if isinstance(start, int) and isinstance(end, int) else None
    except (TraceError, WireError):
        pass
    return None


def _read_one(path: Path, options: ReadOptions) -> Trace:
    with _mapped(path, options) as space:
        events = ProfileEvents(path, options)
        metadata: dict[str, Any] = {"format": "XPlane"}
        devices: list[dict[str, Any]] = []
        done = 0
        try:
            lost = messages_of_loss(space)
            for plane in planes(space):
                if plane.name == _ENVIRONMENT:
                    start = plane.stats().get("profile_start_time")
                    if isinstance(start, int):
                        metadata["profileStart"] = start
                elif plane.name.startswith(_GPU) and plane.lines:
                    devices.append(_device(plane))
                for size in events.add(plane):
                    done += size
                    if options.progress:
                        # Of a packed file more is unpacked than it has bytes.
                        options.progress(min(done * path.stat().st_size // len(space), done))
        except WireError as error:
            raise TraceError(
                f"{path} is damaged and cannot be read ({error}); copy or record the profile again."
            ) from error
        report = events.finished()
        size = len(space)
    if devices:
        metadata["deviceProperties"] = devices
    found = processes(report)
    if not found:
        raise TraceError(
            f"{path} holds no event of a GPU or of the host's threads. Profile while the work runs."
        )
    (process,) = found
    trace = process.trace(path, 0, size, metadata, pid="")
    replays = sum(len(e) for e in process.events if e.category == "gpu_graph")
    counts = {
        "opaque_graph_replays": replays,
        "profiler_messages": lost,
        "no_time": report.without_time,
        "other_devices": events.other_devices,
    }
    trace.findings = [finding(_FINDINGS, code, count) for code, count in counts.items() if count]
    return trace


def _device(plane: Plane) -> dict[str, Any]:
    stats = plane.stats()
    device: dict[str, Any] = {"id": int(plane.name[len(_GPU) :])}
    name = stats.get("gpu_device_name") or stats.get("device_vendor")
    if isinstance(name, str) and name.isprintable():
        device["name"] = name
    known = ((fact, stats.get(stat)) for stat, fact in _GPU_FACTS.items())
    return device | {fact: value for fact, value in known if isinstance(value, int)}


@contextmanager
def _mapped(path: Path, options: ReadOptions) -> Generator[memoryview]:
    """The unpacked bytes of a file, not held in memory.

    Raises:
        TraceError: The file cannot be read, is empty, or too large.
    """
    with TemporaryFile() as unpacked:
        with TraceStream(path, options.most_bytes) as stream:
            if stream.is_gzip:
                for piece in stream:
                    unpacked.write(piece)
                unpacked.flush()
            if stream.broken:
                raise TraceError(f"{path} cannot be read: {stream.broken}; copy the file again.")
            is_gzip = stream.is_gzip
        with path.open("rb") as plain:
            file = unpacked if is_gzip else plain
            size = os.fstat(file.fileno()).st_size
            options.check_size(path, size)
            if not size:
                raise TraceError(f"{path} is empty; copy or record the profile again.")
            yield memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
