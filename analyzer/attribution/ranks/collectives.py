"""The collectives of each rank, and which of them are one collective on several ranks.

The n-th of a process group where the trace names groups, else the n-th of a stream. Columns, one
entry a collective of a rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from analyzer.attribution import classification
from analyzer.attribution.events import DEVICE_KINDS, LinkedTrace
from analyzer.attribution.intervals import Ints
from analyzer.attribution.kernel_families import kernel_family
from analyzer.trace.columns import CollectiveText, collective

# From one rank to another: the n-th of a group is not the same message on each.
POINT_TO_POINT = ("send", "recv", "isend", "irecv")
DTYPE_BYTES = {
    "Double": 8, "Long": 8, "ComplexFloat": 8, "Float": 4, "Int": 4, "Half": 2, "BFloat16": 2,
    "Short": 2, "Byte": 1, "Char": 1, "Bool": 1,
}  # fmt: skip


@dataclass(frozen=True)
class Series:
    """Collectives that follow each other in the same order on each of their ranks.

    Attributes:
        group: Name of the process group; None where the trace does not tell: then by stream.
        stream: Its place among the streams with such collectives, or its name if all ranks
            have the same.
    """

    group: str | None
    stream: str | None


@dataclass(frozen=True)
class Collectives:
    """Collectives of all ranks, rank by rank, each in order of start.

    Attributes:
        all_series: By ordinal.
        member: Place of the rank.
        event: Place among the rank's device events.
        start, end: On the rank's own clock.
        series, number: It is the n-th of its series on its rank.
        instance: The same for the same collective on several ranks.
        name: Place in `names`: what it does, else the kernel's name.
        bytes: Of its larger buffer; -1 if not recorded.
    """

    all_series: list[Series]
    names: list[str]
    member: Ints
    event: Ints
    start: Ints
    end: Ints
    series: Ints
    number: Ints
    instance: Ints
    name: Ints
    bytes: Ints


def places(linked: LinkedTrace) -> Ints:
    """The device events that are collectives, in order of start."""
    device, strings = linked.device, linked.trace.strings
    names: list[int] = np.unique(device.name).tolist()
    known = [i for i in names if kernel_family(strings[i]) == "communication"]
    kernel = device.kind == DEVICE_KINDS.index("kernel")
    at = np.flatnonzero(np.isin(device.name, known) & kernel & ~device.bad)
    texts: list[int] = np.unique(device.shape[at]).tolist()
    apart = [i for i in texts if i >= 0 and collective(strings[i]).name in POINT_TO_POINT]
    at = at[~np.isin(device.shape[at], apart)]
    return at[np.lexsort((device.index[at], device.start[at]))]


def find_collectives(linked: Sequence[LinkedTrace]) -> Collectives:
    """Find the collectives of each rank, and number them alike on all.

    Args:
        linked: The ranks' traces, in order of rank.
    """
    all_series: dict[Series, int] = {}
    names: dict[str, int] = {}
    parts: list[tuple[Ints, ...]] = []
    at = [places(one) for one in linked]
    streams = [_streams(one, own) for one, own in zip(linked, at, strict=True)]
    if len({frozenset(own.values()) for own in streams}) > 1:  # each rank has names of its own
        streams = [{lane: str(n) for n, lane in enumerate(own)} for own in streams]
    for member, (one, own) in enumerate(zip(linked, at, strict=True)):
        device, strings = one.device, one.trace.strings
        kinds = np.column_stack((device.shape[own], device.lane[own], device.name[own]))
        distinct, which = np.unique(kinds, axis=0, return_inverse=True)
        found = np.empty((len(distinct), 3), np.int64)
        rows: list[list[int]] = distinct.tolist()
        for i, (shape, lane, kernel) in enumerate(rows):
            text = collective(strings[shape] if shape >= 0 else "")
            group = f"{text.group} {text.ranks or ''}".strip() if text.group else None
            series = Series(group, None if group else streams[member][lane])
            name = text.name or classification.clean_name(strings[kernel])
            found[i, 0] = all_series.setdefault(series, len(all_series))
            found[i, 1] = names.setdefault(name, len(names))
            found[i, 2] = _bytes(text)
        series_id, name_id, size = found[which.reshape(-1)].T
        whose = np.full(len(own), member, np.int64)
        times = device.start[own], device.end[own]
        parts.append((whose, own, *times, series_id, _numbers(series_id), name_id, size))
    member, event, start, end, series, number, name, size = map(
        np.concatenate, zip(*parts, strict=True)
    )
    _, instance = np.unique(series * (int(number.max(initial=0)) + 1) + number, return_inverse=True)
    return Collectives(
        list(all_series),
        list(names),
        member,
        event,
        start,
        end,
        series,
        number,
        instance.reshape(-1).astype(np.int64),
        name,
        size,
    )


def _streams(linked: LinkedTrace, at: Ints) -> dict[int, str]:
    """The stream of each lane that has some device events, in order of first use."""
    device = linked.device
    lanes, first = np.unique(device.lane[at], return_index=True)
    order = np.argsort(first)
    streams: list[int] = device.stream[at][first[order]].tolist()
    used: list[int] = lanes[order].tolist()
    return {i: linked.trace.strings[text] for i, text in zip(used, streams, strict=True)}


def _numbers(series: Ints) -> Ints:
    """The place of each entry among those of its series."""
    order = np.argsort(series, kind="stable")
    ordered = series[order]
    first = np.searchsorted(ordered, ordered)
    number = np.empty(len(series), np.int64)
    number[order] = np.arange(len(series)) - first
    return number


def _bytes(text: CollectiveText) -> int:
    size = DTYPE_BYTES.get(text.dtype or "")
    if (text.dtype or "").startswith("Float8"):
        size = 1
    most = max(text.sent or 0, text.received or 0)
    return most * size if size and most else -1
