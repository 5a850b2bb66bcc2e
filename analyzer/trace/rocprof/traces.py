"""The processes of a job as traces, and what is said of them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from analyzer.trace.events import Finding, FindingKind, Trace, finding, is_call_category
from analyzer.trace.stream import TraceError
from analyzer.trace.tabular.process import processes
from analyzer.trace.tabular.report import Report

_FINDINGS = {
    "several_processes": FindingKind(
        "note",
        "the job holds {count} processes with GPU work; this is number {number}, each is a trace "
        "of its own",
    ),
    "no_calls": FindingKind(
        "warning",
        "{count} kernels and copies, no call: what the host did, T_Orchestration and HDBI are "
        "unknown; record again with `rocprofv3 --runtime-trace --kernel-trace --marker-trace`",
    ),
    "no_time": FindingKind("warning", "{count} events had no start or end and were left out"),
    "other_processes": FindingKind(
        "note", "ranges of {count} processes without GPU work were left out"
    ),
}


@dataclass(frozen=True)
class RocmProcess:
    """A process of a job; its number in the columns is its place.

    Attributes:
        pid: None if it is not known.
    """

    pid: int | None
    metadata: dict[str, Any]


def traces_of(path: Path, report: Report, known: list[RocmProcess], size: int) -> list[Trace]:
    """Return a trace of each process with GPU work; of each with ranges if none has.

    Raises:
        TraceError: There is no event.
    """
    found = processes(report)
    working = [process for process in found if process.has_device_work] or found
    if not working:
        raise TraceError(
            f"{path} holds no event: no kernel, no call, no range. Record with `rocprofv3 "
            "--runtime-trace --kernel-trace`, and let the work run while it records."
        )
    counts = {"no_time": report.without_time, "other_processes": len(found) - len(working)}
    of_all = [finding(_FINDINGS, code, count) for code, count in counts.items() if count]
    traces: list[Trace] = []
    for number, process in enumerate(working):
        own = known[process.key]
        share = size // len(working)
        trace = process.trace(
            path, number, share, dict(own.metadata), "" if own.pid is None else str(own.pid)
        )
        trace.findings = of_all if number == 0 else list[Finding]()
        if not any(is_call_category(events.category) for events in process.events):
            trace.findings.append(finding(_FINDINGS, "no_calls", len(trace.rows)))
        if len(working) > 1:
            told = finding(_FINDINGS, "several_processes", len(working), number=number + 1)
            trace.findings.append(told)
        traces.append(trace)
    return traces
