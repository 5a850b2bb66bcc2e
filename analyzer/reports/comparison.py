"""Two or more runs side by side: a verdict, which account moved, which kernels and ops came and
went.

The first run is the base. What is compared is the time of a step: un-profiled where both runs
measured latency, else the profiled steps' elapsed time, and the verdict says which. Integer
nanoseconds.
"""

from __future__ import annotations

import json
import operator
import re
from collections.abc import Sequence
from statistics import median
from typing import Any

from analyzer import numbers, queries
from analyzer.attribution import classification
from analyzer.errors import AnalyzerError
from analyzer.reports import host_speed, paired
from analyzer.reports.fusion import Fusions, Kernels, fusions
from analyzer.reports.report import ACCOUNT_MEANS, MEDIAN_KEYS, figures, reading
from analyzer.store import Connection

# Changes smaller than this, or than the spread of the steps, are noise.
NOISE = 0.03
TAIL = "device_tail"
_MEDIANS = tuple(f"median_{key}" for key in MEDIAN_KEYS)
_CONDITION = re.compile(
    r"\s*([\w.]+)\s*(<=|>=|<|>)\s*([+-]?)\s*([\d.]+(?:[eE][+-]?\d+)?)\s*(%?)\s*"
)
_OPERATORS = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}


def compare(connection: Connection, run_ids: Sequence[str]) -> dict[str, Any]:
    """Compare runs with the first of them.

    Keys: verdict (of the first pair), runs (name, id, per-step figures, host_speed), pairs (one for
    each further run: verdict, turns, warnings, times, sequences, waterfall, kernels, ops).

    Raises:
        AnalyzerError: Fewer than two runs, or the same one twice.
    """
    if len(run_ids) < 2:
        raise AnalyzerError("compare needs two runs or more; `analyzer runs` lists them.")
    if len(set(run_ids)) < len(run_ids):
        raise AnalyzerError("compare was given the same run twice; name different runs.")
    reports = [figures(connection, run_id) for run_id in run_ids]
    sides = [_side(r) for r in reports]
    kernels = [queries.kernels(connection, run_id).to_dicts() for run_id in run_ids]
    ops = [queries.ops(connection, run_id).to_dicts() for run_id in run_ids]
    sequences = [queries.kernel_sequences(connection, run_id) for run_id in run_ids]
    base_ops = queries.op_names(connection, run_ids[0])
    pairs = [
        _pair(
            reports[0],
            reports[i],
            sides[0],
            sides[i],
            (kernels[0], kernels[i]),
            (ops[0], ops[i]),
            (sequences[0], sequences[i]),
            base_ops,
        )
        for i in range(1, len(run_ids))
    ]
    return {"verdict": pairs[0]["verdict"], "runs": sides, "pairs": pairs}


def _compared_phases(a: dict[str, Any], b: dict[str, Any]) -> list[str]:
    return [phase for phase in a["phases"] if phase in b["phases"]]


def _side(value: dict[str, Any]) -> dict[str, Any]:
    """One run's figures, per step."""
    measured, run = value["measured"], value["run"]
    n = max(measured["steps"], 1)

    def mean(key: str) -> int | None:
        return None if measured[key] is None else round(measured[key] / n)

    return {
        "run_id": run["run_id"],
        "name": run["name"],
        "mode": run["mode"],
        "steps": measured["steps"],
        "hdbi": measured["hdbi"],
        "hdbi_busy": measured["hdbi_busy"],
        "reading": reading(measured["hdbi"]),
        "per_step": {key: mean(key) for key in queries.ADDED_KEYS},
        "totals": value["totals"],
        "phases": {
            phase: {
                key: None if sums[key] is None else round(sums[key] / sums["steps"])
                for key in queries.ADDED_KEYS
            }
            | {key: sums[key] for key in ("hdbi", *_MEDIANS)}
            for phase, sums in value["phases"].items()
        },
        "ledger": {
            name: {k: round(v / n) for k, v in entry.items()}
            for name, entry in measured["ledger"].items()
        },
        "latency": value["latency"],
        "host_speed": value["host_speed"],
    }


def _pair(
    a: dict[str, Any],
    b: dict[str, Any],
    side_a: dict[str, Any],
    side_b: dict[str, Any],
    kernels: tuple[list[dict[str, Any]], list[dict[str, Any]]],
    ops: tuple[list[dict[str, Any]], list[dict[str, Any]]],
    sequences: tuple[list[dict[str, Any]], list[dict[str, Any]]],
    base_ops: list[str],
) -> dict[str, Any]:
    steps = side_a["steps"], side_b["steps"]
    fused = fusions(_counted(kernels[0], steps[0]), _counted(kernels[1], steps[1]), base_ops)
    phases = _compared_phases(a, b)
    waterfall = _waterfall(side_a, side_b)
    times = {phase: _time_change(phase, a, b) for phase in phases}
    turns = paired.ratios(a, b)
    return {
        "base": side_a["name"],
        "other": side_b["name"],
        "verdict": _verdict(side_a, side_b, times, waterfall),
        "turns": turns,
        "warnings": [
            *_unlike(a["run"], b["run"]),
            *host_speed.differences(a["run"], b["run"], in_turns=turns is not None),
            *_phase_warnings(a, b),
        ],
        "times": times,
        "sequences": _sequences(*sequences, phases),
        "waterfall": waterfall,
        "kernels": _kernel_changes(*kernels, *steps, fused),
        "ops": _op_changes(*ops, *steps, fused, kernels[1]),
    }


def _counted(rows: list[dict[str, Any]], steps: int) -> list[Kernels]:
    return [
        Kernels(row["kernel"], row["clean_name"], row["op"], row["kernels"] / steps) for row in rows
    ]


def _latency(side: dict[str, Any]) -> dict[str, Any]:
    return side["latency"] or {}


def _time_change(phase: str, a: dict[str, Any], b: dict[str, Any]) -> dict[str, Any]:
    """How a phase's step time changed: un-profiled if both runs have it."""
    bare: list[Any] = [_latency(r).get(f"{phase}_step") for r in (a, b)]
    if all(bare):
        before, after = (row["p50_ns"] for row in bare)
        spread = max((row["p95_ns"] - row["p50_ns"]) / row["p50_ns"] for row in bare)
        source = "un-profiled"
    else:
        samples = [r["phases"][phase]["step_elapsed_ns"] for r in (a, b)]
        before, after = (round(median(s)) for s in samples)
        spread = max((max(s) - min(s)) / 2 / max(median(s), 1) for s in samples)
        source = "profiled"
    relative = after / before - 1 if before else None
    threshold = max(NOISE, min(spread, 0.25))
    same = relative is not None and abs(relative) <= threshold
    return {
        "before_ns": before,
        "after_ns": after,
        "relative": relative,
        "noise": threshold,
        "source": source,
        "outcome": "same" if same else "faster" if after < before else "slower",
    }


def _sequences(
    a: list[dict[str, Any]], b: list[dict[str, Any]], phases: list[str]
) -> dict[str, Any] | None:
    """Did the steps launch the same kernels in the same order? None if either has no kernels.

    Steps are held against those of the same phase and place; over several traces of a run all must
    agree. Keys: phases (by phase: steps, identical), sentence.
    """
    sides: list[dict[tuple[str, int], set[str | None]]] = []
    for rows in (a, b):
        found: dict[tuple[str, int], set[str | None]] = {}
        for row in rows:
            found.setdefault((row["phase"], row["step_index"]), set()).add(row["sequence"])
        sides.append(found)
    left, right = sides
    result: dict[str, dict[str, int]] = {}
    for phase in phases:
        shared = [key for key in left if key[0] == phase and key in right]
        if not any(left[key] | right[key] != {None} for key in shared):
            continue
        same = [key for key in shared if left[key] == right[key] and len(left[key]) == 1]
        result[phase] = {"steps": len(shared), "identical": len(same)}
    if not result:
        return None
    differ = [
        f"{phase} in {entry['steps'] - entry['identical']} of "
        f"{entry['steps']} step{'s' * (entry['steps'] != 1)}"
        for phase, entry in result.items()
        if entry["identical"] < entry["steps"]
    ]
    sentence = (
        f"Kernel sequences differ: {', '.join(differ)}."
        if differ
        else "Kernel sequences are identical in every step."
    )
    return {"phases": result, "sentence": sentence}


def _waterfall(a: dict[str, Any], b: dict[str, Any]) -> list[dict[str, Any]]:
    """From the base's mean step to the other's, by account; adds up up to rounding."""
    rows: list[dict[str, Any]] = []
    for account in classification.ACCOUNTS:
        before, after = (s["ledger"].get(account, {"ns": 0, "exposed_ns": 0}) for s in (a, b))
        rows.append(
            {
                "account": account,
                "before_ns": before["ns"],
                "after_ns": after["ns"],
                "change_ns": after["ns"] - before["ns"],
                "before_exposed_ns": before["exposed_ns"],
                "after_exposed_ns": after["exposed_ns"],
            }
        )
    tails = [s["per_step"]["elapsed_ns"] - s["per_step"]["wall_ns"] for s in (a, b)]
    rows.append(
        {
            "account": TAIL,
            "before_ns": tails[0],
            "after_ns": tails[1],
            "change_ns": tails[1] - tails[0],
            "before_exposed_ns": 0,
            "after_exposed_ns": 0,
        }
    )
    return rows


def _verdict(
    a: dict[str, Any],
    b: dict[str, Any],
    times: dict[str, dict[str, Any]],
    waterfall: list[dict[str, Any]],
) -> str:
    if not times:
        return (
            f"{b['name']} and {a['name']} have no phase in common, so their step times cannot be "
            "compared; mark steps of the same names with --step-annotation."
        )
    sentences: list[str] = []
    for phase, t in times.items():
        label = "" if phase in ("step", "trace") else f"{phase} "
        unit = "trace" if phase == "trace" else "step"
        span = (
            f"{numbers.duration(t['before_ns'])} to {numbers.duration(t['after_ns'])} "
            f"a {label}{unit}, {t['source']}"
        )
        if t["outcome"] == "same":
            sentences.append(f"{b['name']} is the same as {a['name']} within noise ({span}).")
        else:
            ratio = (
                t["before_ns"] / t["after_ns"]
                if t["outcome"] == "faster"
                else t["after_ns"] / t["before_ns"]
            )
            sentences.append(
                f"{b['name']} is {ratio:.2f} times {t['outcome']} than {a['name']} ({span})."
            )
    moved = max(waterfall, key=lambda row: abs(row["change_ns"]))
    if any(t["outcome"] != "same" for t in times.values()) and moved["change_ns"]:
        means = ACCOUNT_MEANS.get(moved["account"], "device work after the host was done")
        sentences.append(
            f"The account that moved most is {moved['account']} "
            f"({numbers.signed(moved['change_ns'])} a step: {means})."
        )
    if a["hdbi"] is not None and b["hdbi"] is not None:
        sentences.append(f"HDBI {numbers.index(a['hdbi'])} to {numbers.index(b['hdbi'])}.")
    return " ".join(sentences)


def _unlike(a: dict[str, Any], b: dict[str, Any]) -> list[str]:
    """What makes the two runs hard to compare, in words."""
    found: list[str] = []
    for key, what in (
        ("gpu", "GPUs"),
        ("host", "hosts"),
        ("cpu", "CPUs"),
        ("driver", "drivers"),
        ("versions", "library versions"),
        ("model", "models"),
        ("batch_size", "batch sizes"),
        ("prompt_len", "prompt lengths"),
        ("dtype", "dtypes"),
    ):
        one, two = a.get(key), b.get(key)
        if one != two and one is not None and two is not None:
            unlike = _versions(one, two) if key == "versions" else f"{one} and {two}"
            found += [f"{what} differ: {unlike}"] if unlike else []
    if a.get("host") is None or b.get("host") is None:
        found.append("a run does not name its host: whether it is the same one is unknown")
    return found


def _versions(one: str, two: str) -> str:
    """Of two JSON objects, library -> version, those that differ."""
    a, b = json.loads(one), json.loads(two)
    return ", ".join(
        f"{name} {a.get(name, 'unknown')} and {b.get(name, 'unknown')}"
        for name in dict.fromkeys([*a, *b])
        if a.get(name) != b.get(name)
    )


def _phase_warnings(a: dict[str, Any], b: dict[str, Any]) -> list[str]:
    only = [
        (r["run"]["name"], p)
        for r, o in ((a, b), (b, a))
        for p in r["phases"]
        if p not in o["phases"]
    ]
    found = [
        f"only {name} has {phase} steps; they are left out of the verdict" for name, phase in only
    ]
    for r in (a, b):
        if r["totals"]["floor_source"] == "none" and r["measured"]["orchestration_ns"] is None:
            found.append(
                f"{r['run']['name']} has no launch floor: its T_Orchestration and HDBI are unknown"
            )
    return found


def _kernel_changes(
    a: list[dict[str, Any]],
    b: list[dict[str, Any]],
    steps_a: int,
    steps_b: int,
    fused: Fusions,
) -> list[dict[str, Any]]:
    """Kernels by identity (name, op, shapes, configuration), what is left by name; largest change
    first. `fused`: the base's ops that a fused kernel does, or the fused kernels that do the work
    of one that vanished; see `fusion.py`.
    """
    identity = (
        "kernel",
        "op",
        "input_dims",
        "input_types",
        "input_strides",
        "grid",
        "block",
        "shared_memory",
    )
    sides: list[dict[tuple[Any, ...], dict[str, Any]]] = []
    for rows, steps in ((a, steps_a), (b, steps_b)):
        grouped: dict[tuple[Any, ...], dict[str, Any]] = {}
        for row in rows:
            key = tuple(row[k] for k in identity)
            grouped[key] = {"row": row, "n": row["kernels"] / steps, "ns": row["device_ns"] / steps}
        sides.append(grouped)
    left, right = sides
    changes: list[dict[str, Any]] = [
        _change(left[key], right[key], "identity") for key in left if key in right
    ]
    rest = [
        _by_name({key: value for key, value in side.items() if key not in other})
        for side, other in ((left, right), (right, left))
    ]
    for name in dict.fromkeys([*rest[0], *rest[1]]):
        change = _change(rest[0].get(name), rest[1].get(name), "name")
        if change["status"] == "appeared":
            change["fused"] = list(fused.ops.get(name, ()))
        elif change["status"] == "vanished":
            under = rest[0][name]["ops"]
            if all(op in fused.kernels for op in under):
                change["fused"] = sorted({k for op in under for k in fused.kernels[op]})
        if change["fused"]:
            change["status"] = "fused"
        changes.append(change)
    return sorted(changes, key=lambda c: -abs(c["change_ns"]))


def _by_name(rest: dict[tuple[Any, ...], dict[str, Any]]) -> dict[str, dict[str, Any]]:
    result: dict[str, dict[str, Any]] = {}
    for value in rest.values():
        entry = result.setdefault(
            value["row"]["kernel"], {"row": value["row"], "n": 0.0, "ns": 0.0, "ops": set()}
        )
        entry["ops"].add(value["row"]["op"])
        entry["n"] += value["n"]
        entry["ns"] += value["ns"]
    return result


def _change(a: dict[str, Any] | None, b: dict[str, Any] | None, by: str) -> dict[str, Any]:
    row = (a or b or {})["row"]
    before, after = (a or {}).get("ns", 0.0), (b or {}).get("ns", 0.0)
    status = "appeared" if a is None else "vanished" if b is None else None
    if status is None and a and b:
        mean_a, mean_b = before / a["n"], after / b["n"]
        relative = mean_b / mean_a - 1 if mean_a else 0.0
        status = "same" if abs(relative) <= 0.05 else "faster" if relative < 0 else "slower"
        if a["n"] != b["n"]:
            status = f"{status}, {'more' if b['n'] > a['n'] else 'fewer'}"
    return {
        "kernel": row["kernel"],
        "clean_name": row["clean_name"],
        "op": row["op"],
        "family": row["family"],
        "aligned_by": by,
        "status": status,
        "fused": [],
        "before": (a or {}).get("n", 0),
        "after": (b or {}).get("n", 0),
        "before_ns": round(before),
        "after_ns": round(after),
        "change_ns": round(after - before),
    }


def _op_changes(
    a: list[dict[str, Any]],
    b: list[dict[str, Any]],
    steps_a: int,
    steps_b: int,
    fused: Fusions,
    kernels_b: list[dict[str, Any]],
) -> list[dict[str, Any]]:
    """Ops by name, largest change first. `fused`: the fused kernels of an op that vanished, the
    base's ops of one that appeared and launches nothing but fused kernels.
    """
    left, right = ({row["op"]: row for row in rows} for rows in (a, b))
    launched: dict[str, set[str]] = {}
    for row in kernels_b:
        launched.setdefault(row["op"], set()).add(row["kernel"])
    changes: list[dict[str, Any]] = []
    for op in dict.fromkeys([*left, *right]):
        one, two = left.get(op), right.get(op)
        before = one["host_ns"] / steps_a if one else 0.0
        after = two["host_ns"] / steps_b if two else 0.0
        status = "appeared" if not one else "vanished" if not two else "both"
        of: set[str] = set()
        if status == "vanished":
            of.update(fused.kernels.get(op, ()))
        elif status == "appeared" and all(k in fused.ops for k in launched.get(op, ())):
            of.update(name for k in launched.get(op, ()) for name in fused.ops[k])
        changes.append(
            {
                "op": op,
                "status": "fused" if of else status,
                "fused": sorted(of),
                "before_launches": one["launches"] / steps_a if one else 0,
                "after_launches": two["launches"] / steps_b if two else 0,
                "before_ns": round(before),
                "after_ns": round(after),
                "change_ns": round(after - before),
            }
        )
    return sorted(changes, key=lambda c: -abs(c["change_ns"]))


# -- a gate for somebody's CI


def metric(side: dict[str, Any], name: str) -> float | None:
    """A figure of a run by its name: per step, a ledger account, HDBI, or a latency percentile.

    Names: `elapsed_ns`, `orchestration_ns`, `kernels`, ... (mean of a step); `hdbi`, `hdbi_busy`;
    `phases.decode.elapsed_ns`, `phases.decode.median_orchestration_ns`; `totals.kernels`
    (everything recorded); `ledger.framework.ns`, `ledger.framework.exposed_ns`;
    `latency.tpot.p50_ns`.

    Raises:
        AnalyzerError: There is no metric of that name.
    """
    if name in ("hdbi", "hdbi_busy"):
        return side[name]
    if name in side["per_step"]:
        return side["per_step"][name]
    parts = name.split(".")
    if len(parts) == 2 and parts[0] == "totals" and parts[1] in queries.TOTAL_KEYS[:-1]:
        return side["totals"][parts[1]]
    of_phase = (*queries.ADDED_KEYS, "hdbi", *_MEDIANS)
    if len(parts) == 3 and parts[0] == "phases" and parts[2] in of_phase:
        return side["phases"].get(parts[1], {}).get(parts[2])
    if (
        parts[0] == "ledger"
        and len(parts) == 3
        and parts[1] in classification.ACCOUNTS
        and parts[2] in ("ns", "exposed_ns")
    ):
        return side["ledger"].get(parts[1], {}).get(parts[2])
    if (
        parts[0] == "latency"
        and len(parts) == 3
        and parts[1] in ("ttft", "tpot", "itl", "prefill_step", "decode_step")
    ):
        entry: dict[str, Any] = _latency(side).get(parts[1]) or {}
        return entry.get(parts[2])
    known = ", ".join(
        [
            *side["per_step"],
            "hdbi",
            "hdbi_busy",
            "totals.KEY",
            "phases.PHASE.KEY",
            "ledger.ACCOUNT.ns",
            "ledger.ACCOUNT.exposed_ns",
            "latency.tpot.p50_ns",
        ]
    )
    raise AnalyzerError(f"there is no metric {name!r}; there are: {known}.")


def gate(condition: str, base: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """Judge `METRIC > +5%` (change against the base) or `METRIC > 300` (the other run's value).

    Returns:
        condition, before, after, failed.

    Raises:
        AnalyzerError: The condition cannot be read, or the metric is unknown in a run: a gate that
            cannot judge must not pass.
    """
    match = _CONDITION.fullmatch(condition)
    if not match:
        raise AnalyzerError(
            f"{condition!r} is no condition; write METRIC > +5% or METRIC > 300, for instance "
            '--fail-if "orchestration_ns > +5%".'
        )
    name, sign, minus, number, percent = match.groups()
    limit = float(number) * (-1 if minus == "-" else 1)
    before, after = metric(base, name), metric(other, name)
    if after is None or (percent and before is None):
        missing = other["name"] if after is None else base["name"]
        raise AnalyzerError(f"{name} is unknown in {missing}, so {condition!r} cannot be judged.")
    if percent:
        if before == 0 and after != 0:
            raise AnalyzerError(
                f"{name} is 0 in {base['name']}, so a change in percent has no meaning."
            )
        value = (after / before - 1) * 100 if before else 0.0
    else:
        value = after
    return {
        "condition": condition,
        "before": before,
        "after": after,
        "failed": bool(_OPERATORS[sign](value, limit)),
    }
