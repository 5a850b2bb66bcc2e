"""The rows of a run, a function a table; `schemas/sql/tables.sql` says what the columns are."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, fields
from datetime import datetime, timezone
from importlib import metadata
from itertools import zip_longest
from typing import Any

import numpy as np
import pyarrow as pa

from analyzer.attribution import decomposition
from analyzer.attribution.events import LinkedTrace
from analyzer.attribution.evidence import Check
from analyzer.attribution.kernel_identity import KernelIdentity
from analyzer.attribution.kernel_match import Match, Replayed
from analyzer.attribution.totals import Totals
from analyzer.ingest import arrow
from analyzer.ingest.analysis import RunAnalysis
from analyzer.ingest.documents import Measurements
from analyzer.ingest.run_ids import Texts, Threads
from analyzer.ingest.sources import Source
from analyzer.ingest.traces import SourceTrace
from analyzer.trace.columns import op_shape
from analyzer.trace.events import Finding, Trace
from schemas.measurements import Latency, LaunchFloor

# Lists may be empty, and counts unknown, in every row: their types are not told by the rows.
_CHECK_COLUMNS: dict[str, pa.DataType] = {
    "trace_id": pa.int32(),
    **dict.fromkeys(("name", "verdict", "found", "effect", "remedy"), pa.string()),
    **dict.fromkeys(("count", "total"), pa.int64()),
    "share": pa.float64(),
    **dict.fromkeys(("at_least", "at_most", "not_judged"), pa.list_(pa.string())),
}

# A finding with the number of the trace that it is about; None is the run.
PlacedFinding = tuple[int | None, Finding]


def document_tables(
    source: Source,
    read: Sequence[SourceTrace],
    linked: Sequence[LinkedTrace],
    findings: Sequence[PlacedFinding],
    checks: Sequence[tuple[int, Check]],
) -> dict[str, pa.Table]:
    """Return the tables of a run's files and what is said of them, by name.

    Args:
        linked: The first of `read`, linked.
        checks: Each with the number of its trace.
    """
    return {
        "files": files_table(source),
        "traces": traces_table(read, linked),
        "event_counts": event_counts_table(read),
        "trace_quality": trace_quality_table(findings),
        "checks": checks_table(checks),
    }


def measurement_tables(measured: Measurements, analysis: RunAnalysis) -> dict[str, pa.Table]:
    """Return the tables of what was measured beside the traces, by name."""
    return {
        "floors": floors_table(measured.floors),
        "replay_kernels": replay_kernels_table(measured.replays or ()),
        "matches": matches_table(analysis.matches.found if analysis.matches else ()),
        "latency": latency_table(measured.latency),
        "step_latency": step_latency_table(measured.latency),
    }


def run_tables(
    source: Source,
    read: Sequence[SourceTrace],
    step_globs: Sequence[str],
    analysis: RunAnalysis,
) -> dict[str, pa.Table]:
    """Return the tables of the run itself, and of what its traces share, by name."""
    timed = [one.trace for one in read if one.is_timed]
    return {
        "totals": run_totals_table(analysis.totals()),
        "names": names_table(analysis.ids.names),
        "shapes": shapes_table(analysis.ids.shapes),
        "threads": threads_table(analysis.ids.threads),
        "kernels": kernels_table(analysis.kernels.all),
        "hosts": hosts_table(source),
        "runs": runs_table(source, step_globs, timed),
    }


def traces_table(read: Sequence[SourceTrace], linked: Sequence[LinkedTrace]) -> pa.Table:
    rows: list[dict[str, Any]] = []
    for trace_id, (one, analysed) in enumerate(zip_longest(read, linked)):
        whole = analysed.whole if analysed else None
        source = analysed.step_source if analysed else None
        rows.append(
            {
                "trace_id": trace_id,
                "file": one.file.name,
                "document": one.trace.document,
                "role": one.file.role,
                "rank": _rank(one.trace),
                "events": one.trace.events,
                "json_bytes": one.trace.json_bytes,
                "start_ns": whole.start if whole else None,
                "end_ns": whole.end if whole else None,
                "step_source": source.name if source else None,
                "step_coverage": source.coverage if source else None,
                "step_confidence": source.confidence if source else None,
                "metadata": json.dumps(one.trace.metadata, ensure_ascii=False),
            }
        )
    return arrow.rows_table(rows)


def _rank(trace: Trace) -> int | None:
    distributed = trace.metadata.get("distributedInfo")
    rank = distributed.get("rank") if isinstance(distributed, dict) else None  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    return rank if isinstance(rank, int) else None


def event_counts_table(read: Sequence[SourceTrace]) -> pa.Table:
    return arrow.rows_table(
        [
            {"trace_id": trace_id, "ph": ph, "category": category, "events": count}
            for trace_id, one in enumerate(read)
            for (ph, category), count in sorted(one.trace.counts.items())
        ]
    )


def trace_quality_table(findings: Sequence[PlacedFinding]) -> pa.Table:
    return arrow.rows_table(
        [{"trace_id": trace_id, **asdict(finding)} for trace_id, finding in findings]
    )


def checks_table(checks: Sequence[tuple[int, Check]]) -> pa.Table:
    """The checks of each trace, by its number."""
    rows = [{"trace_id": trace_id, **asdict(check)} for trace_id, check in checks]
    return arrow.rows_table(rows, _CHECK_COLUMNS)


def run_totals_table(run: Totals) -> pa.Table:
    return arrow.rows_table([{"trace_id": None, "step_id": None, **asdict(run)}])


def names_table(names: Texts) -> pa.Table:
    return arrow.rows_table([{"name_id": i, "name": text} for text, i in names.ids.items()])


def shapes_table(shapes: Texts) -> pa.Table:
    rows: list[dict[str, Any]] = []
    for text, i in shapes.ids.items():
        shape = op_shape(text)
        rows.append(
            {
                "shape_id": i,
                "input_dims": shape.dims,
                "input_types": shape.types,
                "input_strides": shape.strides,
                "concrete_inputs": shape.concrete,
            }
        )
    return arrow.rows_table(rows)


def threads_table(threads: Threads) -> pa.Table:
    return arrow.rows_table(
        [
            {
                "thread_id": i,
                "pid": arrow.plain_id(pid),
                "tid": arrow.plain_id(tid),
                "thread_name": threads.names.get((pid, tid)),
            }
            for (pid, tid), i in threads.ids.items()
        ]
    )


def kernels_table(kernels: Sequence[KernelIdentity]) -> pa.Table:
    columns = [f.name for f in fields(KernelIdentity) if f.name not in ("op", "shape")]
    return arrow.rows_table(
        [{name: getattr(kernel, name) for name in columns} for kernel in kernels]
    )


def matches_table(matches: Sequence[Match]) -> pa.Table:
    """The match of each kernel identity, in their order."""
    return arrow.rows_table(
        [
            {
                "kernel_id": kernel_id,
                "tier": match.tier,
                "replay_id": match.replay,
                "same_configuration": match.same_configuration,
                "reason": match.reason,
            }
            for kernel_id, match in enumerate(matches)
        ]
    )


def floors_table(floors: Sequence[LaunchFloor]) -> pa.Table:
    rows: list[dict[str, Any]] = []
    for floor in floors:
        samples = np.array(floor.samples_ns, np.int64)
        rows.append(
            {
                "launch_api": floor.launch_api,
                "definition": floor.definition,
                "samples_ns": floor.samples_ns,
                "n": len(samples),
                "p5_ns": decomposition.percentile(samples, 5),
                "p50_ns": decomposition.percentile(samples, 50),
                "mean_ns": round(float(samples.mean())),
                "p95_ns": decomposition.percentile(samples, 95),
            }
        )
    return arrow.rows_table(rows)


def replay_kernels_table(replays: Sequence[Replayed]) -> pa.Table:
    columns = {
        "op": "op_name",
        "dims": "input_dims",
        "types": "input_types",
        "strides": "input_strides",
        "concrete": "concrete_inputs",
        "name": "kernel_name",
    }
    return arrow.rows_table(
        [
            {"replay_id": i}
            | {columns.get(f.name, f.name): getattr(replay, f.name) for f in fields(Replayed)}
            for i, replay in enumerate(replays)
        ]
    )


def files_table(source: Source) -> pa.Table:
    return arrow.rows_table(
        [
            {"file": f.name, "role": f.role, "sha256": f.sha256, "bytes": f.bytes}
            for f in source.files
        ]
    )


def latency_table(latency: Latency | None) -> pa.Table:
    rows: list[dict[str, Any]] = []
    for i, request in enumerate(latency.requests if latency else ()):
        gaps = request.itl_ns
        rows.append(
            {
                "request": i,
                "ttft_ns": request.ttft_ns,
                "tpot_ns": round(sum(gaps) / len(gaps)) if gaps else None,
                "total_ns": request.total_ns,
                "itl_ns": gaps,
            }
        )
    return arrow.rows_table(rows)


def step_latency_table(latency: Latency | None) -> pa.Table:
    steps = latency.steps.items() if latency else ()
    return arrow.rows_table([{"phase": phase, "wall_ns": times} for phase, times in steps if times])


def hosts_table(source: Source) -> pa.Table:
    """The host of a recording; no row if nothing is known of it."""
    host_id = _host_id(source)
    if host_id is None or source.manifest is None:
        return arrow.rows_table([])
    row = asdict(source.manifest.environment)
    del row["gpu_clocks"]
    row["versions"] = json.dumps(row["versions"])
    return arrow.rows_table([{"host_id": host_id, **row}])


def _host_id(source: Source) -> str | None:
    environment = asdict(source.manifest.environment) if source.manifest else {}
    if not any(environment.values()):
        return None
    return hashlib.sha256(json.dumps(environment, sort_keys=True).encode()).hexdigest()[:16]


def runs_table(source: Source, step_globs: Sequence[str], traces: Sequence[Trace]) -> pa.Table:
    """The one row of the run.

    Args:
        traces: Those that count in its figures, in order.
    """
    manifest = source.manifest
    return arrow.rows_table(
        [
            {
                "name": source.name,
                "source": "ranks" if source.is_joined else "run_directory" if manifest else "trace",
                "path": str(source.path.resolve()),
                "content_sha256": source.content_sha256(),
                "recording_id": manifest.run_id if manifest else None,
                "created_at": manifest.created_at if manifest else None,
                "ingested_at": datetime.now(timezone.utc).isoformat(timespec="microseconds"),
                "analyzer_version": _version(),
                "host_id": _host_id(source),
                "model": manifest.model if manifest else None,
                "mode": manifest.mode if manifest else "foreign",
                "attention": manifest.attention if manifest else None,
                "dtype": manifest.dtype if manifest else None,
                "batch_size": manifest.batch_size if manifest else None,
                "prompt_len": manifest.prompt_len if manifest else None,
                "new_tokens": manifest.new_tokens if manifest else None,
                "gpu": (manifest.environment.gpu if manifest else None) or _gpu(traces),
                "step_annotation": ",".join(step_globs),
                "phases": json.dumps(manifest.phases) if manifest else None,
                "manifest": json.dumps(asdict(manifest), ensure_ascii=False) if manifest else None,
                "trace_metadata": json.dumps(
                    traces[0].metadata if traces else {}, ensure_ascii=False
                ),
            }
        ]
    )


def _gpu(traces: Sequence[Trace]) -> str | None:
    """The first device's name that a trace tells."""
    for trace in traces:
        devices: Any = trace.metadata.get("deviceProperties")
        for entry in devices if isinstance(devices, list) else ():  # pyright: ignore[reportUnknownVariableType]
            name: Any = entry.get("name") if isinstance(entry, dict) else None  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
            if isinstance(name, str) and name:
                return name
    return None


def _version() -> str:
    try:
        return metadata.version("hostbound")
    except metadata.PackageNotFoundError:
        return "unknown"
