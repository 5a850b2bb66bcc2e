"""What the sums of a run say about their worth: no floor, clocks that differ, missing links."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from analyzer.attribution.decomposition import FEWEST_CLEAN_SAMPLES
from analyzer.attribution.events import LinkedTrace
from analyzer.attribution.intervals import Groups
from analyzer.attribution.ledger import Ledger
from analyzer.attribution.totals import Totals
from analyzer.trace.events import Finding, FindingKind, finding

FINDINGS = {
    "no_floor": FindingKind(
        "warning",
        "no launch floor: none was measured and the trace has fewer than {fewest} clean launches, "
        "or kernels before their launch; dKT, T_Orchestration and HDBI {where} are unknown",
    ),
    "floor_from_trace": FindingKind(
        "note",
        "the launch floor is estimated from the trace (5th percentile of clean launch gaps), not "
        "measured; `collector floor` measures it",
    ),
    "negative_gaps": FindingKind(
        "warning",
        "{count} of {launches} kernels start before their launch call: host and device clocks "
        "differ; the values are kept as they are",
    ),
    "dirty_launches": FindingKind(
        "note",
        "{count} of {launches} launches found their stream busy or unseen: their T_launch holds "
        "queueing",
    ),
    "launches_without_device_event": FindingKind(
        "warning", "{count} launch calls have no device event in the trace"
    ),
    "several_threads": FindingKind(
        "note",
        "{count} threads launch: each moment of a step is the one's that is in an op or call; "
        "their shares of the ledger: {shares}",
    ),
    "launches_without_op": FindingKind(
        "note",
        "{count} of {launches} launches stand in no operator: they add only their launch path",
    ),
}


def run_findings(run: Totals, steps: Sequence[Totals]) -> list[Finding]:
    """Return what the totals of a run, and of its steps, say about its figures."""
    counts = {
        "negative_gaps": run.negative_gaps,
        "dirty_launches": _dirty(run),
        "launches_without_device_event": run.launches_without_device_event,
        "launches_without_op": run.launches_without_op,
    }
    found = _floor_findings(run, steps)
    found += [
        finding(FINDINGS, code, count, launches=run.launches)
        for code, count in counts.items()
        if count
    ]
    return found


def thread_findings(linked: LinkedTrace, entries: Ledger) -> list[Finding]:
    """Return what share of its steps each launching thread has, where several launch."""
    marked = entries.step >= 0
    times = Groups(np.where(marked, entries.thread, -1), len(linked.threads)).sums(entries.ns)
    # In the order in which they first come: it stays so among equals.
    threads = dict.fromkeys(entries.thread[marked].tolist())
    time = Counter({thread: int(times[thread]) for thread in threads})
    wall = sum(time.values())
    if len(time) < 2 or not wall:
        return []
    shares = [f"{_name(linked, thread)} {ns / wall:.0%}" for thread, ns in time.most_common(6)]
    return [finding(FINDINGS, "several_threads", len(time), shares=", ".join(shares))]


def _name(linked: LinkedTrace, thread: int) -> str:
    pair = linked.threads[thread]
    return linked.trace.thread_names.get(pair) or f"thread {pair[1]}"


def _dirty(run: Totals) -> int:
    """Launches on a busy stream, if they are more than half."""
    return run.launches - run.clean_launches if run.clean_launches < run.launches / 2 else 0


def _floor_findings(run: Totals, steps: Sequence[Totals]) -> list[Finding]:
    if run.floor_source == "trace":
        return [finding(FINDINGS, "floor_from_trace")]
    # A graph launch needs no floor: its own call is its launch path.
    if run.floor_source != "none" or run.launches == run.graph_launches:
        return []
    if any(step.orchestration_ns is None for step in steps):
        where, severity = "of some steps", "warning"
    else:
        where, severity = "outside the steps", "note"
    found = finding(FINDINGS, "no_floor", fewest=FEWEST_CLEAN_SAMPLES, where=where)
    return [replace(found, severity=severity)]
