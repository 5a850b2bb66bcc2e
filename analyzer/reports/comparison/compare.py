"""Two or more runs side by side: a verdict, which account moved, which kernels and ops came and
went.

The first run is the base. What is compared is the time of a step: un-profiled where both runs
measured latency, else the profiled steps' elapsed time, and the verdict says which. Integer
nanoseconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from analyzer import numbers, queries
from analyzer.errors import AnalyzerError
from analyzer.queries.costs import AccountTime, Step, mean
from analyzer.queries.records import Kernel, KernelSequence, Latencies, Op, Run
from analyzer.reports import host_speed
from analyzer.reports.bands import reading
from analyzer.reports.comparison import paired
from analyzer.reports.comparison.changes import kernel_changes, op_changes, waterfall
from analyzer.reports.comparison.fusion import Kernels, fusions
from analyzer.reports.comparison.significance import Shown, block_medians, of_medians, of_pairs
from analyzer.reports.evidence import NOT_JUDGED
from analyzer.reports.records import (
    AccountChange,
    ComparedRun,
    Comparison,
    Pair,
    PairedRatios,
    PhaseMeans,
    RunFigures,
    SequenceMatch,
    Sequences,
    TimeChange,
)
from analyzer.reports.report import figures
from analyzer.reports.verdict import ACCOUNT_MEANS
from analyzer.store import Connection

# Changes smaller than this, or than the spread of the steps, are noise.
NOISE = 0.03


@dataclass(frozen=True)
class _Studied:
    """What is known of one of the runs."""

    figures: RunFigures
    compared: ComparedRun
    kernels: list[Kernel]
    ops: list[Op]
    sequences: list[KernelSequence]
    unprofiled: dict[str, list[int]]  # steps by phase


def compare(connection: Connection, run_ids: Sequence[str]) -> Comparison:
    """Compare runs with the first of them.

    Raises:
        AnalyzerError: Fewer than two runs, or the same one twice.
    """
    if len(run_ids) < 2:
        raise AnalyzerError("compare needs two runs or more; `analyzer runs` lists them.")
    if len(set(run_ids)) < len(run_ids):
        raise AnalyzerError("compare was given the same run twice; name different runs.")
    base, *others = [_study(connection, run_id) for run_id in run_ids]
    base_ops = queries.op_names(connection, run_ids[0])
    pairs = [_pair(base, other, base_ops) for other in others]
    runs = [studied.compared for studied in (base, *others)]
    return Comparison(pairs[0].verdict, runs, pairs)


def rests_on_touched(found: Comparison) -> bool:
    """Whether the verdicts of a comparison rest on figures that a trace cannot support."""
    return any(
        change.outcome == NOT_JUDGED for pair in found.pairs for change in pair.times.values()
    ) or any(run.reading == NOT_JUDGED for run in found.runs)


def _study(connection: Connection, run_id: str) -> _Studied:
    found = figures(connection, run_id)
    return _Studied(
        found,
        compared_run(found),
        queries.kernel_records(connection, run_id),
        queries.op_records(connection, run_id),
        queries.kernel_sequences(connection, run_id),
        queries.step_latency(connection, run_id),
    )


def compared_run(value: RunFigures) -> ComparedRun:
    """One run's figures, per step."""
    measured, run = value.measured, value.run
    n = max(measured.steps, 1)
    return ComparedRun(
        run_id=run.run_id,
        name=run.name,
        mode=run.mode,
        steps=measured.steps,
        hdbi=measured.hdbi,
        hdbi_busy=measured.hdbi_busy,
        reading=NOT_JUDGED if "hdbi" in value.evidence.bounds else reading(measured.hdbi),
        per_step=mean(measured),
        totals=value.totals,
        phases={
            phase: PhaseMeans(
                **vars(mean(sums)),
                hdbi=sums.hdbi,
                median_elapsed_ns=sums.median_elapsed_ns,
                median_wall_ns=sums.median_wall_ns,
                median_device_active_ns=sums.median_device_active_ns,
                median_orchestration_ns=sums.median_orchestration_ns,
            )
            for phase, sums in value.phases.items()
        },
        ledger={
            name: AccountTime(
                round(time.ns / n), None if time.exposed_ns is None else round(time.exposed_ns / n)
            )
            for name, time in measured.ledger.items()
        },
        latency=value.latency,
        host_speed=value.host_speed,
        ranks=value.ranks.ranks if value.ranks else None,
        evidence=value.evidence,
    )


def _pair(a: _Studied, b: _Studied, base_ops: Iterable[str]) -> Pair:
    steps = a.compared.steps, b.compared.steps
    fused = fusions(_counted(a.kernels, steps[0]), _counted(b.kernels, steps[1]), base_ops)
    phases = [phase for phase in a.figures.phases if phase in b.figures.phases]
    accounts = waterfall(a.compared, b.compared)
    turns = paired.ratios(a.figures, b.figures)
    times = {phase: _time_change(phase, a, b, turns) for phase in phases}
    return Pair(
        base=a.compared.name,
        other=b.compared.name,
        verdict=_verdict(a.compared, b.compared, times, accounts),
        turns=turns,
        warnings=[
            *(
                f"{run.run.name}: {run.evidence.sentence}"
                for run in (a.figures, b.figures)
                if run.evidence.sentence
            ),
            *_unlike(a.figures.run, b.figures.run),
            *host_speed.differences(a.figures.run, b.figures.run, interleaved=turns is not None),
            *_phase_warnings(a.figures, b.figures),
        ],
        times=times,
        sequences=_sequences(a.sequences, b.sequences, phases),
        waterfall=accounts,
        kernels=kernel_changes(a.kernels, b.kernels, *steps, fused),
        ops=op_changes(a.ops, b.ops, *steps, fused, b.kernels),
    )


def _counted(kernels: Iterable[Kernel], steps: int) -> list[Kernels]:
    return [Kernels(k.kernel, k.clean_name, k.op, k.kernels / steps) for k in kernels]


def _time_change(
    phase: str, one: _Studied, other: _Studied, turns: PairedRatios | None
) -> TimeChange:
    """How a phase's step time changed: un-profiled if both runs have it."""
    a, b = one.figures, other.figures
    latencies: list[Latencies] = [run.latency or {} for run in (a, b)]
    unprofiled = [found[f"{phase}_step"] for found in latencies if f"{phase}_step" in found]
    if len(unprofiled) == 2:
        before, after = (time.p50_ns for time in unprofiled)
        spread = max((time.p95_ns - time.p50_ns) / time.p50_ns for time in unprofiled)
        source = "un-profiled"
    else:
        samples = [run.phases[phase].step_elapsed_ns for run in (a, b)]
        before, after = (round(median(s)) for s in samples)
        spread = max((max(s) - min(s)) / 2 / max(median(s), 1) for s in samples)
        source = "profiled"
    is_judged = source == "un-profiled" or not any(
        "step_time" in run.evidence.bounds for run in (a, b)
    )
    relative = after / before - 1 if before and is_judged else None
    threshold = max(NOISE, min(spread, 0.25))
    shown = _shown(phase, one, other, turns, source) if is_judged else None
    if relative is None or shown is None:
        same = relative is not None and abs(relative) <= threshold
    elif turns:
        same = shown.low <= 0 <= shown.high
    else:  # another time may be another host: less than NOISE is nothing, however sure
        same = abs(relative) <= NOISE or shown.low <= 0 <= shown.high
    return TimeChange(
        before_ns=before,
        after_ns=after,
        relative=relative,
        noise=threshold,
        source=source,
        outcome=NOT_JUDGED
        if not is_judged
        else "same"
        if same
        else "faster"
        if (shown.high < 0 if shown else after < before)
        else "slower",
        low=None if shown is None else shown.low,
        high=None if shown is None else shown.high,
        units=None if shown is None else shown.units,
    )


def _shown(
    phase: str, a: _Studied, b: _Studied, turns: PairedRatios | None, source: str
) -> Shown | None:
    """What change of a phase's step time the recordings speak for."""
    pairs = turns.phases.get(phase) if turns else None
    if pairs:
        ratios = pairs.unprofiled_ratios if source == "un-profiled" else pairs.elapsed_ratios
        return of_pairs(ratios or [])
    if source == "un-profiled":
        return of_medians(*(block_medians([run.unprofiled.get(phase, [])]) for run in (a, b)))
    return of_medians(*(block_medians(_by_trace(run.figures.steps, phase)) for run in (a, b)))


def _by_trace(steps: Sequence[Step], phase: str) -> list[list[int]]:
    """Elapsed times of the steps of a phase, trace by trace, ns."""
    found: dict[int, list[int]] = {}
    for step in steps:
        if step.phase == phase and not step.is_warm_up:
            found.setdefault(step.trace_id, []).append(step.elapsed_ns)
    return list(found.values())


def _sequences(
    a: list[KernelSequence], b: list[KernelSequence], phases: list[str]
) -> Sequences | None:
    """Did the steps launch the same kernels in the same order? None if either has no kernels.

    Steps are held against those of the same phase and place; over several traces of a run all must
    agree.
    """
    sides: list[dict[tuple[str, int], set[str | None]]] = []
    for rows in (a, b):
        found: dict[tuple[str, int], set[str | None]] = {}
        for row in rows:
            found.setdefault((row.phase, row.step_index), set()).add(row.sequence)
        sides.append(found)
    left, right = sides
    result: dict[str, SequenceMatch] = {}
    for phase in phases:
        shared = [key for key in left if key[0] == phase and key in right]
        if not any(left[key] | right[key] != {None} for key in shared):
            continue
        same = [key for key in shared if left[key] == right[key] and len(left[key]) == 1]
        result[phase] = SequenceMatch(len(shared), len(same))
    if not result:
        return None
    differ = [
        f"{phase} in {entry.steps - entry.identical} of "
        f"{entry.steps} step{'s' * (entry.steps != 1)}"
        for phase, entry in result.items()
        if entry.identical < entry.steps
    ]
    sentence = (
        f"Kernel sequences differ: {', '.join(differ)}."
        if differ
        else "Kernel sequences are identical in every step."
    )
    return Sequences(result, sentence)


def _verdict(
    a: ComparedRun, b: ComparedRun, times: dict[str, TimeChange], accounts: list[AccountChange]
) -> str:
    if not times:
        return (
            f"{b.name} and {a.name} have no phase in common, so their step times cannot be "
            "compared; mark steps of the same names with --step-annotation."
        )
    sentences: list[str] = []
    for phase, t in times.items():
        label = "" if phase in ("step", "trace") else f"{phase} "
        unit = "trace" if phase == "trace" else "step"
        span = (
            f"{numbers.duration(t.before_ns)} to {numbers.duration(t.after_ns)} "
            f"a {label}{unit}, {t.source}"
        )
        if t.outcome == NOT_JUDGED:
            sentences.append(f"{b.name} is not judged against {a.name}: {_reason(a, b)}.")
        elif t.outcome == "same":
            sentences.append(
                f"{b.name} is the same as {a.name} within noise ({span}{_resolution(t)})."
            )
        else:
            ratio = t.before_ns / t.after_ns if t.outcome == "faster" else t.after_ns / t.before_ns
            sentences.append(f"{b.name} is {ratio:.2f} times {t.outcome} than {a.name} ({span}).")
    moved = max(accounts, key=lambda row: abs(row.change_ns))
    if any(t.outcome in ("faster", "slower") for t in times.values()) and moved.change_ns:
        means = ACCOUNT_MEANS.get(moved.account, "device work after the host was done")
        sentences.append(
            f"The account that moved most is {moved.account} "
            f"({numbers.signed(moved.change_ns)} a step: {means})."
        )
    if a.hdbi is not None and b.hdbi is not None:
        sentences.append(f"HDBI {numbers.index(a.hdbi)} to {numbers.index(b.hdbi)}.")
    return " ".join(sentences)


def _resolution(time: TimeChange) -> str:
    """How small a change could have been shown."""
    if time.low is None or time.high is None:
        return ""
    return f"; {time.units} show changes from {(time.high - time.low) / 2:.1%} on"


def _reason(a: ComparedRun, b: ComparedRun) -> str:
    """Why the step times of two runs are not judged."""
    return "; ".join(
        f"of {run.name}, {run.evidence.bounds['step_time'].reason}"
        for run in (a, b)
        if "step_time" in run.evidence.bounds
    )


def _unlike(a: Run, b: Run) -> list[str]:
    """What makes the two runs hard to compare, in words."""
    found: list[str] = []
    for what, one, two in (
        ("GPUs", a.gpu, b.gpu),
        ("hosts", a.host, b.host),
        ("CPUs", a.cpu, b.cpu),
        ("drivers", a.driver, b.driver),
        ("library versions", a.versions, b.versions),
        ("models", a.model, b.model),
        ("batch sizes", a.batch_size, b.batch_size),
        ("prompt lengths", a.prompt_len, b.prompt_len),
        ("dtypes", a.dtype, b.dtype),
    ):
        if one != two and one is not None and two is not None:
            unlike = _versions(a, b) if what == "library versions" else f"{one} and {two}"
            found += [f"{what} differ: {unlike}"] if unlike else []
    if (a.host is None or b.host is None) and not paired.are_interleaved(a, b):
        found.append("a run does not name its host: whether it is the same one is unknown")
    return found


def _versions(a: Run, b: Run) -> str:
    """The libraries whose versions differ."""
    one, two = a.library_versions, b.library_versions
    return ", ".join(
        f"{name} {one.get(name, 'unknown')} and {two.get(name, 'unknown')}"
        for name in dict.fromkeys([*one, *two])
        if one.get(name) != two.get(name)
    )


def _phase_warnings(a: RunFigures, b: RunFigures) -> list[str]:
    only = [
        (run.run.name, phase)
        for run, other in ((a, b), (b, a))
        for phase in run.phases
        if phase not in other.phases
    ]
    found = [
        f"only {name} has {phase} steps; they are left out of the verdict" for name, phase in only
    ]
    for run in (a, b):
        if run.totals.floor_source == "none" and run.measured.orchestration_ns is None:
            lacking = "launch floor" if run.totals.launches else "launch call"
            found.append(
                f"{run.run.name} has no {lacking}: its T_Orchestration and HDBI are unknown"
            )
    return found
