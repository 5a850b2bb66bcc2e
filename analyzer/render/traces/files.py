"""A run's traces with our attribution as files of Chrome's format or Perfetto's.

Traces on one clock stand in one file, one under the other; else each has a file of its own.
"""

from __future__ import annotations

import gzip
import io
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal, cast

from analyzer.queries.clocks import clock_shifts
from analyzer.queries.rows import select_tuples
from analyzer.render.aside import aside
from analyzer.render.traces.annotated import AnnotatedTrace, ViewerIds
from analyzer.render.traces.chrome import ChromeWriter
from analyzer.render.traces.perfetto import PerfettoWriter
from analyzer.store import Connection
from analyzer.trace.events import KEPT_METADATA

TraceFormat = Literal["chrome", "perfetto"]
SUFFIXES = {"chrome": ".trace.json.gz", "perfetto": ".pftrace.gz"}
_COMPRESSION = 6


@dataclass(frozen=True)
class _Part:
    """One trace of a file, its name there, and what is kept of its recording's description."""

    trace_id: int
    label: str
    metadata: Mapping[str, object]


def write_traces(connection: Connection, run_id: str, form: TraceFormat, out: Path) -> list[Path]:
    """Write the traces of a run, gzipped; returns the files.

    Raises:
        AnalyzerError: `out` exists or cannot be written.
    """
    parts = _parts(connection, run_id)
    shifts = clock_shifts(connection, run_id)
    files = [parts] if shifts is not None else [[part] for part in parts]
    written: list[Path] = []
    try:
        for number, together in enumerate(files, 1):
            path = out if number == 1 else _numbered(out, number)
            with aside(path) as temporary:
                _write(connection, run_id, form, together, shifts or {}, temporary)
                os.rename(temporary, path)
            written.append(path)
    except BaseException:
        for path in written:
            path.unlink(missing_ok=True)
        raise
    return written


def _parts(connection: Connection, run_id: str) -> list[_Part]:
    traces = select_tuples(
        connection,
        "SELECT trace_id, rank, metadata FROM traces "
        "WHERE run_id = $run_id AND role = 'trace' ORDER BY trace_id",
        {"run_id": run_id},
    )
    ranks = [rank for _, rank, _ in traces]
    has_ranks = None not in ranks and len(set(ranks)) == len(ranks)
    parts: list[_Part] = []
    for trace_id, rank, metadata in traces:
        kept: dict[str, object] = json.loads(metadata) if metadata else {}
        fields = {key: kept[key] for key in KEPT_METADATA if key in kept}
        label = f"rank {rank}" if has_ranks else f"trace {trace_id}"
        parts.append(_Part(trace_id, label, fields))
    return parts


def _write(
    connection: Connection,
    run_id: str,
    form: TraceFormat,
    parts: Sequence[_Part],
    shifts: Mapping[int, int],
    path: Path,
) -> None:
    """Write some traces into one file."""
    metadata = dict(parts[0].metadata) if parts else {}
    if len(parts) > 1:
        metadata.pop("distributedInfo", None)  # of one rank
    with gzip.open(path, "wb", _COMPRESSION) as packed:
        if form == "chrome":
            stream = io.TextIOWrapper(packed, encoding="utf-8", newline="\n")
            writer = ChromeWriter(stream, metadata)
        else:
            stream, writer = None, PerfettoWriter(cast("IO[bytes]", packed), metadata)
        pids = ViewerIds()
        for part in parts:
            # Chrome's processes have the label in their ids, Perfetto's are told apart by number.
            pids = ViewerIds() if form == "chrome" else pids
            writer.label = part.label if len(parts) > 1 else ""
            shift = shifts.get(part.trace_id, 0)
            AnnotatedTrace(connection, run_id, part.trace_id, writer, pids, shift).write()
        writer.finish()
        if stream is not None:
            stream.detach()


def _numbered(path: Path, number: int) -> Path:
    for suffix in (*SUFFIXES.values(), ".json.gz", ".gz"):
        if path.name.endswith(suffix):
            return path.with_name(f"{path.name[: -len(suffix)]}-{number}{suffix}")
    return path.with_name(f"{path.name}-{number}")
