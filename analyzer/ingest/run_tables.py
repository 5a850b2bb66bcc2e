"""The rows of a run, a function a table; `schemas/sql/tables.sql` says what the columns are."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, fields
from datetime import datetime, timezone
from importlib import metadata
from typing import Any

import pyarrow as pa

from analyzer.attribution import decomposition
from analyzer.attribution.kernel_identity import KernelIdentity
from analyzer.attribution.kernel_match import Match, Replayed
from analyzer.attribution.totals import Totals
from analyzer.ingest import arrow
from analyzer.ingest.documents import FloorSamples, Latency
from analyzer.ingest.run_ids import Texts, Threads
from analyzer.ingest.sources import Source
from analyzer.trace.columns import op_shape
from analyzer.trace.events import Finding, Trace


def trace_quality_table(findings: Sequence[tuple[int | None, Finding]]) -> pa.Table:
    """Findings with the trace that each is about; None is the run."""
    return arrow.rows_table(
        [{"trace_id": trace_id, **asdict(finding)} for trace_id, finding in findings]
    )


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


def floors_table(floors: Sequence[FloorSamples]) -> pa.Table:
    return arrow.rows_table(
        [
            {
                "launch_api": floor.launch_api,
                "definition": floor.definition,
                "samples_ns": floor.samples_ns.tolist(),
                "n": len(floor.samples_ns),
                "p5_ns": decomposition.percentile(floor.samples_ns, 5),
                "p50_ns": decomposition.percentile(floor.samples_ns, 50),
                "mean_ns": round(float(floor.samples_ns.mean())),
                "p95_ns": decomposition.percentile(floor.samples_ns, 95),
            }
            for floor in floors
        ]
    )


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
            {"file": f.path.name, "role": f.role, "sha256": f.sha256, "bytes": f.bytes}
            for f in source.files
        ]
    )


def latency_table(latency: Latency) -> pa.Table:
    return arrow.rows_table(
        [
            {
                "request": i,
                "ttft_ns": request.ttft_ns,
                "tpot_ns": round(sum(request.itl_ns) / len(request.itl_ns))
                if request.itl_ns
                else None,
                "total_ns": request.total_ns,
                "itl_ns": request.itl_ns,
            }
            for i, request in enumerate(latency.requests)
        ]
    )


def step_latency_table(latency: Latency) -> pa.Table:
    return arrow.rows_table(
        [{"phase": phase, "wall_ns": times} for phase, times in latency.steps.items() if times]
    )


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
                "source": "run_directory" if manifest else "trace",
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
