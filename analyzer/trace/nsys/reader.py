"""Nsight Systems exports (SQLite or a folder of Parquet files) to columns; this folder is the only
place that knows their tables.

Schemas 2.9 to 3.28. A report holds several processes; each becomes a `Trace`, so that correlation
ids, devices and streams of two never meet. Times are integer nanoseconds on the session's clock.
A report also holds command lines, environments, hosts, users and paths: only columns that are named
here are read, only texts that an event refers to are kept, and no error quotes the file.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from analyzer.trace.events import Finding, FindingKind, Trace, finding
from analyzer.trace.nsys.events import read_events
from analyzer.trace.nsys.report import NsysReport
from analyzer.trace.reader import DEFAULTS, ReadOptions
from analyzer.trace.stream import TraceError
from analyzer.trace.tabular.process import processes
from analyzer.trace.tabular.report import NO_PROCESS
from analyzer.trace.tabular.tables import MISSING, SQLITE_MAGIC, Tables, open_tables

REPORT_SUFFIXES = (".nsys-rep", ".qdrep", ".qdstrm")
_REPORT_WORDS = (b"QuadD", b"Nsight Systems", b"NSight Systems")
_KNOWN_TABLES = (
    "CUPTI_ACTIVITY_KIND_KERNEL",
    "CUPTI_ACTIVITY_KIND_RUNTIME",
    "CUPTI_ACTIVITY_KIND_MEMCPY",
    "CUPTI_ACTIVITY_KIND_MEMSET",
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE",
    "NVTX_EVENTS",
)
_VERSION_TABLES = ("META_DATA_EXPORT", "EXPORT_META_DATA")  # schema 3, schema 2
_VERSIONS = {b"EXPORT_SCHEMA_VERSION": "schema", b"EXPORT_PRODUCT_VERSION": "nsys"}
_VERSION = re.compile(rb"\d+(\.\d+){1,4}")
# Facts of a GPU, under the names that PyTorch gives them where it has one.
_GPU_FACTS = {
    "totalMemory": "totalGlobalMem",
    "computeMajor": "computeMajor",
    "computeMinor": "computeMinor",
    "smCount": "numSms",
    "memoryBandwidth": "memoryBandwidth",
    "l2CacheSize": "l2CacheSize",
    "clockRate": "clockRate",
}

_FINDINGS = {
    "several_processes": FindingKind(
        "note",
        "the report holds {count} processes with CUDA work; this is number {number}, each is a "
        "trace of its own",
    ),
    "opaque_graph_replays": FindingKind(
        "warning",
        "{count} replays of CUDA graphs, no kernels: the report has each replay as one block, so "
        "kernel counts, T_DeviceActive and HDBI are unknown; record again with `nsys profile "
        "--cuda-graph-trace=node`",
    ),
    "doubled_calls": FindingKind(
        "note", "{count} calls stand a second time with their backtrace; these rows were left out"
    ),
    "open_ranges": FindingKind("note", "{count} NVTX ranges have no end and were left out"),
    "no_time": FindingKind("warning", "{count} events had no start or end and were left out"),
    "other_processes": FindingKind(
        "note", "NVTX ranges of {count} processes without CUDA work were left out"
    ),
    "profiler_messages": FindingKind(
        "warning",
        "the report holds {count} warnings or errors of the profiler itself: events may be missing "
        "(Nsight Systems shows them)",
    ),
}


def _export(name: str) -> str:
    return f"`nsys export --type sqlite --output report.sqlite {name}`"


def sniff(path: Path) -> bool:
    """Return whether a file is an SQLite database or a report, or a folder a Parquet export."""
    if path.is_dir():
        return any((path / f"{table}.parquet").is_file() for table in _KNOWN_TABLES)
    return _head(path).startswith(SQLITE_MAGIC) or _is_report(path)


def _head(path: Path, size: int = 4096) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(size)
    except OSError:
        return b""


def _is_report(path: Path) -> bool:
    """Whether a file is a report that was not exported; the name decides nothing but the words of
    a refusal.
    """
    head = _head(path)
    is_binary = b"\x00" in head and not head.startswith(b"\x1f\x8b")
    named = path.name.endswith(REPORT_SUFFIXES)
    return is_binary and (named or any(word in head for word in _REPORT_WORDS))


def read(path: Path, options: ReadOptions = DEFAULTS) -> list[Trace]:
    """Read the processes of an export, in order of their first event.

    Raises:
        TraceError: It cannot be read, is no export, holds no event, or more than is read. The
            message is one line.
    """
    if not path.is_dir() and not _head(path).startswith(SQLITE_MAGIC):
        command = _export(path.name)
        raise TraceError(
            f"{path} is a report of Nsight Systems that only its own tools read; export it with "
            f"{command} and load that."
        )
    size = _size(path)
    options.check_size(path, size)
    tables = open_tables(path, options.progress)
    try:
        if not any(tables.columns(table) for table in _KNOWN_TABLES):
            raise TraceError(
                f"{path} is a database but neither an export of Nsight Systems nor a result of "
                "rocprofv3: it has no table of kernels, calls or ranges that is known. Make one "
                f"with {_export('report.nsys-rep')}, or with `rocprofv3 --output-format rocpd`."
            )
        report = read_events(tables, path, options.most_events)
        metadata = _metadata(tables)
        findings = _report_findings(tables, report)
    finally:
        tables.close()
    return _traces(path, size, report, metadata, findings)


def _size(path: Path) -> int:
    try:
        if path.is_dir():
            return sum(file.stat().st_size for file in path.glob("*.parquet"))
        return path.stat().st_size
    except OSError as error:
        raise TraceError(f"{path} cannot be read: {error.strerror}.") from error


# -- what is said of the report


def _metadata(tables: Tables) -> dict[str, Any]:
    """The versions, the GPUs and the clock: nothing else of a report's own description."""
    metadata: dict[str, Any] = {"format": "Nsight Systems"}
    for table in _VERSION_TABLES:
        # Names and values stand in two columns of text, and one piece has one of them.
        if not {"name", "value"} <= tables.columns(table):
            continue
        names = [t for piece in tables.pieces(table, (), "name") for t in piece.texts]
        values = [t for piece in tables.pieces(table, (), "value") for t in piece.texts]
        for name, value in zip(names, values, strict=False):
            key = _VERSIONS.get(name or b"")
            if key and _VERSION.fullmatch(value or b""):
                metadata[key] = (value or b"").decode()
    clock = _rows_of(tables, "TARGET_INFO_SESSION_START_TIME", ("utcEpochNs", "systemClockNs"))
    if clock:
        metadata["sessionStart"] = clock[0]
    devices = [_device(row) for row in _gpu_rows(tables)]
    if devices:
        metadata["deviceProperties"] = devices
    return metadata


def _gpu_rows(tables: Tables) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    columns = ("id", "cuDevice", *_GPU_FACTS)
    for piece in tables.pieces("TARGET_INFO_GPU", columns, "name"):
        for i, name in enumerate(piece.texts):
            row = {column: int(values[i]) for column, values in piece.numbers.items()}
            text = (name or b"").decode("utf-8", "backslashreplace")
            rows.append(row | {"name": text if text.isprintable() else ""})
    return rows


def _device(row: dict[str, Any]) -> dict[str, Any]:
    number = row["cuDevice"] if row["cuDevice"] != MISSING else row["id"]
    device: dict[str, Any] = {} if number == MISSING else {"id": number}
    if row["name"]:
        device["name"] = row["name"]
    return device | {
        name: row[column] for column, name in _GPU_FACTS.items() if row[column] != MISSING
    }


def _rows_of(tables: Tables, table: str, columns: tuple[str, ...]) -> list[dict[str, int]]:
    """The rows of a small table of integers; what is missing is not there."""
    return [
        {c: int(values[i]) for c, values in piece.numbers.items() if values[i] != MISSING}
        for piece in tables.pieces(table, columns)
        for i in range(len(piece))
    ]


def _report_findings(tables: Tables, report: NsysReport) -> list[Finding]:
    """What is said of the whole report, with its first process."""
    severities = _rows_of(tables, "DIAGNOSTIC_EVENT", ("severity",))
    counts = {
        "doubled_calls": report.doubled_calls,
        "open_ranges": report.open_ranges,
        "no_time": report.without_time,
        "profiler_messages": sum(row.get("severity") in (2, 3) for row in severities),
    }
    return [finding(_FINDINGS, code, count) for code, count in counts.items() if count]


# -- processes


def _traces(
    path: Path, size: int, report: NsysReport, metadata: dict[str, Any], findings: list[Finding]
) -> list[Trace]:
    """A trace of each process with CUDA work; of each with NVTX ranges if none has."""
    found = processes(report)
    working = [process for process in found if process.has_device_work] or found
    if not working:
        raise TraceError(
            f"{path} holds no event: no kernel, no CUDA call, no NVTX range. Record with `nsys "
            "profile --trace=cuda,nvtx`, and let the work run while it records."
        )
    if len(working) < len(found):
        left_out = len(found) - len(working)
        findings = [*findings, finding(_FINDINGS, "other_processes", left_out)]
    traces: list[Trace] = []
    for number, process in enumerate(working):
        pid = "" if process.key == NO_PROCESS else str(process.key & 0xFFFFFF)
        here = dict(metadata)
        if process.rank is not None:
            here["distributedInfo"] = {"backend": "mpi", "rank": process.rank}
        trace = process.trace(path, number, size // len(working), here, pid)
        trace.findings = [replace(f) for f in findings] if number == 0 else []
        replays = sum(len(e) for e in process.events if e.category == "gpu_graph")
        if replays:
            trace.findings.insert(0, finding(_FINDINGS, "opaque_graph_replays", replays))
        if len(working) > 1:
            trace.findings.append(
                finding(_FINDINGS, "several_processes", len(working), number=number + 1)
            )
        traces.append(trace)
    return traces
