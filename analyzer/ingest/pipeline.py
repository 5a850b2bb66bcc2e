"""One source to the rows of every table, as Arrow tables; no store is touched.

Order: read the traces, link them, find the floor, match replays, decompose, keep the ledger, add
up. Pure apart from reading files, so that it can run in another process.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from threading import Thread

import pyarrow as pa

from analyzer.attribution import decomposition, graph_replay, totals
from analyzer.attribution.events import LinkedTrace
from analyzer.attribution.kernel_identity import KernelIdentities
from analyzer.attribution.kernel_match import RunMatches
from analyzer.attribution.links import link_trace
from analyzer.errors import AnalyzerError
from analyzer.ingest import documents, run_tables, trace_tables
from analyzer.ingest.analysis import analyse
from analyzer.ingest.arrow import TableParts
from analyzer.ingest.findings import run_findings
from analyzer.ingest.run_ids import RunIds
from analyzer.ingest.sources import Source, SourceFile
from analyzer.trace import formats
from analyzer.trace.events import Finding, Trace
from analyzer.trace.reader import ReadOptions


@dataclass
class Prepared:
    """Everything about one run, ready to be written.

    Attributes:
        tables: Arrow tables by name; a table without rows is absent.
        read_seconds, analyse_seconds: Where the time of this process went.
    """

    run_id: str
    name: str
    path: str
    tables: dict[str, pa.Table]
    findings: list[Finding]
    events: int
    json_bytes: int
    read_seconds: float
    analyse_seconds: float
    kernels: int
    steps: int


@dataclass(frozen=True)
class _FileTrace:
    """One trace of a source, and the file that it is in."""

    file: SourceFile
    trace: Trace


def prepare(source: Source, progress: Callable[[int], None] | None = None) -> Prepared:
    """Read and analyse one source.

    Raises:
        TraceError, AnalyzerError: The source cannot be read; the message is one line.
    """
    began = time.perf_counter()
    read = _read(source, progress)
    read_seconds = time.perf_counter() - began
    began = time.perf_counter()

    globs = source.options.step_annotation or tuple(
        source.manifest.step_annotation if source.manifest else ()
    )
    timed = [one for one in read if one.file.role == "trace"]
    captures = [one for one in read if one.file.role == "capture"]
    linked = _link([one.trace for one in timed], [one.trace for one in captures], globs)
    spans = [decomposition.spans(trace) for trace in linked]
    measured = documents.read_measurements(source)
    floor = documents.launch_floor(measured.floors, [decomposition.clean_gaps(s) for s in spans])

    ids, kernels = RunIds(), KernelIdentities()
    matches = None if measured.replays is None else RunMatches(measured.replays)
    parts = TableParts(source.run_id())
    wholes: list[totals.Totals] = []
    steps: list[totals.Totals] = []
    for trace, launches in zip(linked, spans, strict=True):
        analysed = analyse(trace, launches, floor, ids, kernels, matches)
        parts.add(trace_tables.analysed_tables(analysed))
        wholes.append(analysed.whole)
        steps += analysed.steps
    for number, one in enumerate([*timed, *captures]):
        whole = linked[number].whole if number < len(linked) else None
        parts.add(
            trace_tables.document_tables(
                number, one.file.path.name, one.file.role, one.trace, whole
            )
        )

    run = totals.add(wholes)
    findings: list[tuple[int | None, Finding]] = [
        (number, finding)
        for number, one in enumerate([*timed, *captures])
        for finding in one.trace.findings
    ]
    findings += [(None, finding) for finding in run_findings(run, steps)]
    parts.add(
        {
            "totals": run_tables.run_totals_table(run),
            "trace_quality": run_tables.trace_quality_table(findings),
            "names": run_tables.names_table(ids.names),
            "shapes": run_tables.shapes_table(ids.shapes),
            "threads": run_tables.threads_table(ids.threads),
            "kernels": run_tables.kernels_table(kernels.all),
            "matches": run_tables.matches_table(matches.found if matches else []),
            "floors": run_tables.floors_table(measured.floors),
            "replay_kernels": run_tables.replay_kernels_table(measured.replays or []),
            "files": run_tables.files_table(source),
            "runs": run_tables.runs_table(source, globs, [one.trace for one in timed]),
        }
    )
    for latency in measured.latency:
        parts.add(
            {
                "latency": run_tables.latency_table(latency),
                "step_latency": run_tables.step_latency_table(latency),
            }
        )
    tables = parts.whole()
    hosts = run_tables.hosts_table(source)
    if hosts.num_rows:  # shared by runs: it has no run's id
        tables["hosts"] = hosts
    return Prepared(
        run_id=source.run_id(),
        name=source.name,
        path=str(source.path),
        tables=tables,
        findings=[finding for _, finding in findings],
        events=sum(one.trace.events for one in read),
        json_bytes=sum(one.trace.json_bytes for one in read),
        read_seconds=read_seconds,
        analyse_seconds=time.perf_counter() - began,
        kernels=run.kernels,
        steps=ids.first.step,
    )


def _read(source: Source, progress: Callable[[int], None] | None) -> list[_FileTrace]:
    """Read all traces; a file is hashed by one core while the other reads it."""
    options = ReadOptions(
        keep_python=source.options.python_functions,
        most_bytes=source.options.most_json_bytes,
        most_events=source.options.most_events,
        progress=progress,
    )
    hasher = Thread(target=_hash_all, args=(source,), name="hash")
    hasher.start()
    read = [
        _FileTrace(file, trace)
        for file in source.files
        if file.role in ("trace", "capture")
        for trace in formats.read(file.path, options)
    ]
    hasher.join()
    return read


def _hash_all(source: Source) -> None:
    # An error is met again, and raised, where the hash is asked for.
    with suppress(AnalyzerError):
        for file in source.files:
            _ = file.sha256


def _link(timed: list[Trace], captures: list[Trace], globs: tuple[str, ...]) -> list[LinkedTrace]:
    """Link the timed traces; ops of graph replays come from captures in them or in the others."""
    captured = [c for trace in captures for c in graph_replay.captures(link_trace(trace))]
    linked: list[LinkedTrace] = []
    for trace in timed:
        one = link_trace(trace, globs)
        graph_replay.resolve_replay_ops(one, graph_replay.captures(one) + captured)
        linked.append(one)
    return linked
