"""One run's answer: how host-bound is it, which account is to blame, what is exposed.

Built from `queries`; `records.py` has its fields, `render/report.py` prints it. Integer
nanoseconds, unknown is None.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from analyzer import queries
from analyzer.attribution import classification
from analyzer.queries.costs import Step, StepTotals, Totals
from analyzer.queries.records import Coverage, Latencies, Run
from analyzer.reports import prediction
from analyzer.reports.bands import UNKNOWN, reading
from analyzer.reports.evidence import (
    NOT_JUDGED,
    evidence,
    withheld,
    withheld_costs,
    withheld_ledger,
)
from analyzer.reports.host_speed import speed_of
from analyzer.reports.ranks import rank_report
from analyzer.reports.records import (
    Evidence,
    HostSpeed,
    PhaseFigures,
    RunFigures,
    RunReport,
    RunSummary,
    Verdict,
)
from analyzer.reports.step_marks import steps_told
from analyzer.reports.verdict import exposed, sentence
from analyzer.store import Connection

TOP = 15


def figures(connection: Connection, run_id: str) -> RunFigures:
    """What a comparison needs of a run.

    Raises:
        AnalyzerError: The store has no such run.
    """
    found, run = evidence(connection, run_id), queries.run(connection, run_id)
    steps = [withheld_costs(step, found) for step in queries.steps(connection, run_id)]
    return RunFigures(
        run,
        withheld(queries.totals(connection, run_id), found),
        withheld_costs(queries.added(steps), found),
        {name: withheld_costs(sums, found) for name, sums in phase_figures(steps).items()},
        steps,
        queries.latency(connection, run_id),
        speed_of(run),
        rank_report(connection, run_id),
        found,
    )


def summary(connection: Connection, run_id: str) -> RunSummary:
    """Is the run host-bound, and what is to be known about it?

    Raises:
        AnalyzerError: The store has no such run.
    """
    found = figures(connection, run_id)
    coverage = queries.coverage(connection, run_id)
    quality = queries.quality(connection, run_id)
    return RunSummary(
        **vars(found),
        verdict=verdict(found.measured, found.totals, coverage, found.evidence),
        phase_verdicts={
            phase: verdict(part, found.totals, coverage, found.evidence)
            for phase, part in found.phases.items()
        },
        coverage=coverage,
        inflation=_inflation(found.phases, found.latency, found.host_speed),
        quality=quality,
        warnings=[row.message for row in quality if row.severity == "warning"],
    )


def report(connection: Connection, run_id: str) -> RunReport:
    """Everything the command `report` shows of a run.

    Raises:
        AnalyzerError: The store has no such run.
    """
    found = summary(connection, run_id)
    step_ids = None if found.is_whole_trace else [step.step_id for step in found.steps]
    return RunReport(
        **vars(found),
        steps_told=steps_told(
            queries.traces(connection, run_id), found.steps, found.run.step_annotation
        ),
        step_groups=[
            withheld(group, found.evidence) for group in queries.step_groups(connection, run_id)
        ],
        ledger=withheld_ledger(queries.ledger(connection, run_id), found.evidence),
        match=queries.match_tiers(connection, run_id),
        families={
            name: withheld(family, found.evidence)
            for name, family in queries.families(connection, run_id).items()
        },
        kernels=[
            withheld(kernel, found.evidence)
            for kernel in queries.kernel_records(connection, run_id, step_ids=step_ids, limit=TOP)
        ],
        ops=[
            withheld(op, found.evidence)
            for op in queries.op_records(connection, run_id, step_ids=step_ids, limit=TOP)
        ],
        kernels_per_output_token=_kernels_per_token(found.run, found.steps),
        floors=queries.floors(connection, run_id),
        predictions=prediction.predict_for_report(connection, run_id, found.steps),
    )


def phase_figures(steps: Sequence[Step]) -> dict[str, PhaseFigures]:
    """Figures of each phase: sums over its steps, and the median of those that are no warm-up."""
    result: dict[str, PhaseFigures] = {}
    for phase in dict.fromkeys(step.phase for step in steps):
        own = [step for step in steps if step.phase == phase]
        steady = [step for step in own if not step.is_warm_up] or own
        result[phase] = PhaseFigures(
            **vars(queries.added(own)),
            step_elapsed_ns=[step.elapsed_ns for step in own],
            step_wall_ns=[step.wall_ns for step in own],
            median_elapsed_ns=round(median(step.elapsed_ns for step in steady)),
            median_wall_ns=round(median(step.wall_ns for step in steady)),
            median_device_active_ns=_median([step.device_active_ns for step in steady]),
            median_orchestration_ns=_median([step.orchestration_ns for step in steady]),
        )
    return result


def _median(values: Sequence[int | None]) -> int | None:
    """The median, rounded; None if a value is unknown."""
    known = [value for value in values if value is not None]
    return round(median(known)) if len(known) == len(values) else None


def _kernels_per_token(run: Run, steps: Sequence[Step]) -> float | None:
    """Kernels of a decode step for each sequence's token; a generate call without steps by its
    tokens. None if a step's are unknown.
    """
    decode = [step.kernels for step in steps if step.phase == "decode"]
    kernels = [n for n in decode or [step.kernels for step in steps] if n is not None]
    tokens = len(decode) or run.new_tokens
    if len(kernels) < len(decode or steps) or not tokens:
        return None
    return sum(kernels) / tokens


def _inflation(
    phases: dict[str, PhaseFigures], latency: Latencies | None, speed: HostSpeed | None
) -> dict[str, float] | None:
    """Profiled step time over un-profiled step time, by phase: what the profiler costs.

    The un-profiled step just before a trace saw the same host; without one, the latency pass's.
    """
    beside = speed.beside if speed else {}
    found: dict[str, float] = {}
    for phase, figures in phases.items():
        unprofiled = (latency or {}).get(f"{phase}_step")
        if phase in beside:
            found[phase] = beside[phase].inflation
        elif unprofiled and unprofiled.p50_ns:
            found[phase] = figures.median_elapsed_ns / unprofiled.p50_ns
    return found or None


def verdict(measured: StepTotals, totals: Totals, coverage: Coverage, found: Evidence) -> Verdict:
    """How long the GPU waits, which account is to blame, how host-bound: in a sentence and in
    figures. A figure that stands on what the trace cannot tell is not shown as sound.
    """
    balance, idleness = found.bounds.get("hdbi"), found.bounds.get("device_idle")
    unsupported = [
        what
        for what, lacking in (
            ("device", not coverage.device_events),
            ("kernels", not totals.kernels),
            ("operators", not coverage.ops),
            ("launch floor", bool(totals.launches) and measured.orchestration_ns is None),
        )
        if lacking
    ]
    times = exposed(measured)
    idle = None if times is None or "device" in unsupported else sum(times.values())
    wall = sum(entry.ns for entry in measured.ledger.values())
    parts = {
        "framework translation (dFT)": measured.ft_ns,
        "CUDA-library translation (dCT)": measured.ct_ns,
        "launch path (dKT)": measured.kt_ns,
    }
    known = {name: ns for name, ns in parts.items() if ns}
    return Verdict(
        reading=NOT_JUDGED if balance else UNKNOWN if unsupported else reading(measured.hdbi),
        unsupported=unsupported,
        hdbi=measured.hdbi,
        largest_component=max(known, key=lambda name: known[name]) if known else None,
        idle_ns=idle,
        idle_share=idle / wall if wall and idle is not None else None,
        most_exposed_account=max(times, key=lambda name: times[name]) if times and idle else None,
        accounts=list(classification.ACCOUNTS),
        sentence=sentence(measured, totals, unsupported, balance, idleness),
    )
