"""Linked traces to their figures: kernel identities, match, decomposition, ledger, totals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from analyzer.attribution import decomposition, ledger, totals
from analyzer.attribution.decomposition import Floor, Launches
from analyzer.attribution.events import LinkedTrace
from analyzer.attribution.evidence import Check, Material, check_trace
from analyzer.attribution.intervals import Ints, Measure
from analyzer.attribution.kernel_identity import KernelIdentities
from analyzer.attribution.kernel_match import Replayed, RunMatches
from analyzer.attribution.totals import Totals
from analyzer.ingest.findings import thread_findings
from analyzer.ingest.run_ids import FirstIds, RunIds


@dataclass(frozen=True)
class AnalysedTrace:
    """One trace and all its figures, with the ids that its rows have in the run.

    Attributes:
        first: The first id of the trace in each table.
        name_ids, shape_ids, thread_ids: The run's ordinals by the trace's; -1 stays -1.
        kernel_ids: Kernel identity of each device event; -1 for copies and memsets.
        launch_kernel_ids: Kernel identity of the first kernel of each launch; -1 without one.
        match_tiers: How that kernel was matched to a replay; None if nothing was replayed.
        ledger: Of every step and of the whole trace.
        whole: Totals of the trace.
        steps: Totals of each step.
    """

    first: FirstIds
    linked: LinkedTrace
    launches: Launches
    name_ids: Ints
    shape_ids: Ints
    thread_ids: Ints
    kernel_ids: Ints
    launch_kernel_ids: Ints
    match_tiers: list[str] | None
    ledger: ledger.Ledger
    whole: Totals
    steps: list[Totals]


class RunAnalysis:
    """The analysis of a run, trace by trace; texts, kernels and ids go on from one to the next.

    Attributes:
        ids: What the traces number together.
        kernels: Kernel identities of all traces so far.
        matches: How they match the kernel replay; None without one.
        wholes, steps: Totals of each trace, and of each step of all.
        checks: Of each trace, with its number.
    """

    def __init__(
        self,
        floor: Floor,
        replays: Sequence[Replayed] | None,
        unprofiled: Mapping[str, Sequence[int]],
    ) -> None:
        """Begin without a trace.

        Args:
            unprofiled: Wall times of steps without the profiler, by phase.
        """
        self._floor = floor
        self._unprofiled = {phase: median(times) for phase, times in unprofiled.items() if times}
        self.checks: list[tuple[int, Check]] = []
        self.ids = RunIds()
        self.kernels = KernelIdentities()
        self.matches = None if replays is None else RunMatches(replays)
        self.wholes: list[Totals] = []
        self.steps: list[Totals] = []

    def add(self, linked: LinkedTrace, launches: Launches) -> AnalysedTrace:
        """Analyse the next trace; fills the figures of its launches in place.

        Args:
            launches: `decomposition.spans` of the trace.
        """
        strings, device = linked.trace.strings, linked.device
        named = (linked.ops.name, linked.calls.name, device.name, device.replay_op)
        shaped = (linked.ops.shape, device.replay_shape)
        name_ids = self.ids.names.add(strings, np.concatenate((*named, linked.python.name)))
        shape_ids = self.ids.shapes.add(strings, np.concatenate(shaped))
        thread_ids = self.ids.threads.add(linked)
        kernel_ids = self.kernels.add(linked, name_ids, shape_ids)
        launch_kernel_ids = np.append(kernel_ids, -1)[launches.first]
        if self.matches is not None:
            self.matches.add(self.kernels.all, self._durations(linked, kernel_ids))
            self.matches.set_replay_times(launches, launch_kernel_ids)
        decomposition.decompose(linked, launches, self._floor)
        material = Material(linked, launches, self._floor, self._inflation(linked))
        self.checks += [(len(self.wholes), check) for check in check_trace(material)]
        busy = ledger.busy_measure(linked)
        kept = ledger.ledger(linked, launches, busy)
        linked.trace.findings += thread_findings(linked, kept)
        analysed = AnalysedTrace(
            first=self.ids.first,
            linked=linked,
            launches=launches,
            name_ids=name_ids,
            shape_ids=shape_ids,
            thread_ids=thread_ids,
            kernel_ids=kernel_ids,
            launch_kernel_ids=launch_kernel_ids,
            match_tiers=self.matches.tiers(launch_kernel_ids) if self.matches else None,
            ledger=kept,
            whole=self._whole(linked, launches, busy),
            steps=totals.of_steps(
                linked, launches, self._floor, ledger.windows(busy, linked.steps)
            ),
        )
        self.ids.first = self.ids.first.after(linked)
        self.wholes.append(analysed.whole)
        self.steps += analysed.steps
        return analysed

    def totals(self) -> Totals:
        """Return the totals of all traces so far."""
        return totals.add(self.wholes)

    def _whole(self, linked: LinkedTrace, launches: Launches, busy: Measure | None) -> Totals:
        window, wall_ns = ledger.window(busy, linked.whole), linked.whole.end - linked.whole.start
        return totals.of_step(linked, launches, self._floor, None, wall_ns, window)

    def _inflation(self, linked: LinkedTrace) -> float | None:
        """How much longer a step took than without the profiler: the phase with the most."""
        found: list[float] = []
        for phase, unprofiled in self._unprofiled.items():
            walls = [step.end - step.start for step in linked.steps if step.phase == phase]
            found += [median(walls) / unprofiled] if walls else []
        return max(found, default=None)

    def _durations(self, linked: LinkedTrace, kernel_ids: Ints) -> Ints:
        """The duration of each kernel identity in this trace, in ns: that of its last execution."""
        durations = np.zeros(len(self.kernels.all), np.int64)
        has = kernel_ids >= 0
        durations[kernel_ids[has]] = (linked.device.end - linked.device.start)[has]
        return durations
