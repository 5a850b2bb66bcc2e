"""What would a change win? Step times predicted from one recorded run, with bounds.

    graphs          the step's kernels as a CUDA graph: device time, a gap between nodes, one launch
    cpu-faster:X    the host X times as fast: the step played again on two resources
    fuse:N          up to N neighbouring elementwise kernels become one
    compile         bounds only: what cannot be fused, and the step as it is
    perfect-ranks   no rank waits for another: the step without its waits
    async-schedule  the host prepares the next step while the device works on this one
    persistent      a decode step of a dense model as one kernel (`persistent.py`)

The step is played again as a schedule (`schedule.py`), which with nothing changed gives the
recorded step time back; how well is shown. Where the run has un-profiled step times, the host's
share is scaled until the schedule gives those. Integer nanoseconds; unknown is None. Ours; see
docs/measurement.md.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from statistics import median_low

from analyzer import queries
from analyzer.errors import AnalyzerError
from analyzer.queries.costs import AccountTime, Step, Totals
from analyzer.queries.records import Latency, Run, ScheduledCall, ScheduledEvent
from analyzer.reports.evidence import evidence, of_checks
from analyzer.reports.persistent import persistent
from analyzer.reports.ranks.balance import Balance, async_schedule, perfect_ranks
from analyzer.reports.records import (
    Bound,
    Gap,
    MeasuredChange,
    PredictedPhase,
    PredictedRun,
    Prediction,
    Predictions,
)
from analyzer.reports.schedule import ONE, Timeline, calibrate, fused, scaled, simulate, timeline
from analyzer.store import Connection

DEFAULT = ("graphs", "compile", "cpu-faster:2", "fuse:2")
BALANCES = {
    "perfect-ranks": perfect_ranks,
    "async-schedule": async_schedule,
    "persistent": persistent,
}
PLAIN = ("graphs", "compile", *BALANCES)  # changes without a number
STEPS = 5  # of a phase, at most: the median needs no more
LONGEST = 20_000  # launches of a step that a report still plays again
FUSABLE = ("elementwise", "norm", "reduce", "rope", "copy/cast", "scan", "gather/scatter/index")

# Measured before anything was predicted: five replays of the 280 nodes of GPT-2's prefill (batch 1,
# 512 tokens), torch 2.11.
GAPS = {
    "NVIDIA H200": Gap(
        384, 697, 1408, 1395, "measured on an NVIDIA H200: GPT-2 prefill, 280 nodes"
    ),
}

# Where the prediction of graphs was held against captured steps; a test holds this to the study.
VALIDATED = (
    "Graphs were held against 16 captured steps of GPT-2, Llama-3.2-1B and OLMoE on an NVIDIA "
    "H200: median error 2.6 %, largest 9.3 %, 16 within the bounds (docs/study.md)."
)


_NUMBER = re.compile(r"[0-9]{1,4}(\.[0-9]{1,9})?")
_RANGES = {
    "cpu-faster": (Fraction(1, 100), Fraction(1000)),
    "fuse": (Fraction(2), Fraction(1000)),
}


def parse(what: str) -> tuple[str, Fraction | None]:
    """Split "cpu-faster:1.5" into its name and its number.

    Raises:
        AnalyzerError: It is none of the changes that can be predicted.
    """
    name, _, number = what.partition(":")
    if name in PLAIN and what == name:
        return name, None
    least, most = _RANGES.get(name, (Fraction(0), Fraction(-1)))
    # No exponent: a fraction of 1e999999999 alone would take all memory.
    value = Fraction(number) if _NUMBER.fullmatch(number) else Fraction(-1)
    if not least <= value <= most or (name == "fuse" and value.denominator != 1):
        raise AnalyzerError(
            f"--what {what[:80]!r} cannot be predicted; it can be {', '.join(PLAIN)}, "
            "cpu-faster:X (X from 0.01 to 1000) or fuse:N (N from 2 to 1000)."
        )
    return name, value


def predict(connection: Connection, run_id: str, whats: Sequence[str] = DEFAULT) -> Predictions:
    """Predict each change for each phase of a run.

    Raises:
        AnalyzerError: A change is not known, or the run holds no device work to predict from.
    """
    wanted = [(what, *parse(what)) for what in whats]
    run = queries.run(connection, run_id)
    steps = queries.steps(connection, run_id)
    totals = queries.totals(connection, run_id)
    if touched := _touched(connection, run_id):
        raise AnalyzerError(
            f"{run.name} cannot be predicted from: {touched.reason}. {touched.remedy}"
        )
    if not totals.kernels or not steps:
        raise AnalyzerError(
            f"{run.name} holds no kernel, so no step of it can be predicted; record it on a GPU."
        )
    gap = _gap(connection, run)
    latency = queries.latency(connection, run_id) or {}
    phases: dict[str, PredictedPhase] = {}
    predictions: list[Prediction] = []
    for phase in dict.fromkeys(step.phase for step in steps):
        if phase == "capture":
            continue
        own = [step for step in steps if step.phase == phase and step.kernels]
        if not own:
            continue
        unprofiled = latency.get(f"{phase}_step")
        models = [
            _model(connection, run_id, step, unprofiled.p50_ns if unprofiled else None)
            for step in own[:: -(-len(own) // STEPS)]
        ]
        phases[phase] = _phase(models, own, unprofiled)
        for what, name, value in wanted:
            if name in BALANCES:
                balance = BALANCES[name](connection, run_id, own)
                predictions.append(_of_balance(what, phase, balance, phases[phase].base_ns))
                continue
            one = _median([_PREDICTORS[name](m, value, gap, totals) for m in models])
            predictions.append(Prediction(what, phase, phases[phase].base_ns, **vars(one)))
    return Predictions(
        PredictedRun(run.run_id, run.name, run.model, run.mode, run.gpu),
        gap,
        phases,
        predictions,
        _measured(connection, run, {name for _, name, _ in wanted}, predictions),
        {
            phase: {a: time.exposed_ns for a, time in p.ledger.items() if time.exposed_ns}
            for phase, p in phases.items()
        },
        _notes(phases, gap),
        VALIDATED,
    )


def _touched(connection: Connection, run_id: str) -> Bound | None:
    """A figure that a prediction may not rest on.

    What the profiler costs is no reason where a step was timed without it: the schedule is fitted
    to that time (`docs/study.md` has such runs).
    """
    latency = queries.latency(connection, run_id) or {}
    is_timed = any(name.endswith("_step") for name in latency)
    checks = [
        check
        for check in evidence(connection, run_id).checks
        if not (is_timed and check.name == "profiler_cost")
    ]
    return next(iter(of_checks(checks).bounds.values()), None)


def predict_for_report(
    connection: Connection, run_id: str, steps: Sequence[Step]
) -> Predictions | None:
    """What a report shows of a run: graphs and a faster host; None without kernels, where a figure
    is not what it seems, or where a step is so long that playing it again would hold the report up.
    """
    sizes = [step.launches for step in steps if step.kernels]
    if not sizes or max(sizes) > LONGEST or _touched(connection, run_id):
        return None
    return predict(connection, run_id, ("graphs", "cpu-faster:2"))


@dataclass(frozen=True)
class _StepModel:
    """A step with its schedule; `scale` makes the host as fast as without the profiler."""

    step: Step
    events: list[ScheduledEvent]
    calls: list[ScheduledCall]
    timeline: Timeline
    base_ns: int
    scale: int
    foreign_events: int

    @property
    def one_thread(self) -> bool:
        return self.foreign_events * 20 <= len(self.events)


def _model(
    connection: Connection, run_id: str, step: Step, unprofiled_ns: int | None
) -> _StepModel:
    calls, events = queries.schedule(connection, run_id, step.step_id)
    made = timeline(calls, [e for e in events if e.mine])
    scale = ONE if unprofiled_ns is None else calibrate(made, unprofiled_ns)
    base = step.elapsed_ns if unprofiled_ns is None else unprofiled_ns
    return _StepModel(step, events, calls, made, base, scale, sum(not e.mine for e in events))


@dataclass(frozen=True)
class _Prediction:
    """What is predicted of a step; as in `Prediction`."""

    predicted_ns: int | None = None
    low_ns: int | None = None
    high_ns: int | None = None
    nodes: int | None = None
    pieces: int | None = None
    reason: str | None = None


def _phase(
    models: list[_StepModel], steps: list[Step], unprofiled: Latency | None
) -> PredictedPhase:
    profiled = median_low([m.step.elapsed_ns for m in models])
    replayed = [(simulate(m.timeline), m.step.elapsed_ns) for m in models]
    fitted = [(simulate(m.timeline, m.scale), m.base_ns) for m in models]
    n = len(steps)
    ledger = queries.added(steps).ledger
    return PredictedPhase(
        steps=n,
        studied=len(models),
        profiled_ns=profiled,
        unprofiled_ns=unprofiled.p50_ns if unprofiled else None,
        base_ns=unprofiled.p50_ns if unprofiled else profiled,
        replay_error=_worst(replayed),
        fit_error=_worst(fitted),
        host_scale=median_low([m.scale for m in models]) / ONE,
        one_thread=all(m.one_thread for m in models),
        streams=max(len({e.lane for e in m.events}) for m in models),
        ledger={
            a: AccountTime(t.ns // n, None if t.exposed_ns is None else t.exposed_ns // n)
            for a, t in ledger.items()
        },
    )


def _worst(pairs: list[tuple[int, int]]) -> float:
    """The largest relative difference, with its sign."""
    return max(((a - b) / b for a, b in pairs if b), key=abs, default=0.0)


def _median(parts: list[_Prediction]) -> _Prediction:
    """The median step's figures; a reason of one step holds for all."""

    def middle(values: list[int | None]) -> int | None:
        known = [value for value in values if value is not None]
        return median_low(known) if len(known) == len(values) and known else None

    return _Prediction(
        middle([p.predicted_ns for p in parts]),
        middle([p.low_ns for p in parts]),
        middle([p.high_ns for p in parts]),
        middle([p.nodes for p in parts]),
        middle([p.pieces for p in parts]),
        next((p.reason for p in parts if p.reason), None),
    )


def _graphs(s: _StepModel, _value: Fraction | None, gap: Gap | None, totals: Totals) -> _Prediction:
    """Device time, a gap between nodes, a launch and a return for each piece between two waits."""
    nodes = len(s.events)
    if sum(e.in_graph for e in s.events) * 2 > nodes:
        return _Prediction(reason="the step replays graphs already")
    if len({e.device for e in s.events}) > 1:
        return _Prediction(reason="the step runs on several devices, and graphs are of one")
    busy = s.step.device_busy_ns or 0
    pieces = _pieces(s)
    launch = totals.launch_floor_ns or 0
    copies = _leading_copies(s.events)
    ends = [e.start_ns + e.dur_ns for e in s.events]
    back = scaled(max(s.step.elapsed_ns - max(ends), 0), min(s.scale, ONE))
    returns = median_low([c.returns_ns for c in s.timeline.calls if c.returns_ns] or [back])
    fixed = busy + launch * (pieces + copies) + returns * (pieces - 1) + back
    if gap is None:
        reason = "no gap between graph nodes was measured on this GPU"
        return _Prediction(low_ns=busy, nodes=nodes, pieces=pieces, reason=reason)
    between = max(nodes - pieces, 0)
    return _Prediction(
        predicted_ns=fixed + max(gap.mean_ns * between, 0),
        low_ns=busy,
        high_ns=fixed + max(gap.high_ns, gap.mean_ns, 0) * between,
        nodes=nodes,
        pieces=pieces,
        reason=None
        if pieces == 1
        else f"the host waits for the device within the step: {pieces} graphs, not one",
    )


def _pieces(s: _StepModel) -> int:
    """1, and one more for each wait that other work follows: no graph reaches across it."""
    pieces, waited, seen = 1, False, False
    started = {e.call_id for e in s.events}
    for call in s.calls:
        if call.call_id in started:
            pieces += waited and seen
            waited, seen = False, True
        elif call.account == "wait":
            waited = True
    return pieces


def _leading_copies(events: list[ScheduledEvent]) -> int:
    """Copies before the first kernel: the inputs', which stay outside of a graph."""
    count = 0
    for event in events:
        if event.kind != "memcpy":
            break
        count += 1
    return count


def _cpu(s: _StepModel, value: Fraction | None, _gap: Gap | None, _totals: Totals) -> _Prediction:
    """All host time scaled; bounds: the launch calls are not, or the whole step is."""
    if not s.one_thread:
        return _Prediction(reason="several threads launch in this step")
    assert value is not None
    scale = max(round(Fraction(s.scale) / value), 1)
    predicted = simulate(s.timeline, scale)
    calls_kept = simulate(s.timeline, scale, s.scale)
    whole = round(Fraction(simulate(s.timeline, s.scale)) / value)
    return _Prediction(
        predicted_ns=predicted,
        low_ns=min(predicted, calls_kept, max(whole, min(s.step.device_busy_ns or 0, predicted))),
        high_ns=max(predicted, calls_kept, whole),
    )


def _fuse(s: _StepModel, value: Fraction | None, _gap: Gap | None, _totals: Totals) -> _Prediction:
    """The merged kernel takes as long as its longest part; bounds: its shortest, their sum."""
    if not s.one_thread:
        return _Prediction(reason="several threads launch in this step")
    assert value is not None
    most = int(value)
    times = [simulate(fused(s.timeline, most, f), s.scale) for f in (max, min, sum)]
    return _Prediction(predicted_ns=times[0], low_ns=times[1], high_ns=times[2])


def _compile(
    s: _StepModel, _value: Fraction | None, _gap: Gap | None, _totals: Totals
) -> _Prediction:
    """Bounds only: kernels that are never fused must still run; at worst nothing changes."""
    kept = sum(e.dur_ns for e in s.events if e.family not in FUSABLE)
    return _Prediction(
        low_ns=min(kept, s.base_ns),
        high_ns=s.base_ns,
        reason="what a compiler makes of the kernels is not in an eager trace: bounds only",
    )


def _of_balance(what: str, phase: str, balance: Balance, base_ns: int) -> Prediction:
    times = balance.predicted_ns, balance.low_ns, balance.high_ns
    base = balance.base_ns if balance.base_ns is not None else base_ns
    return Prediction(what, phase, base, *times, nodes=None, pieces=None, reason=balance.reason)


_PREDICTORS = {"graphs": _graphs, "cpu-faster": _cpu, "fuse": _fuse, "compile": _compile}


def _gap(connection: Connection, run: Run) -> Gap | None:
    """This run's own graph replays, else what was measured on the same GPU, else None."""
    own = queries.graph_gaps(connection, run.run_id)
    if own.p5_ns is None or own.mean_ns is None or own.p95_ns is None:
        return GAPS.get(run.gpu or "")
    return Gap(own.p5_ns, own.mean_ns, own.p95_ns, own.n, "this run's own replays")


def _measured(
    connection: Connection, run: Run, names: set[str], predictions: list[Prediction]
) -> list[MeasuredChange]:
    """Runs of the same model, sizes and GPU that made the change, beside what was predicted."""
    found: list[MeasuredChange] = []
    for name, mode in (("graphs", "graph"), ("compile", "compile")):
        if name not in names:
            continue
        for other in queries.same_workload(connection, run.run_id, mode):
            if _variant(other) != _variant(run):
                continue
            latency = queries.latency(connection, other.run_id) or {}
            for p in predictions:
                unprofiled = latency.get(f"{p.phase}_step")
                if p.what != name or not unprofiled:
                    continue
                error = None if p.predicted_ns is None else p.predicted_ns / unprofiled.p50_ns - 1
                found.append(MeasuredChange(name, p.phase, other.name, unprofiled.p50_ns, error))
    return found


def _variant(run: Run) -> list[str]:
    """How experts ran and which logits were asked for, as the recording's notes say."""
    notes = run.recorded.notes if run.recorded else []
    return [note for note in notes if note.startswith(("experts: ", "logits: "))]


def _notes(phases: dict[str, PredictedPhase], gap: Gap | None) -> list[str]:
    notes: list[str] = []
    if any(p.unprofiled_ns is None for p in phases.values()):
        notes.append(
            "No un-profiled step time was recorded: what the host costs here includes the profiler."
        )
    if any(p.streams > 1 for p in phases.values()):
        notes.append("Several streams: waits of one for another are kept as they were recorded.")
    if gap is not None:
        notes.append(f"Gap between graph nodes {gap.mean_ns} ns: {gap.source}.")
    return notes
