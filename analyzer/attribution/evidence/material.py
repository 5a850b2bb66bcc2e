"""What the checks of one trace look at."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from analyzer.attribution import classification
from analyzer.attribution.decomposition import Floor, Launches
from analyzer.attribution.events import LinkedTrace
from analyzer.attribution.intervals import Bools, Ints
from analyzer.trace.events import Finding

KERNEL = classification.LAUNCH_KINDS.index("kernel")
GRAPH = classification.LAUNCH_KINDS.index("graph")
MEMCPY = classification.LAUNCH_KINDS.index("memcpy")
MEMSET = classification.LAUNCH_KINDS.index("memset")


@dataclass(frozen=True)
class Material:
    """One trace, linked and measured.

    Attributes:
        launches: Its launches, with their spans.
        floor: The launch floor of its run.
        inflation: Profiled over un-profiled time of a step; None where nothing was measured
            without the profiler.
        ranks_apart_ns: How far this trace's clock is from another rank's after they were aligned;
            None for a trace that is alone.
    """

    linked: LinkedTrace
    launches: Launches
    floor: Floor
    inflation: float | None = None
    ranks_apart_ns: int | None = None

    @cached_property
    def executed(self) -> Bools:
        """Which calls are launches (copies and memsets too) that ran: not recorded into a graph."""
        calls = self.linked.calls
        return (calls.kind > 0) & (calls.capture < 0) & ~calls.bad

    def silent(self, kind: int) -> Ints:
        """The launches of a kind that ran and have no device event."""
        calls = self.linked.calls
        return np.flatnonzero(self.executed & (calls.kind == kind) & (calls.device_events == 0))

    def and_balance(self, *figures: str) -> tuple[str, ...]:
        """Figures, with the balance where the launch floor comes from the trace's own launches, or
        would have come.
        """
        needs_floor = not self.launches.is_graph.all() and self.floor.source != "null_kernel"
        return (*figures, "host_cost", "hdbi") if needs_floor else figures

    def finding(self, *codes: str) -> list[Finding]:
        """The findings of some codes that the reader or the linker left."""
        return [finding for finding in self.linked.trace.findings if finding.code in codes]
