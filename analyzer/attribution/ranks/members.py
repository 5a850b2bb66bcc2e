"""Which traces of a run are ranks of one job, and which rank each is.

Told by `distributedInfo`, by the file's name, or, in a file of several processes, by the device
that each uses. Nothing is guessed: traces that do not tell their rank are no ranks.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from analyzer.attribution.events import LinkedTrace
from analyzer.attribution.ranks.collectives import places
from analyzer.trace.events import Trace

_IN_NAME = re.compile(r"(?:^|[^a-z])rank[-_]?(\d+)", re.IGNORECASE)
# vLLM: dp0_pp0_tp1_..., SGLang: ...-TP-1-DP-0-PP-0-EP-1; the outer dimension first.
_DIMENSIONS = ("dp", "pp", "tp", "ep")
_IN_PARTS = {
    part: re.compile(rf"(?:^|[^a-z]){part}[-_]?(\d+)", re.IGNORECASE) for part in _DIMENSIONS
}


@dataclass(frozen=True)
class Rank:
    """One rank's trace.

    Attributes:
        trace: Place among the run's timed traces.
        rank: As the recording numbers it; else in order of place or device.
        world_size: Ranks of the job; None if the recording does not tell.
        label: What told the rank, for people: "rank 1", "TP-1", "device 1".
        repetition: Which of the traces of this rank it is.
    """

    trace: int
    rank: int
    world_size: int | None
    label: str
    repetition: int


def distributed(trace: Trace) -> tuple[int | None, int | None]:
    """Rank and number of ranks, as a trace tells; None for what it does not."""
    info = trace.metadata.get("distributedInfo")
    fields = cast("dict[str, Any]", info) if isinstance(info, dict) else {}
    return _int(fields.get("rank")), _int(fields.get("world_size"))


def _int(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def rank_in_name(name: str) -> tuple[tuple[int, ...], str] | None:
    """What orders a file among the ranks by its name, and how it is shown; None if nothing does."""
    if match := _IN_NAME.search(name):
        return (int(match[1]),), f"rank {match[1]}"
    found = {part: match[1] for part, text in _IN_PARTS.items() if (match := text.search(name))}
    # Experts and attention of one worker have numbers each: data, pipeline and tensor tell it.
    order = tuple(int(found.get(part, 0)) for part in _DIMENSIONS)
    return (order, " ".join(f"{p}{n}" for p, n in found.items())) if found else None


def ranks_of(linked: Sequence[LinkedTrace]) -> list[Rank]:
    """The ranks among the timed traces of a run, in order; empty if there are not two."""
    told = [distributed(one.trace)[0] for one in linked]
    labels = [f"rank {rank}" for rank in told]
    if len(linked) < 2:
        return []
    if any(rank is None for rank in told):
        names = [rank_in_name(one.trace.path.name) for one in linked]
        one_file = len({one.trace.path for one in linked}) == 1
        if all(names) and not one_file:
            order = sorted({name[0] for name in names if name})
            told = [order.index(name[0]) if name else None for name in names]
            labels = [name[1] if name else "" for name in names]
        elif one_file:
            told, labels = _by_device(linked)
        else:
            return []
    seen: Counter[int] = Counter()
    ranks: list[Rank] = []
    for i, (rank, label) in enumerate(zip(told, labels, strict=True)):
        if rank is None:
            continue
        world = distributed(linked[i].trace)[1]
        ranks.append(Rank(i, rank, world, label, seen[rank]))
        seen[rank] += 1
    return sorted(ranks, key=lambda r: (r.rank, r.trace)) if len(seen) > 1 else []


def _by_device(linked: Sequence[LinkedTrace]) -> tuple[list[int | None], list[str]]:
    """Processes of one file that share collectives, in order of the devices that they use."""
    devices: dict[int, str] = {}
    for i, one in enumerate(linked):
        used: list[int] = np.unique(one.device.device[places(one)]).tolist()
        if used:
            devices[i] = min(one.trace.strings[d] for d in used)
    order = sorted(devices, key=lambda i: (len(devices[i]), devices[i], i))
    ranks: list[int | None] = [order.index(i) if i in devices else None for i in range(len(linked))]
    return ranks, [f"device {devices[i]}" if i in devices else "" for i in range(len(linked))]


def missing(linked: Sequence[LinkedTrace]) -> tuple[list[int], int]:
    """Ranks of the job that have no trace in the run, and how many there are in all.

    Empty for traces that do not tell: of one process, or of an unknown number.
    """
    told = [distributed(one.trace) for one in linked]
    world = max((size or 0 for _, size in told), default=0)
    present = {rank for rank, _ in told}
    return [] if None in present else sorted(set(range(world)) - present), world
