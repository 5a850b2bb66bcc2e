"""One run's answer as a dict: how host-bound is it, which account is to blame, what is exposed.

Built from `queries`; `render/report.py` prints it. Integer nanoseconds, unknown is None. A time
taken under the profiler is never called a latency.
"""

from __future__ import annotations

from statistics import median
from typing import Any

from analyzer import queries
from analyzer.attribution import classification
from analyzer.reports import host_speed, prediction
from analyzer.store import Connection

HOST_BOUND_BELOW = 0.4
DEVICE_BOUND_FROM = 0.6

ACCOUNT_MEANS = {
    "python": "Python and everything else outside operators",
    "region": "compiled-region wrappers: guards, generated glue code",
    "framework": "PyTorch operators: dispatch, shapes, allocation",
    "library": "inside CUDA libraries' host code (cuBLAS, cuDNN)",
    "launch": "in kernel launch calls",
    "graph_launch": "in graph launch calls",
    "memory": "in copy, memset and allocation calls",
    "wait": "waiting for the device",
    "other_call": "in other CUDA calls (attributes, events, module loading)",
}
TOP = 15
# Of these a phase has the median step too, over all traces of the run: one slow step among a few is
# not the run.
MEDIAN_KEYS = ("elapsed_ns", "wall_ns", "device_active_ns", "orchestration_ns")


def figures(connection: Connection, run_id: str) -> dict[str, Any]:
    """What a comparison needs of a run: its times, no single event.

    Keys: run, totals (everything recorded), measured (sum over the steps), phases, steps (each with
    its ledger), latency, host_speed.
    """
    steps, run = queries.steps(connection, run_id), queries.run(connection, run_id)
    return {
        "run": run,
        "totals": queries.totals(connection, run_id),
        "measured": queries.added(steps),
        "phases": _phases(steps),
        "steps": steps,
        "latency": queries.latency(connection, run_id),
        "host_speed": host_speed.of_run(run),
    }


def summary(connection: Connection, run_id: str) -> dict[str, Any]:
    """Is the run host-bound, and what is to be known about it?

    Keys: those of `figures`, verdict, coverage, inflation, quality, warnings.
    """
    found = figures(connection, run_id)
    coverage = queries.coverage(connection, run_id)
    quality = queries.quality(connection, run_id)
    return {
        **found,
        "verdict": verdict(found["measured"], found["totals"], coverage),
        "coverage": coverage,
        "inflation": _inflation(found["phases"], found["latency"], found["host_speed"]),
        "quality": quality,
        "warnings": [row["message"] for row in quality if row["severity"] == "warning"],
    }


def report(connection: Connection, run_id: str) -> dict[str, Any]:
    """Everything the command `report` shows of a run.

    Keys: those of `summary`, ledger (whole trace), match, families, kernels, ops,
    kernels_per_output_token, floors, predictions.
    """
    found = summary(connection, run_id)
    steps = found["steps"]
    step_ids = None if _whole_trace(steps) else [step["step_id"] for step in steps]
    families = queries.families(connection, run_id)
    return {
        **found,
        "ledger": queries.ledger(connection, run_id),
        "match": queries.match_tiers(connection, run_id),
        "families": {row.pop("family"): row for row in families},
        "kernels": queries.kernels(connection, run_id, step_ids=step_ids, limit=TOP).to_dicts(),
        "ops": queries.ops(connection, run_id, step_ids=step_ids, limit=TOP).to_dicts(),
        "kernels_per_output_token": _kernels_per_token(found["run"], steps),
        "floors": queries.floors(connection, run_id),
        "predictions": prediction.for_report(connection, run_id, steps),
    }


def _whole_trace(steps: list[dict[str, Any]]) -> bool:
    return all(step["phase"] == "trace" for step in steps)


def _phases(steps: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Figures of each phase: sums over its steps, and the median step."""
    result: dict[str, dict[str, Any]] = {}
    for phase in dict.fromkeys(step["phase"] for step in steps):
        own = [step for step in steps if step["phase"] == phase]
        sums = queries.added(own)
        sums["step_elapsed_ns"] = [step["elapsed_ns"] for step in own]
        sums["step_wall_ns"] = [step["wall_ns"] for step in own]
        for key in MEDIAN_KEYS:
            values = [step[key] for step in own]
            sums[f"median_{key}"] = None if None in values else round(median(values))
        result[phase] = sums
    return result


def _kernels_per_token(run: dict[str, Any], steps: list[dict[str, Any]]) -> float | None:
    """Kernels of a decode step for each sequence's token; a generate call without steps by its
    tokens. None if a step's are unknown.
    """
    if any(step["kernels"] is None for step in steps):
        return None
    decode = [step for step in steps if step["phase"] == "decode"]
    if decode:
        return sum(step["kernels"] for step in decode) / len(decode)
    tokens = run.get("new_tokens")
    return sum(step["kernels"] for step in steps) / tokens if tokens else None


def _inflation(
    phases: dict[str, dict[str, Any]],
    latency: dict[str, Any] | None,
    speed: dict[str, Any] | None,
) -> dict[str, float] | None:
    """Profiled step time over un-profiled step time, by phase: what the profiler costs.

    The un-profiled step just before a trace saw the same host; without one, the latency pass's.
    """
    beside: dict[str, Any] = speed["beside"] if speed else {}
    found: dict[str, float] = {}
    for phase, figures in phases.items():
        bare = (latency or {}).get(f"{phase}_step")
        if phase in beside:
            found[phase] = beside[phase]["inflation"]
        elif bare and bare["p50_ns"]:
            found[phase] = figures["median_elapsed_ns"] / bare["p50_ns"]
    return found or None


def reading(value: float | None) -> str:
    """HDBI in words."""
    if value is None:
        return "unknown"
    if value < HOST_BOUND_BELOW:
        return "host-bound"
    return "device-bound" if value >= DEVICE_BOUND_FROM else "balanced"


def verdict(
    measured: dict[str, Any], totals: dict[str, Any], coverage: dict[str, Any]
) -> dict[str, Any]:
    """How host-bound, which account is to blame, what is exposed: in a sentence and in figures.

    `unsupported` names what the trace cannot tell: a figure that stands on it is not shown as
    sound.
    """
    unsupported = [
        what
        for what, lacking in (
            ("device", not coverage["device_events"]),
            ("kernels", not totals["kernels"]),
            ("operators", not coverage["ops"]),
            ("launch floor", bool(totals["launches"]) and measured["orchestration_ns"] is None),
        )
        if lacking
    ]
    value = measured["hdbi"]
    exposed = {name: entry["exposed_ns"] for name, entry in measured["ledger"].items()}
    idle = sum(exposed.values())
    wall = sum(entry["ns"] for entry in measured["ledger"].values())
    worst = max(exposed, key=lambda name: exposed[name]) if idle > 0 else None
    parts = {
        "framework translation (dFT)": measured["ft_ns"],
        "CUDA-library translation (dCT)": measured["ct_ns"],
        "launch path (dKT)": measured["kt_ns"],
    }
    known = {name: ns for name, ns in parts.items() if ns}
    largest = max(known, key=lambda name: known[name]) if known else None
    sentences: list[str] = []
    if totals["kernels"] is None:
        sentences.append(
            "CUDA graphs were recorded as one block a replay, without their kernels, so kernel "
            "counts, T_DeviceActive and HDBI are unknown; record again with `nsys profile "
            "--cuda-graph-trace=node`."
        )
    elif "kernels" in unsupported:
        sentences.append("The trace holds no kernel, so it says nothing about a GPU.")
    elif value is None:
        sentences.append("HDBI is unknown: the launch floor is missing, so T_Orchestration is too.")
    elif "operators" in unsupported:
        sentences.append(
            "The trace holds no operators, so what they cost the host is unknown: T_Orchestration "
            "is the launch path alone and HDBI an upper bound."
        )
    else:
        sentences.append(
            {
                "host-bound": "Host-bound: preparing the work costs more than doing it.",
                "balanced": "Balanced: preparing the work costs about as much as doing it.",
                "device-bound": "Device-bound: the work itself dominates.",
            }[reading(value)]
        )
    if totals["kernels"] and wall and worst:
        sentences.append(
            f"The GPU is idle for {idle / wall:.0%} of the steps' host time; the largest part "
            f"of that ({exposed[worst] / idle:.0%}) passes in {worst} ({ACCOUNT_MEANS[worst]})."
        )
    return {
        "reading": "unknown" if unsupported else reading(value),
        "unsupported": unsupported,
        "hdbi": value,
        "largest_component": largest,
        "idle_ns": None if "device" in unsupported else idle,
        "idle_share": idle / wall if wall and "device" not in unsupported else None,
        "most_exposed_account": worst,
        "accounts": list(classification.ACCOUNTS),
        "sentence": " ".join(sentences),
    }
