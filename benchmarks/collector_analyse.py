"""What the analyzer says of the runs that `collector.py` recorded: do recordings agree, is the
replay exact, does T_Orchestration follow the batch?

The GPU side needs no analyzer, so it is imported in the functions.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import combinations
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from result_file import ROOT, Result, result

if TYPE_CHECKING:
    from analyzer.database import Connection


@contextmanager
def stored(runs: list[Path]) -> Iterator[tuple[Connection, list[str]]]:
    """A store of these runs that is gone afterwards, and their ids in it."""
    sys.path.append(str(ROOT))
    from analyzer import queries
    from analyzer.ingest import ingest

    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder) / "runs.duckdb"
        ids = [str(found.run_id) for found in ingest(runs, store, jobs=1)]
        with queries.connect(store) as connection:
            yield connection, ids


def repeat_rows(runs: list[Path]) -> list[Result]:
    """Do recordings agree? T_Orchestration of each step, ratios of medians, kernel sequences; of
    recordings in turns the ratios of their pairs of traces."""
    rows: list[Result] = []
    with stored(runs) as (connection, ids):
        from analyzer import compare, queries

        steps = [queries.steps(connection, run_id) for run_id in ids]
        pairs = {
            (a, b): compare.compare(connection, [ids[a], ids[b]])["pairs"][0]
            for a, b in combinations(range(len(ids)), 2)
        }
    phases = list(dict.fromkeys(step["phase"] for step in steps[0]))
    for phase in phases:
        medians: list[float] = []
        for run, own in zip(runs, steps, strict=True):
            chosen = [step for step in own if step["phase"] == phase]
            parameters = {"system": "hostbound", "workload": run.name, "phase": phase}
            for key, metric in (
                ("orchestration_ns", "orchestration"),
                ("device_active_ns", "device_active"),
            ):
                samples = [step[key] for step in chosen if step[key] is not None]
                rows.append(result(metric, "ns", parameters, samples))
                if key == "orchestration_ns" and samples:
                    medians.append(median(samples))
        if len(medians) < len(runs):
            sys.stderr.write(f"{phase}: a recording has no T_Orchestration\n")
            continue
        ratios = [medians[b] / medians[a] for a, b in pairs]
        of = {"system": "hostbound", "phase": phase}
        for (a, b), ratio in zip(pairs, ratios, strict=True):
            pair = {**of, "recordings": f"{runs[a].name}, {runs[b].name}"}
            rows.append(result("orchestration_ratio", "ratio", pair, [ratio]))
            if turns := pairs[a, b]["turns"]:
                rows += paired_rows(pair, turns["phases"][phase])
        spread = max(medians) / min(medians) - 1
        rows.append(result("orchestration_largest_difference", "ratio", of, [spread]))
        # 1 if every step of a pair launched the same kernels in the same order, else 0.
        alike = [
            (pair["sequences"] or {"phases": {}})["phases"].get(phase) for pair in pairs.values()
        ]
        same = [int(bool(entry) and entry["identical"] == entry["steps"]) for entry in alike]
        rows.append(result("kernel_sequences_identical", "bool", of, same))
    return rows


def paired_rows(parameters: dict[str, Any], of_phase: dict[str, Any]) -> list[Result]:
    """The ratios of pairs of traces, and the bounds of their median."""
    paired = of_phase["orchestration_ratios"] or []
    rows = [result("orchestration_paired_ratio", "ratio", parameters, paired)]
    between = of_phase["orchestration_interval"] or ()
    for bound, value in zip(("least", "largest"), between, strict=False):
        of_bound = {**parameters, "median_at_90_percent": bound}
        rows.append(result("orchestration_paired_interval", "ratio", of_bound, [value]))
    return rows


def step_rows(name: str, steps: list[dict[str, Any]]) -> list[Result]:
    """What each step took, by phase."""
    rows: list[Result] = []
    for phase in dict.fromkeys(step["phase"] for step in steps):
        parameters = {"system": "hostbound", "workload": name, "phase": phase}
        for key, metric, unit in (
            ("orchestration_ns", "orchestration", "ns"),
            ("device_active_ns", "device_active", "ns"),
            ("hdbi", "hdbi", ""),
        ):
            own = [step[key] for step in steps if step["phase"] == phase and step[key] is not None]
            rows.append(result(metric, unit, parameters, own))
    return rows


def replay_rows(runs: list[Path]) -> list[Result]:
    """Steps, launch cost above the floor by family, and on which tier the launches stand.

    `exact` is the tier of that name with the replayed launch configuration equal too; its share is
    that of launches, and of dFT + dCT + dKT of all launches.
    """
    rows: list[Result] = []
    with stored(runs) as (connection, ids):
        from analyzer import queries

        for run, run_id in zip(runs, ids, strict=True):
            rows += step_rows(run.name, queries.steps(connection, run_id))
            found = connection.execute(
                "SELECT coalesce(match_tier, 'unmatched'), coalesce(same_configuration, false),"
                " reason, count(*), sum(coalesce(dft_ns, 0) + coalesce(dct_ns, 0)"
                " + coalesce(dkt_ns, 0)) FROM launches LEFT JOIN matches USING (run_id, kernel_id)"
                " WHERE run_id = ? AND step_id IS NOT NULL GROUP BY ALL ORDER BY ALL",
                [run_id],
            ).fetchall()
            of = {"system": "hostbound", "workload": run.name}
            for tier, same, reason, launches, _ in found:
                why = {} if reason is None else {"reason": reason}
                group = {**of, "tier": tier, "same_configuration": same, **why}
                rows.append(result("launches", "count", group, [launches]))
            above = connection.execute(
                "SELECT family, list(ns ORDER BY kernel_id) FROM (SELECT family, kernel_id,"
                " any_value(replay_launch_ns - dkt_ns) AS ns FROM launch_costs WHERE run_id = ?"
                " AND replay_launch_ns IS NOT NULL AND NOT is_graph GROUP BY family, kernel_id)"
                " GROUP BY family ORDER BY family",
                [run_id],
            ).fetchall()
            for family, values in above:  # one for each kernel identity: the replay's median
                rows.append(result("above_floor", "ns", {**of, "family": family}, values))
            exact = [row for row in found if row[0] == "exact" and row[1]]
            for metric, column in (("launches_exact", 3), ("orchestration_exact", 4)):
                total = sum(int(row[column]) for row in found)
                share = sum(int(row[column]) for row in exact) / total
                rows.append(result(metric, "share", of, [share]))
    return rows


def batch_rows(runs: list[Path]) -> list[Result]:
    """T_Orchestration and HDBI by batch, and T_Orchestration against the smallest batch, pair by
    pair of traces."""
    rows: list[Result] = []
    with stored(runs) as (connection, ids):
        from analyzer import compare, queries

        batch = {run_id: queries.run(connection, run_id)["batch_size"] for run_id in ids}
        ordered = sorted(zip(ids, runs, strict=True), key=lambda pair: batch[pair[0]])
        medians: dict[str, list[float]] = {}
        for run_id, run in ordered:
            for row in step_rows(run.name, queries.steps(connection, run_id)):
                rows.append(row)
                if row.metric == "orchestration" and row.p50 is not None:
                    medians.setdefault(row.parameters["phase"], []).append(row.p50)
        for phase, values in medians.items():
            of = {"system": "hostbound", "phase": phase}
            spread = max(values) / min(values)
            rows.append(result("orchestration_max_to_min", "ratio", of, [spread]))
        found = compare.compare(connection, [run_id for run_id, _ in ordered])["pairs"]
        for pair, (_, run) in zip(found, ordered[1:], strict=True):
            for phase, entry in (pair["turns"] or {"phases": {}})["phases"].items():
                names = f"{ordered[0][1].name}, {run.name}"
                of = {"system": "hostbound", "phase": phase, "recordings": names}
                rows += paired_rows(of, entry)
    return rows
