"""PyTorch's Perfetto traces (`.pftrace`, also gzipped) to columns; this folder is the only place
that knows their messages.

The wire format is read as it comes, a packet at a time. A file also holds names of processes and
threads, and may hold whatever a program noted of an event: only what is named here is read, and no
error quotes the file. Times are integer nanoseconds.
"""

from __future__ import annotations

import json
from collections import deque
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from analyzer.trace.columns import Rows
from analyzer.trace.events import KEPT_METADATA, Finding, FindingKind, Trace, finding
from analyzer.trace.pftrace.events import Decoder, Marks
from analyzer.trace.pftrace.packets import Packets, begins_with_packets
from analyzer.trace.reader import DEFAULTS, ReadOptions
from analyzer.trace.stream import Feed, TraceError, TraceStream, first_bytes

Ints = npt.NDArray[np.int64]

_FINDINGS = {
    "truncated": FindingKind(
        "warning",
        "the trace is truncated: it ends at byte {at} before its end{why}; what follows is missing "
        "from every figure",
    ),
    "damaged": FindingKind(
        "warning",
        "the trace is damaged: at byte {at} stands no packet; what follows is missing from every "
        "figure",
    ),
    "dropped_packets": FindingKind("warning", "{count} packets are damaged and were dropped"),
    "open_slices": FindingKind("warning", "{count} events have no end and were left out"),
    "stray_ends": FindingKind("warning", "{count} ends of events have no begin"),
    "unnamed_events": FindingKind(
        "warning", "{count} events refer to a name that the trace does not hold"
    ),
    "graph_dependencies": FindingKind(
        "note", "{count} dependencies between the nodes of graphs are in no figure"
    ),
}


def sniff(path: Path) -> bool:
    """Return whether a file begins with Perfetto's packets, PyTorch's or not."""
    return path.is_file() and begins_with_packets(first_bytes(path))


def read(path: Path, options: ReadOptions = DEFAULTS) -> list[Trace]:
    """Read the one trace of a file.

    Raises:
        TraceError: It cannot be read, holds nothing of PyTorch, or more than is read. The message
            is one line.
    """
    decoder = Decoder()
    with TraceStream(path, options.most_bytes) as stream:
        feed = Feed(stream, options.progress)
        packets = Packets(feed)
        for packet in packets:
            decoder.add(packet)
            events = len(decoder.slices) + len(decoder.work)
            if options.most_events is not None and events > options.most_events:
                raise TraceError(
                    f"{path} holds more than {options.most_events} events, the most that are read "
                    "here; record fewer steps in a trace."
                )
        size, broken = feed.place(), stream.broken
    if not decoder.is_pytorch:
        at = packets.cut_at if packets.damaged_at is None else packets.damaged_at
        if at is not None:
            raise TraceError(
                f"{path} is a damaged Perfetto trace: before byte {at}, where it breaks off, "
                "stands no operator, CUDA call or kernel. Copy or record the trace again."
            )
        raise TraceError(
            f"{path} is a Perfetto trace but none of PyTorch: of its {decoder.packets} packets "
            "none is an operator, a CUDA call or a kernel. Give what torch.profiler wrote "
            "(.pftrace or .json)."
        )
    findings = _findings(decoder, packets, size, broken)
    rows, counts = _rows(decoder, findings), dict(decoder.counts)
    if not options.keep_python:
        rows = rows[rows["category"] != decoder.texts.id("python_function")]
    rows["index"] = np.arange(len(rows))
    trace = Trace(
        path=path,
        document=0,
        rows=rows,
        strings=decoder.texts.all(),
        counts=counts,
        events=sum(counts.values()),
        json_bytes=size,
        metadata={"format": "Perfetto", **_metadata(decoder.metadata)},
        thread_names={},
        findings=findings,
    )
    return [trace]


def _findings(decoder: Decoder, packets: Packets, size: int, broken: str | None) -> list[Finding]:
    found: list[Finding] = []
    why = f" ({broken})" if broken else ""
    if packets.damaged_at is not None:
        found.append(_placed("damaged", packets.damaged_at))
    elif packets.cut_at is not None or broken:
        found.append(_placed("truncated", packets.cut_at or size, why=why))
    counts = {
        "dropped_packets": decoder.damaged_packets,
        "unnamed_events": decoder.unnamed,
        "graph_dependencies": decoder.dependencies,
    }
    return found + [finding(_FINDINGS, code, count) for code, count in counts.items() if count]


def _placed(code: str, at: int, **values: object) -> Finding:
    return finding(_FINDINGS, code, 1, f"byte {at}", at=at, **values)


def _metadata(text: str) -> dict[str, Any]:
    """The fields of a Chrome trace that an export kept; none in a trace of PyTorch's own."""
    try:
        value: object = json.loads(json.loads(text)) if text else {}
    except (ValueError, TypeError, RecursionError):
        return {}
    known = cast("dict[str, Any]", value) if isinstance(value, dict) else {}
    return {key: known[key] for key in KEPT_METADATA if key in known}


def _rows(decoder: Decoder, findings: list[Finding]) -> Rows:
    """All events in order of time, the longer first; slices without an end are left out."""
    slices, begins, ends = decoder.slices.all(), decoder.begins, decoder.ends
    end = _paired(begins, ends, in_order=decoder.grouped)
    begin_time, end_time = np.array(begins.time, np.int64), np.array(ends.time, np.int64)
    # Two that touch look the same as one of no length within another, where times never go back.
    if decoder.unflagged_ends and not decoder.grouped:
        has = end >= 0
        if (end_time[end[has]] == begin_time[has]).any():
            end = _paired(begins, ends, in_order=True)
    closed = end >= 0
    slices["dur"][closed] = end_time[end[closed]] - begin_time[closed]
    for code, count in (
        ("open_slices", len(end) - int(closed.sum())),
        ("stray_ends", len(end_time) - len(np.unique(end[closed]))),
    ):
        if count:
            findings.append(finding(_FINDINGS, code, count))
    rows = np.concatenate([slices[closed], decoder.linked_work()])
    return rows[np.lexsort((-rows["dur"], rows["ts"]))]


def _paired(begins: Marks, ends: Marks, in_order: bool) -> Ints:
    """The end of each begin of a slice by place, -1 without one.

    Args:
        in_order: The first begin of a track that is open ends first, as in PyTorch's groups of
            begins and then ends; else the last, as slices nest.
    """
    result = np.full(len(begins.track), -1, np.int64)
    open_: dict[int, deque[int]] = {}
    next_begin = 0
    for place, (track, packet) in enumerate(zip(ends.track, ends.packet, strict=True)):
        while next_begin < len(begins.packet) and begins.packet[next_begin] < packet:
            open_.setdefault(begins.track[next_begin], deque()).append(next_begin)
            next_begin += 1
        waiting = open_.get(track)
        if waiting:
            result[waiting.popleft() if in_order else waiting.pop()] = place
    return result
