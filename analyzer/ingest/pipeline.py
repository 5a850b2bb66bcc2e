"""One source to the rows of every table, as Arrow tables; no store is touched.

Order: read the traces, link them, find the floor, match replays, decompose, keep the ledger, join
ranks, add up. Pure apart from reading files, so that it can run in another process.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pyarrow as pa

from analyzer.attribution import decomposition, ledger
from analyzer.attribution.ranks import join_ranks
from analyzer.attribution.totals import Totals
from analyzer.ingest.analysis import AnalysedTrace, RunAnalysis
from analyzer.ingest.arrow import TableParts
from analyzer.ingest.documents import launch_floor, read_measurements
from analyzer.ingest.findings import run_findings
from analyzer.ingest.ranks.tables import rank_tables
from analyzer.ingest.run_tables import document_tables, measurement_tables, run_tables
from analyzer.ingest.sources import Source
from analyzer.ingest.trace_tables import trace_tables
from analyzer.ingest.traces import SourceTrace, link_traces, read_traces
from analyzer.trace.events import Finding


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
    kernels: int | None
    steps: int


def prepare(source: Source, progress: Callable[[int], None] | None = None) -> Prepared:
    """Read and analyse one source.

    Raises:
        TraceError, AnalyzerError: The source cannot be read; the message is one line.
    """
    began = time.perf_counter()
    read = read_traces(source, progress)
    has_read = time.perf_counter()

    step_globs = _step_globs(source)
    linked = link_traces(read, step_globs)
    spans = [decomposition.spans(trace) for trace in linked]
    measured = read_measurements(source)
    floor = launch_floor(measured.floors, [decomposition.clean_gaps(s) for s in spans])

    tables = TableParts(source.run_id())
    unprofiled = measured.latency.steps if measured.latency else {}
    analysis = RunAnalysis(floor, measured.replays, unprofiled)
    analysed: list[AnalysedTrace] = []
    for trace, launches in zip(linked, spans, strict=True):
        analysed.append(analysis.add(trace, launches))
        tables.add(trace_tables(analysed[-1]))
    joined, of_ranks = join_ranks(
        linked, lambda i, thread: ledger.owned(linked[i], spans[i], thread)
    )
    tables.add(rank_tables(joined, analysed, analysis.ids.names))
    totals = analysis.totals()
    findings = _findings(read, totals, analysis.steps, of_ranks)
    tables.add(document_tables(source, read, linked, findings, analysis.checks))
    tables.add(measurement_tables(measured, analysis))
    tables.add(run_tables(source, read, step_globs, analysis))
    return Prepared(
        run_id=source.run_id(),
        name=source.name,
        path=str(source.path),
        tables=tables.whole(),
        findings=[finding for _, finding in findings],
        events=sum(one.trace.events for one in read),
        json_bytes=sum(one.trace.json_bytes for one in read),
        read_seconds=has_read - began,
        analyse_seconds=time.perf_counter() - has_read,
        kernels=totals.kernels,
        steps=len(analysis.steps),
    )


def _step_globs(source: Source) -> tuple[str, ...]:
    """The patterns of the annotations that mark steps: those asked for, else the recording's."""
    recorded = source.manifest.step_annotation if source.manifest else ()
    return source.options.step_annotation or tuple(recorded)


def _findings(
    read: Sequence[SourceTrace],
    run: Totals,
    steps: Sequence[Totals],
    of_ranks: Sequence[Finding],
) -> list[tuple[int | None, Finding]]:
    """All findings, each with the number of its trace; None: of the run."""
    of_traces: list[tuple[int | None, Finding]] = [
        (number, finding) for number, one in enumerate(read) for finding in one.trace.findings
    ]
    return of_traces + [(None, finding) for finding in (*run_findings(run, steps), *of_ranks)]
