"""Match traced kernels to replayed ones: exact, substring, most_frequent, unmatched.

Works on kernel identities and replay records; reads no table and no file. The rules are those of
docs/measurement.md, "Kernel replay and match tiers".
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from analyzer.attribution.decomposition import UNKNOWN, Launches, median_ns
from analyzer.attribution.intervals import Ints
from analyzer.attribution.kernel_identity import KernelIdentity
from analyzer.trace.columns import op_shape

TIERS = ("exact", "substring", "most_frequent", "unmatched")


@dataclass
class Replayed:
    """One kernel of one replayed op call; `name` is None where the op could not be replayed."""

    op: str
    dims: str | None
    types: str | None
    strides: str | None
    concrete: str | None
    name: str | None
    clean_name: str | None
    position: int
    grid: str | None
    block: str | None
    shared_memory: int | None
    launch_api: str | None
    occurrences: int
    dispatch_ns: list[int] = field(default_factory=list[int])
    launch_ns: list[int] = field(default_factory=list[int])
    exec_ns: list[int] = field(default_factory=list[int])
    reason: str | None = None


@dataclass
class Traced:
    """A kernel identity of the trace, with its median duration in ns."""

    clean_name: str
    grid: str | None
    block: str | None
    shared_memory: int | None
    op: str | None
    dims: str | None
    types: str | None
    strides: str | None
    concrete: str | None
    duration_ns: int


@dataclass
class Match:
    """How an identity was matched; `replay` is an index into the replays, None if unmatched."""

    tier: str
    replay: int | None
    same_configuration: bool | None
    reason: str | None


class RunMatches:
    """Matches of a run's kernel identities to its replays, by kernel id; they grow with its traces.

    Attributes:
        found: One a kernel identity.
    """

    def __init__(self, replays: Sequence[Replayed]) -> None:
        self._replays = replays
        self.found: list[Match] = []
        # Median of the replay's samples by kernel id, in ns.
        self._dispatch: list[int] = []
        self._launch: list[int] = []

    def add(self, identities: Sequence[KernelIdentity], durations: Ints) -> None:
        """Match the identities that a trace has added.

        Args:
            identities: All of the run; those with a match already are left alone.
            durations: The kernel duration of each identity in this trace, in ns.
        """
        new = identities[len(self.found) :]
        traced = [_traced(identity, int(durations[identity.kernel_id])) for identity in new]
        for found in match(traced, self._replays):
            self.found.append(found)
            replay = None if found.replay is None else self._replays[found.replay]
            self._dispatch.append(_median(replay.dispatch_ns if replay else []))
            self._launch.append(_median(replay.launch_ns if replay else []))

    def set_replay_times(self, launches: Launches, kernel: Ints) -> None:
        """Fill the replay columns of launches; `kernel` is the kernel id of each, -1 for none."""
        for column, medians in (
            ("replay_dispatch", self._dispatch),
            ("replay_launch", self._launch),
        ):
            times = np.array([*medians, UNKNOWN], np.int64)  # kernel -1 takes the last
            setattr(launches, column, np.where(launches.is_graph, UNKNOWN, times[kernel]))

    def tiers(self, kernel: Ints) -> list[str]:
        """The tier of each kernel id; "unmatched" for -1."""
        tiers = [*(found.tier for found in self.found), "unmatched"]
        return [tiers[i] for i in kernel.tolist()]


def _traced(identity: KernelIdentity, duration_ns: int) -> Traced:
    shape = op_shape(identity.shape or "")
    return Traced(
        clean_name=identity.clean_name,
        grid=identity.grid,
        block=identity.block,
        shared_memory=identity.shared_memory,
        op=identity.op,
        dims=shape.dims,
        types=shape.types,
        strides=shape.strides,
        concrete=shape.concrete,
        duration_ns=duration_ns,
    )


def _median(samples: Sequence[int]) -> int:
    return median_ns(np.array(samples)) if samples else UNKNOWN


def match(traced: Sequence[Traced], replays: Sequence[Replayed]) -> list[Match]:
    """Match each identity to a kernel of its own op's replay, by the first rule that answers."""
    full: dict[tuple[str | None, ...], list[int]] = defaultdict(list)
    loose: dict[tuple[str | None, ...], list[int]] = defaultdict(list)
    for i, r in enumerate(replays):
        full[r.op, r.dims, r.types, r.strides, r.concrete].append(i)
        loose[r.op, r.dims, r.types, r.strides].append(i)
    return [
        _match_one(
            kernel,
            replays,
            full.get((kernel.op, kernel.dims, kernel.types, kernel.strides, kernel.concrete))
            # Scalars may differ from call to call (a position, say) and launch the same kernels.
            or loose.get((kernel.op, kernel.dims, kernel.types, kernel.strides), []),
        )
        for kernel in traced
    ]


def _match_one(kernel: Traced, replays: Sequence[Replayed], candidates: list[int]) -> Match:
    if kernel.op is None:
        return Match("unmatched", None, None, "the launch has no op")
    if not candidates:
        return Match("unmatched", None, None, "no replay of this op call")
    usable = [i for i in candidates if replays[i].clean_name]
    if not usable:
        reasons = [r for i in candidates if (r := replays[i].reason)]
        return Match(
            "unmatched", None, None, reasons[0] if reasons else "the replay launched nothing"
        )
    equal = [i for i in usable if replays[i].clean_name == kernel.clean_name]
    if equal:
        return _closest(kernel, replays, equal, "exact")
    part = [
        i
        for i in usable
        if kernel.clean_name in (name := replays[i].clean_name or "") or name in kernel.clean_name
    ]
    if part:
        return _closest(kernel, replays, part, "substring")
    frequent = max(usable, key=lambda i: replays[i].occurrences)
    return Match("most_frequent", frequent, _same(kernel, replays[frequent]), None)


def _closest(
    kernel: Traced, replays: Sequence[Replayed], candidates: list[int], tier: str
) -> Match:
    def rank(i: int) -> tuple[bool, int]:
        samples = replays[i].exec_ns
        typical = sorted(samples)[len(samples) // 2] if samples else 0
        return not _same(kernel, replays[i]), abs(typical - kernel.duration_ns)

    best = min(candidates, key=rank)
    return Match(tier, best, _same(kernel, replays[best]), None)


def _same(kernel: Traced, replay: Replayed) -> bool:
    return (kernel.grid, kernel.block, kernel.shared_memory) == (
        replay.grid,
        replay.block,
        replay.shared_memory,
    )
