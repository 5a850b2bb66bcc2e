"""What would a change win? Step times predicted from one recorded run, with bounds.

    graphs          the step's kernels as a CUDA graph: device time, a gap between nodes, one launch
    cpu-faster:X    the host X times as fast: the step played again on two resources
    fuse:N          up to N neighbouring elementwise kernels become one
    compile         bounds only: what cannot be fused, and the step as it is

The step is replayed as a schedule of two resources: the launching thread works and calls, the
device runs what it was given in stream order. With nothing changed the schedule gives the recorded
step time back; how well is shown. Where the run has un-profiled step times, the host's share is
scaled until the schedule gives those. Integer nanoseconds; unknown is None. Ours; see
docs/measurement.md.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from statistics import median_low
from typing import Any

from analyzer import queries
from analyzer.errors import AnalyzerError
from analyzer.store import Connection

DEFAULT = ("graphs", "compile", "cpu-faster:2", "fuse:2")
ONE = 1_000_000  # a scale of 1, in millionths
STEPS = 5  # of a phase, at most: the median needs no more
LONGEST = 20_000  # launches of a step that a report still plays again
QUEUED_NS = 5_000  # a call that ended so long before was waiting in the queue
FUSABLE = ("elementwise", "norm", "reduce", "rope", "copy/cast", "scan", "gather/scatter/index")


@dataclass(frozen=True)
class Gap:
    """Time between two nodes of a graph replay, in ns, and where it was measured."""

    low_ns: int
    mean_ns: int
    high_ns: int
    n: int
    source: str


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


@dataclass(frozen=True)
class DeviceWork:
    """What a call gave the device: its first event decides, the others keep their distance to it.

    Attributes:
        host_ns, path_ns: From the call's start to the first event's start on an idle stream: the
            host's part, and the rest.
        gap_ns: From the end of the stream's previous event to the start, if it was waiting.
        parts: (offset from the first start, duration, lane) of each event.
    """

    lane: str
    host_ns: int
    path_ns: int
    gap_ns: int
    parts: tuple[tuple[int, int, str], ...]
    family: str | None = None


@dataclass(frozen=True)
class HostCall:
    """One call of the launching thread.

    Attributes:
        work_ns: Host work between the previous call's end and this call's start.
        own_ns: What the call itself costs the host.
        fixed_ns: What it takes whatever the host's speed (a wait for something not modelled).
        returns_ns: None if it does not wait; else it returns so long after the device is done.
    """

    work_ns: int
    own_ns: int
    fixed_ns: int = 0
    returns_ns: int | None = None
    work: DeviceWork | None = None


@dataclass(frozen=True)
class Timeline:
    """A step as a schedule; `rest_ns` is host work after the last call."""

    calls: tuple[HostCall, ...]
    rest_ns: int


def simulate(timeline: Timeline, scale: int = ONE, call_scale: int | None = None) -> int:
    """Return the step's time: to the later of the host's end and the device's.

    Args:
        scale: Host work, in millionths of what was recorded.
        call_scale: The calls' own time; None: as `scale`.
    """
    calls_at = scale if call_scale is None else call_scale
    now = done = 0
    ready: dict[str, int] = {}
    for call in timeline.calls:
        now += _scaled(call.work_ns, scale)
        if work := call.work:
            start = now + _scaled(work.host_ns, calls_at) + work.path_ns
            if work.lane in ready:
                start = max(start, ready[work.lane] + work.gap_ns)
            for offset, dur, lane in work.parts:
                end = start + offset + dur
                ready[lane] = max(ready.get(lane, end), end)
                done = max(done, end)
        now += _scaled(call.own_ns, calls_at) + call.fixed_ns
        if call.returns_ns is not None:
            now = max(now, done + call.returns_ns)
    return max(now + _scaled(timeline.rest_ns, scale), done)


def _scaled(ns: int, scale: int) -> int:
    return (ns * scale + ONE // 2) // ONE


def timeline(calls: Sequence[dict[str, Any]], events: Sequence[dict[str, Any]]) -> Timeline:
    """Make the schedule of a step from the rows of predict_calls.sql and predict_events.sql.

    An outer call owns the calls within it and what they started.
    """
    outer: list[dict[str, Any]] = []
    owner: dict[int, int] = {}
    reach = 0
    for call in calls:
        if not outer or call["start_ns"] >= reach:
            outer.append(call)
            reach = call["start_ns"] + call["dur_ns"]
        owner[call["call_id"]] = len(outer) - 1
    given: dict[int, list[dict[str, Any]]] = {}
    for event in events:
        if event["call_id"] in owner:
            given.setdefault(owner[event["call_id"]], []).append(event)
    before = _ends_before(events)
    path, gap = _usual(outer, given, before)
    made: list[HostCall] = []
    now = done = 0
    for number, call in enumerate(outer):
        start, end = call["start_ns"], call["start_ns"] + call["dur_ns"]
        own = given.get(number, [])
        work = _device_work(call, own, before, path, gap) if own else None
        done = max([done, *(e["start_ns"] + e["dur_ns"] for e in own)])
        one = HostCall(start - now, end - start, work=work)
        if call["account"] == "wait" or (call["account"] == "memory" and own and end >= done):
            if done <= start:  # nothing to wait for, but a faster host may have to
                one = replace(one, returns_ns=0)
            elif end >= done:
                one = replace(one, own_ns=0, returns_ns=end - done)
            else:  # it waited for something else than the last event
                one = replace(one, own_ns=0, fixed_ns=end - start)
        made.append(one)
        now = end
    step_ns = calls[0]["step_ns"] if calls else 0
    return Timeline(tuple(made), max(step_ns - now, 0))


def _ends_before(events: Sequence[dict[str, Any]]) -> dict[int, int]:
    """For each event (by identity): until when earlier events of its lane ran."""
    reach: dict[str, int] = {}
    before: dict[int, int] = {}
    for event in events:
        lane = event["lane"]
        if lane in reach:
            before[id(event)] = reach[lane]
        end = event["start_ns"] + event["dur_ns"]
        reach[lane] = max(reach.get(lane, end), end)
    return before


def _usual(
    outer: Sequence[dict[str, Any]],
    given: dict[int, list[dict[str, Any]]],
    before: dict[int, int],
) -> tuple[int, int]:
    """The step's usual time from call to kernel on an idle stream, and between queued kernels."""
    paths: list[int] = []
    gaps: list[int] = []
    for number, own in given.items():
        call, first = outer[number], own[0]
        ended = before.get(id(first))
        if ended is None:
            continue
        if ended <= call["start_ns"]:
            paths.append(first["start_ns"] - call["start_ns"])
        elif call["start_ns"] + call["dur_ns"] + QUEUED_NS <= ended:
            gaps.append(first["start_ns"] - ended)
    return median_low(paths or [5_000]), median_low(gaps or [1_000])


def _device_work(
    call: dict[str, Any],
    own: list[dict[str, Any]],
    before: dict[int, int],
    path: int,
    gap: int,
) -> DeviceWork:
    """So that the schedule starts the first event when it did start, whichever of launch path and
    queue was the later."""
    first = own[0]
    waited = first["start_ns"] - call["start_ns"]
    ended = before.get(id(first))
    since = None if ended is None else first["start_ns"] - ended
    if since is None or (ended is not None and ended <= call["start_ns"]):
        latency, gap_ns = waited, min(gap, since) if since is not None else gap
    else:
        gap_ns = min(since, gap)
        latency = min(waited, path) if since <= gap else waited
    host = max(min(call["dur_ns"], latency), 0)
    begin = first["start_ns"]
    return DeviceWork(
        first["lane"],
        host,
        latency - host,
        gap_ns,
        tuple((e["start_ns"] - begin, e["dur_ns"], e["lane"]) for e in own),
        first["family"] if len(own) == 1 else None,
    )


def fused(step: Timeline, most: int, duration: Any) -> Timeline:
    """Merge up to `most` neighbouring elementwise launches; `duration` makes one of theirs."""
    made: list[HostCall] = []
    group: list[HostCall] = []

    def close() -> None:
        if not group:
            return
        first = group[0]
        assert first.work is not None
        offset, _, lane = first.work.parts[0]
        dur = duration([c.work.parts[0][1] for c in group if c.work])
        made.append(replace(first, work=replace(first.work, parts=((offset, dur, lane),))))
        group.clear()

    for call in step.calls:
        if call.work and call.work.family == "elementwise":
            if len(group) == most:
                close()
            group.append(call)
        elif call.work or call.returns_ns is not None or not group:
            close()
            made.append(call)
        # A call without work within a group (an attribute, an error query) goes with its launch.
    close()
    return Timeline(tuple(made), step.rest_ns)


def calibrate(step: Timeline, target_ns: int) -> int:
    """The scale of the host's work at which the schedule takes `target_ns`, or comes nearest."""
    low, high = 1, 4 * ONE
    while low < high:
        middle = (low + high) // 2
        if simulate(step, middle) < target_ns:
            low = middle + 1
        else:
            high = middle
    return low


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
    if name in ("graphs", "compile") and what == name:
        return name, None
    least, most = _RANGES.get(name, (Fraction(0), Fraction(-1)))
    # No exponent: a fraction of 1e999999999 alone would take all memory.
    value = Fraction(number) if _NUMBER.fullmatch(number) else Fraction(-1)
    if not least <= value <= most or (name == "fuse" and value.denominator != 1):
        raise AnalyzerError(
            f"--what {what[:80]!r} cannot be predicted; it can be graphs, compile, cpu-faster:X "
            "(X from 0.01 to 1000) or fuse:N (N from 2 to 1000)."
        )
    return name, value


def predict(connection: Connection, run_id: str, whats: Sequence[str] = DEFAULT) -> dict[str, Any]:
    """Predict each change for each phase of a run.

    Keys: run, gap (between graph nodes, or None), phases (figures of the step as it is),
    predictions (one for each change and phase: predicted_ns, low_ns, high_ns, base_ns, reason),
    measured (other runs of the store that made the change), exposed (by phase and account: what a
    change there can win at most), notes,
    validated (where the prediction was held against measurements).

    Raises:
        AnalyzerError: A change is not known, or the run holds no device work to predict from.
    """
    wanted = [(what, *parse(what)) for what in whats]
    run = queries.run(connection, run_id)
    steps = queries.steps(connection, run_id)
    totals = queries.totals(connection, run_id)
    if not totals["kernels"] or not steps:
        raise AnalyzerError(
            f"{run['name']} holds no kernel, so no step of it can be predicted; record it on a GPU."
        )
    gap = _gap(connection, run)
    latency = queries.latency(connection, run_id) or {}
    phases: dict[str, dict[str, Any]] = {}
    predictions: list[dict[str, Any]] = []
    for phase in dict.fromkeys(step["phase"] for step in steps):
        if phase == "capture":
            continue
        own = [step for step in steps if step["phase"] == phase and step["kernels"]]
        if not own:
            continue
        bare = latency.get(f"{phase}_step")
        studied = [
            _Studied.of(connection, run_id, step, bare["p50_ns"] if bare else None)
            for step in own[:: -(-len(own) // STEPS)]
        ]
        phases[phase] = _phase(studied, own, bare)
        for what, name, value in wanted:
            one = _median([_PREDICTORS[name](s, value, gap, totals) for s in studied])
            base = phases[phase]["base_ns"]
            predictions.append({"what": what, "phase": phase, "base_ns": base, **one})
    return {
        "run": {key: run[key] for key in ("run_id", "name", "model", "mode", "gpu")},
        "gap": None if gap is None else vars(gap),
        "phases": phases,
        "predictions": predictions,
        "measured": _measured(connection, run, {name for _, name, _ in wanted}, predictions),
        "exposed": {
            phase: {a: e["exposed_ns"] for a, e in p["ledger"].items() if e["exposed_ns"]}
            for phase, p in phases.items()
        },
        "notes": _notes(phases, gap),
        "validated": VALIDATED,
    }


def for_report(
    connection: Connection, run_id: str, steps: Sequence[dict[str, Any]]
) -> dict[str, Any] | None:
    """What a report shows of a run: graphs and a faster host; None without kernels, or where a
    step is so long that playing it again would hold the report up."""
    sizes = [step["launches"] for step in steps if step["kernels"]]
    if not sizes or max(sizes) > LONGEST:
        return None
    return predict(connection, run_id, ("graphs", "cpu-faster:2"))


@dataclass
class _Studied:
    """A step with its schedule; `scale` makes the host as fast as without the profiler."""

    step: dict[str, Any]
    events: list[dict[str, Any]]
    calls: list[dict[str, Any]]
    timeline: Timeline
    base_ns: int
    scale: int
    foreign_events: int

    @classmethod
    def of(
        cls, connection: Connection, run_id: str, step: dict[str, Any], bare_ns: int | None
    ) -> _Studied:
        calls, events = queries.schedule(connection, run_id, step["step_id"])
        made = timeline(calls, [e for e in events if e["mine"]])
        scale = ONE if bare_ns is None else calibrate(made, bare_ns)
        base = step["elapsed_ns"] if bare_ns is None else bare_ns
        return cls(step, events, calls, made, base, scale, sum(not e["mine"] for e in events))

    @property
    def one_thread(self) -> bool:
        return self.foreign_events * 20 <= len(self.events)


def _phase(
    studied: list[_Studied], steps: list[dict[str, Any]], bare: dict[str, Any] | None
) -> dict[str, Any]:
    profiled = median_low([s.step["elapsed_ns"] for s in studied])
    replayed = [(simulate(s.timeline), s.step["elapsed_ns"]) for s in studied]
    fitted = [(simulate(s.timeline, s.scale), s.base_ns) for s in studied]
    n = len(steps)
    ledger = queries.added(steps)["ledger"]
    return {
        "steps": n,
        "studied": len(studied),
        "profiled_ns": profiled,
        "unprofiled_ns": bare["p50_ns"] if bare else None,
        "base_ns": bare["p50_ns"] if bare else profiled,
        "replay_error": _worst(replayed),
        "fit_error": _worst(fitted),
        "host_scale": median_low([s.scale for s in studied]) / ONE,
        "one_thread": all(s.one_thread for s in studied),
        "streams": max(len({e["lane"] for e in s.events}) for s in studied),
        "ledger": {a: {k: v // n for k, v in entry.items()} for a, entry in ledger.items()},
    }


def _worst(pairs: list[tuple[int, int]]) -> float:
    """The largest relative difference, with its sign."""
    return max(((a - b) / b for a, b in pairs if b), key=abs, default=0.0)


def _median(parts: list[dict[str, Any]]) -> dict[str, Any]:
    """The median step's figures; a reason of one step holds for all."""
    result: dict[str, Any] = {}
    for key in ("predicted_ns", "low_ns", "high_ns", "nodes", "pieces"):
        values = [part.get(key) for part in parts]
        known = [v for v in values if v is not None]
        result[key] = median_low(known) if len(known) == len(values) and known else None
    result["reason"] = next((p["reason"] for p in parts if p.get("reason")), None)
    return result


def _graphs(
    s: _Studied, _value: Fraction | None, gap: Gap | None, totals: dict[str, Any]
) -> dict[str, Any]:
    """Device time, a gap between nodes, a launch and a return for each piece between two waits."""
    nodes = len(s.events)
    if sum(e["in_graph"] for e in s.events) * 2 > nodes:
        return {"reason": "the step replays graphs already"}
    if len({e["device"] for e in s.events}) > 1:
        return {"reason": "the step runs on several devices, and graphs are of one"}
    busy = s.step["device_busy_ns"]
    pieces = _pieces(s)
    launch = totals["launch_floor_ns"] or 0
    copies = _leading_copies(s.events)
    ends = [e["start_ns"] + e["dur_ns"] for e in s.events]
    back = _scaled(max(s.step["elapsed_ns"] - max(ends), 0), min(s.scale, ONE))
    returns = median_low([c.returns_ns for c in s.timeline.calls if c.returns_ns] or [back])
    fixed = busy + launch * (pieces + copies) + returns * (pieces - 1) + back
    found: dict[str, Any] = {"nodes": nodes, "pieces": pieces, "low_ns": busy}
    if gap is None:
        return found | {"reason": "no gap between graph nodes was measured on this GPU"}
    between = max(nodes - pieces, 0)
    return found | {
        "predicted_ns": fixed + max(gap.mean_ns * between, 0),
        "high_ns": fixed + max(gap.high_ns, gap.mean_ns, 0) * between,
        "reason": None
        if pieces == 1
        else f"the host waits for the device within the step: {pieces} graphs, not one",
    }


def _pieces(s: _Studied) -> int:
    """1, and one more for each wait that other work follows: no graph reaches across it."""
    pieces, waited, seen = 1, False, False
    started = {e["call_id"] for e in s.events}
    for call in s.calls:
        if call["call_id"] in started:
            pieces += waited and seen
            waited, seen = False, True
        elif call["account"] == "wait":
            waited = True
    return pieces


def _leading_copies(events: list[dict[str, Any]]) -> int:
    """Copies before the first kernel: the inputs', which stay outside of a graph."""
    count = 0
    for event in events:
        if event["kind"] != "memcpy":
            break
        count += 1
    return count


def _cpu(
    s: _Studied, value: Fraction | None, _gap: Gap | None, _totals: dict[str, Any]
) -> dict[str, Any]:
    """All host time scaled; bounds: the launch calls are not, or the whole step is."""
    if not s.one_thread:
        return {"reason": "several threads launch in this step"}
    assert value is not None
    scale = max(round(Fraction(s.scale) / value), 1)
    predicted = simulate(s.timeline, scale)
    calls_kept = simulate(s.timeline, scale, s.scale)
    whole = round(Fraction(simulate(s.timeline, s.scale)) / value)
    return {
        "predicted_ns": predicted,
        "low_ns": min(predicted, calls_kept, max(whole, min(s.step["device_busy_ns"], predicted))),
        "high_ns": max(predicted, calls_kept, whole),
    }


def _fuse(
    s: _Studied, value: Fraction | None, _gap: Gap | None, _totals: dict[str, Any]
) -> dict[str, Any]:
    """The merged kernel takes as long as its longest part; bounds: its shortest, their sum."""
    if not s.one_thread:
        return {"reason": "several threads launch in this step"}
    assert value is not None
    most = int(value)
    times = [simulate(fused(s.timeline, most, f), s.scale) for f in (max, min, sum)]
    return {"predicted_ns": times[0], "low_ns": times[1], "high_ns": times[2]}


def _compile(
    s: _Studied, _value: Fraction | None, _gap: Gap | None, _totals: dict[str, Any]
) -> dict[str, Any]:
    """Bounds only: kernels that are never fused must still run; at worst nothing changes."""
    kept = sum(e["dur_ns"] for e in s.events if e["family"] not in FUSABLE)
    return {
        "low_ns": min(kept, s.base_ns),
        "high_ns": s.base_ns,
        "reason": "what a compiler makes of the kernels is not in an eager trace: bounds only",
    }


_PREDICTORS = {"graphs": _graphs, "cpu-faster": _cpu, "fuse": _fuse, "compile": _compile}


def _gap(connection: Connection, run: dict[str, Any]) -> Gap | None:
    """This run's own graph replays, else what was measured on the same GPU, else None."""
    own = queries.graph_gaps(connection, run["run_id"])
    if own["n"]:
        return Gap(own["p5_ns"], own["mean_ns"], own["p95_ns"], own["n"], "this run's own replays")
    return GAPS.get(run["gpu"] or "")


def _measured(
    connection: Connection,
    run: dict[str, Any],
    names: set[str],
    predictions: list[dict[str, Any]],
) -> list[dict[str, Any]]:
    """Runs of the same model, sizes and GPU that made the change, beside what was predicted."""
    found: list[dict[str, Any]] = []
    for name, mode in (("graphs", "graph"), ("compile", "compile")):
        if name not in names:
            continue
        for other in queries.same_workload(connection, run["run_id"], mode):
            if _variant(other["manifest"]) != _variant(run["manifest"]):
                continue
            latency = queries.latency(connection, other["run_id"]) or {}
            for p in predictions:
                bare = latency.get(f"{p['phase']}_step")
                if p["what"] != name or not bare:
                    continue
                predicted = p["predicted_ns"]
                found.append(
                    {
                        "what": name,
                        "phase": p["phase"],
                        "run": other["name"],
                        "measured_ns": bare["p50_ns"],
                        "error": None if predicted is None else predicted / bare["p50_ns"] - 1,
                    }
                )
    return found


def _variant(manifest: str | None) -> list[str]:
    """How experts ran and which logits were asked for, as the recording's notes say."""
    notes: list[str] = json.loads(manifest).get("notes") or [] if manifest else []
    return [note for note in notes if note.startswith(("experts: ", "logits: "))]


def _notes(phases: dict[str, dict[str, Any]], gap: Gap | None) -> list[str]:
    notes: list[str] = []
    if any(p["unprofiled_ns"] is None for p in phases.values()):
        notes.append(
            "No un-profiled step time was recorded: what the host costs here includes the profiler."
        )
    if any(p["streams"] > 1 for p in phases.values()):
        notes.append("Several streams: waits of one for another are kept as they were recorded.")
    if gap is not None:
        notes.append(f"Gap between graph nodes {gap.mean_ns} ns: {gap.source}.")
    return notes
