"""CUDA events of an export, a function a table: what its columns mean, and which may be missing.

Categories and names are spelled as Kineto spells them, so that runs of both formats compare.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from analyzer.trace.columns import HAS_BYTES
from analyzer.trace.nsys.graph_nodes import captured_nodes
from analyzer.trace.nsys.ranges import Ranges
from analyzer.trace.nsys.report import EventTables, NsysReport, process_of
from analyzer.trace.tabular.report import (
    NO_PROCESS,
    Category,
    Column,
    config_text,
    decoded,
    flags,
    rows_where,
)
from analyzer.trace.tabular.tables import MISSING, Ints, Tables

CALLS = ("cuda_runtime", "cuda_driver")

_DRIVER, _BACKTRACE = 1, 67  # classes of events in the table of calls; 0 is the runtime
_CALL_VERSION = re.compile(r"_v\d+$")
_COPY_KINDS = {
    1: "HtoD",
    2: "DtoH",
    3: "HtoA",
    4: "AtoH",
    5: "AtoA",
    6: "AtoD",
    7: "DtoA",
    8: "DtoD",
    9: "HtoH",
    10: "PtoP",
    11: "Unified HtoD",
    12: "Unified DtoH",
    13: "Unified DtoD",
}
_MEMORY_KINDS = ("Pageable", "Pinned", "Device", "Array", "Managed", "Device Static")
_SYNC_KINDS = {1: "Event Sync", 2: "Stream Wait Event", 3: "Stream Sync", 4: "Context Sync"}

_DEVICE_COLUMNS = ("deviceId", "contextId", "streamId", "correlationId", "globalPid", "graphNodeId")
_GRID = ("gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ")
_CONFIG = (*_GRID, "staticSharedMemory", "dynamicSharedMemory", "registersPerThread")
_KERNEL_NAMES = ("demangledName", "shortName", "mangledName")
# Their names are ids of strings until all tables are read.
_NAMED_BY_STRING = ("kernel", "graph_node", *CALLS)


def read_events(tables: Tables, path: Path, most_events: int | None) -> NsysReport:
    """Read every table of events, each in one go over its rows.

    Raises:
        TraceError: A table is damaged, or there are more events than are read.
    """
    source = EventTables(tables, path, most_events)
    device = [_kernels(source), _copies(source), _memsets(source), _graph_replays(source)]
    categories = [*device, *_calls(source), _synchronizations(source)]
    categories += [captured_nodes(source, device), *Ranges(source).read()]
    report = source.report
    known = {key for category in categories for (key,) in category.distinct("process")}
    known.discard(NO_PROCESS)
    # A table without a column for the process tells nothing if there are several.
    only = known.pop() if len(known) == 1 else NO_PROCESS
    events = [category.events(only) for category in categories]
    report.events = [part for part in events if len(part)]
    if only != NO_PROCESS and NO_PROCESS in report.counts:
        report.counts[only] += report.counts.pop(NO_PROCESS)
    _resolve_names(source)
    return report


def _device_columns(source: EventTables, n: dict[str, Ints]) -> dict[str, Column]:
    """What every device event has; device and stream are its pid and tid, as in Kineto."""
    device = source.report.texts.number_ids(n["deviceId"])
    stream = source.report.texts.number_ids(n["streamId"])
    size = n.get("bytes", np.full(len(device), MISSING, np.int64))
    return {
        "process": n["process"],
        "start": n["start"],
        "dur": n["dur"],
        "node": n["graphNodeId"],
        "correlation": n["correlationId"],
        "flags": flags(n) | np.where(size != MISSING, HAS_BYTES, 0).astype(np.int32),
        "bytes": size,
        "device": device,
        "stream": stream,
        "kernel": source.report.texts.number_ids(n["contextId"]),
        "pid": device,
        "tid": stream,
    }


def _kernels(source: EventTables) -> Category:
    kernels = Category("kernel")
    columns = (*_DEVICE_COLUMNS, *_CONFIG, *_KERNEL_NAMES)
    for piece in source.pieces("CUPTI_ACTIVITY_KIND_KERNEL", columns):
        n = source.timed(piece, kernels.name, "globalPid")
        name = n[_KERNEL_NAMES[0]]
        for other in _KERNEL_NAMES[1:]:
            name = np.where(name == MISSING, n[other], name)
        config = source.report.texts.row_ids([n[column] for column in _CONFIG], _config_text)
        kernels.add(**_device_columns(source, n), name=name, config=config)
    return kernels


def _copies(source: EventTables) -> Category:
    copies = Category("gpu_memcpy")
    kinds = ("copyKind", "srcKind", "dstKind")
    columns = (*_DEVICE_COLUMNS, "bytes", *kinds)
    for piece in source.pieces("CUPTI_ACTIVITY_KIND_MEMCPY", columns):
        n = source.timed(piece, copies.name, "globalPid")
        name = source.report.texts.row_ids([n[kind] for kind in kinds], _copy_name)
        copies.add(**_device_columns(source, n), name=name)
    return copies


def _memsets(source: EventTables) -> Category:
    memsets = Category("gpu_memset")
    columns = (*_DEVICE_COLUMNS, "bytes", "memKind")
    for piece in source.pieces("CUPTI_ACTIVITY_KIND_MEMSET", columns):
        n = source.timed(piece, memsets.name, "globalPid")
        name = source.report.texts.row_ids([n["memKind"]], _memset_name)
        memsets.add(**_device_columns(source, n), name=name)
    return memsets


def _graph_replays(source: EventTables) -> Category:
    """Replays that were recorded as one block each, without their kernels."""
    replays = Category("gpu_graph")
    for piece in source.pieces("CUPTI_ACTIVITY_KIND_GRAPH_TRACE", _DEVICE_COLUMNS):
        n = source.timed(piece, replays.name, "globalPid")
        name = np.full(len(n["start"]), source.report.texts.id("CUDA graph replay"), np.int32)
        replays.add(**_device_columns(source, n), name=name)
    return replays


def _calls(source: EventTables) -> list[Category]:
    runtime, driver = (Category(name) for name in CALLS)
    columns = ("eventClass", "globalTid", "correlationId", "nameId")
    for piece in source.pieces("CUPTI_ACTIVITY_KIND_RUNTIME", columns):
        kind = piece.numbers["eventClass"]
        doubled = kind == _BACKTRACE
        source.report.doubled_calls += int(doubled.sum())
        source.report.count(process_of(piece.numbers["globalTid"][doubled]), "X", "cuda_backtrace")
        for category, here in ((driver, kind == _DRIVER), (runtime, ~doubled & (kind != _DRIVER))):
            n = source.timed(rows_where(piece, here), category.name, "globalTid")
            category.add(
                **source.thread_columns(n),
                name=n["nameId"],
                correlation=n["correlationId"],
                flags=flags(n),
            )
    return [runtime, driver]


def _synchronizations(source: EventTables) -> Category:
    """What the device was waited for; the calls that waited are calls."""
    syncs = Category("cuda_sync")
    columns = (*_DEVICE_COLUMNS, "syncType")
    for piece in source.pieces("CUPTI_ACTIVITY_KIND_SYNCHRONIZATION", columns):
        n = source.timed(piece, syncs.name, "globalPid")
        name = source.report.texts.row_ids([n["syncType"]], _sync_name)
        syncs.add(**_device_columns(source, n), name=name)
    return syncs


def _resolve_names(source: EventTables) -> None:
    """Replace the ids of strings by ids of texts."""
    named = [events for events in source.report.events if events.category in _NAMED_BY_STRING]
    if not named:
        return
    ids = np.concatenate([np.unique(e.column("name")) for e in named])
    # A range may have the name of a thread; a kernel or call has not.
    known = source.strings(ids, not_of=("ThreadNames",))
    for events in named:
        ids, inverse = np.unique(events.column("name"), return_inverse=True)
        texts = [decoded(known.get(i, b"")) or "unknown" for i in ids.tolist()]
        if events.category != "kernel":
            texts = [_CALL_VERSION.sub("", text) for text in texts]
        new = np.array([source.report.texts.id(text) for text in texts], np.int32)
        events.columns["name"] = new[inverse.reshape(-1)]


def _config_text(row: Sequence[int]) -> str:
    grid, block, (static, dynamic, registers) = row[:3], row[3:6], row[6:]
    return config_text(grid, block, (static, dynamic), registers)


def _copy_name(row: Sequence[int]) -> str:
    kind, source, target = row
    return f"Memcpy {_COPY_KINDS.get(kind, 'Unknown')} ({_memory(source)} -> {_memory(target)})"


def _memset_name(row: Sequence[int]) -> str:
    return f"Memset ({_memory(row[0])})"


def _sync_name(row: Sequence[int]) -> str:
    return _SYNC_KINDS.get(row[0], "Sync")


def _memory(kind: int) -> str:
    return _MEMORY_KINDS[kind] if 0 <= kind < len(_MEMORY_KINDS) else "Unknown"
