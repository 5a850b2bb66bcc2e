"""One linked trace to its figures: kernel identities, match, decomposition, ledger, totals."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from analyzer.attribution import decomposition, ledger, totals
from analyzer.attribution.decomposition import Floor, Launches
from analyzer.attribution.events import LinkedTrace, Step
from analyzer.attribution.intervals import Ints
from analyzer.attribution.kernel_identity import KernelIdentities
from analyzer.attribution.kernel_match import RunMatches
from analyzer.attribution.totals import Totals
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
        ledger: Entries of every step and of the whole trace.
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
    ledger: list[ledger.Entry]
    whole: Totals
    steps: list[Totals]


def analyse(
    linked: LinkedTrace,
    launches: Launches,
    floor: Floor,
    ids: RunIds,
    kernels: KernelIdentities,
    matches: RunMatches | None,
) -> AnalysedTrace:
    """Fill the figures of a trace's launches, and add its texts and kernels to those of the run."""
    strings, device = linked.trace.strings, linked.device
    named = (linked.ops.name, linked.calls.name, device.name, device.replay_op)
    name_ids = ids.names.add(strings, np.concatenate((*named, linked.python["name"])))
    shape_ids = ids.shapes.add(strings, np.concatenate((linked.ops.shape, device.replay_shape)))
    thread_ids = ids.threads.add(linked)
    kernel_ids = kernels.add(linked, name_ids, shape_ids)
    launch_kernel_ids = np.append(kernel_ids, -1)[launches.first]
    if matches:
        matches.add(kernels.all, _durations(linked, kernel_ids, len(kernels.all)))
        matches.set_replay_times(launches, launch_kernel_ids)
    decomposition.decompose(linked, launches, floor)
    busy = ledger.busy_measure(linked)

    def totals_of(number: int | None, step: Step) -> Totals:
        window = ledger.window(busy, step)
        return totals.of_step(linked, launches, floor, number, step.end - step.start, window)

    first, ids.first = ids.first, ids.first.after(linked)
    return AnalysedTrace(
        first=first,
        linked=linked,
        launches=launches,
        name_ids=name_ids,
        shape_ids=shape_ids,
        thread_ids=thread_ids,
        kernel_ids=kernel_ids,
        launch_kernel_ids=launch_kernel_ids,
        match_tiers=matches.tiers(launch_kernel_ids) if matches else None,
        ledger=ledger.ledger(linked, launches, busy),
        whole=totals_of(None, linked.whole),
        steps=[totals_of(i, step) for i, step in enumerate(linked.steps)],
    )


def _durations(linked: LinkedTrace, kernel_ids: Ints, count: int) -> Ints:
    """A duration of each kernel identity in this trace, in ns: that of its last execution."""
    durations = np.zeros(count, np.int64)
    has = kernel_ids >= 0
    durations[kernel_ids[has]] = (linked.device.end - linked.device.start)[has]
    return durations
