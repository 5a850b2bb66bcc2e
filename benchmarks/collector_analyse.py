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
from typing import TYPE_CHECKING, Any

from benchmarks.result_file import Result, result

if TYPE_CHECKING:
    from analyzer.queries.costs import Step
    from analyzer.reports.records import PairedPhase
    from analyzer.store import Connection


@contextmanager
def stored(runs: list[Path]) -> Iterator[tuple[Connection, list[str]]]:
    """A store of these runs that is gone afterwards, and their ids in it."""
    from analyzer import queries
    from analyzer.ingest import ingest

    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder) / "runs.duckdb"
        ids = [str(found.run_id) for found in ingest(runs, store, jobs=1)]
        with queries.connect(store) as connection:
            yield connection, ids


def repeat_rows(runs: list[Path]) -> list[Result]:
    """Do recordings agree? T_Orchestration of each step, ratios of medians, kernel sequences; of
    interleaved recordings the ratios of their pairs of traces."""
    rows: list[Result] = []
    with stored(runs) as (connection, ids):
        from analyzer import queries
        from analyzer.reports import comparison

        steps = [queries.steps(connection, run_id) for run_id in ids]
        pairs = {
            (a, b): comparison.compare(connection, [ids[a], ids[b]]).pairs[0]
            for a, b in combinations(range(len(ids)), 2)
        }
    phases = list(dict.fromkeys(step.phase for step in steps[0]))
    for run, own in zip(runs, steps, strict=True):
        rows += step_rows(run.name, own)
    for phase in phases:
        medians = [
            row.p50
            for row in rows
            if row.metric == "orchestration"
            and row.parameters["phase"] == phase
            and row.p50 is not None
        ]
        if len(medians) < len(runs):
            sys.stderr.write(f"{phase}: a recording has no T_Orchestration\n")
            continue
        ratios = [medians[b] / medians[a] for a, b in pairs]
        of = {"system": "hostbound", "phase": phase}
        for (a, b), ratio in zip(pairs, ratios, strict=True):
            pair = {**of, "recordings": f"{runs[a].name}, {runs[b].name}"}
            rows.append(result("orchestration_ratio", "ratio", pair, [ratio]))
            if interleaved := pairs[a, b].turns:
                rows += paired_rows(pair, interleaved.phases[phase])
        spread = max(medians) / min(medians) - 1
        rows.append(result("orchestration_largest_difference", "ratio", of, [spread]))
        # 1 if every step of a pair launched the same kernels in the same order, else 0.
        alike = [
            pair.sequences.phases.get(phase) if pair.sequences else None for pair in pairs.values()
        ]
        same = [int(bool(entry) and entry.identical == entry.steps) for entry in alike]
        rows.append(result("kernel_sequences_identical", "bool", of, same))
    return rows


def paired_rows(parameters: dict[str, Any], of_phase: PairedPhase) -> list[Result]:
    """The ratios of pairs of traces, and the bounds of their median."""
    paired = of_phase.orchestration_ratios or []
    rows = [result("orchestration_paired_ratio", "ratio", parameters, paired)]
    between = of_phase.orchestration_interval or ()
    for bound, value in zip(("least", "largest"), between, strict=False):
        of_bound = {**parameters, "median_at_90_percent": bound}
        rows.append(result("orchestration_paired_interval", "ratio", of_bound, [value]))
    return rows


def step_rows(name: str, steps: list[Step]) -> list[Result]:
    """What each step took, by phase."""
    rows: list[Result] = []
    for phase in dict.fromkeys(step.phase for step in steps):
        parameters = {"system": "hostbound", "workload": name, "phase": phase}
        for key, metric, unit in (
            ("orchestration_ns", "orchestration", "ns"),
            ("device_active_ns", "device_active", "ns"),
            ("hdbi", "hdbi", ""),
        ):
            own = [getattr(step, key) for step in steps if step.phase == phase]
            known = [value for value in own if value is not None]
            rows.append(result(metric, unit, parameters, known))
    return rows


def above_floor(connection: Connection, run_id: str) -> dict[str, tuple[list[int], int]]:
    """By family, launch cost above the floor (the replay's median of each kernel identity, in ns),
    and the launches it stands for."""
    rows = connection.execute(
        "SELECT family, kernel, any_value(replay_launch_ns - dkt_ns), count(*) FROM launch_costs "
        "WHERE run_id = $run_id AND replay_launch_ns IS NOT NULL AND NOT is_graph "
        "GROUP BY family, kernel, kernel_id ORDER BY family, kernel",
        {"run_id": run_id},
    ).fetchall()
    found: dict[str, tuple[list[int], int]] = {}
    for family, kernel, ns, count in rows:
        label = family
        if family == "gemm":
            label = "gemm, nvjet" if "nvjet" in kernel else "gemm, other"
        values, launches = found.get(label, ([], 0))
        found[label] = ([*values, ns], launches + count)
    return found


def replay_rows(runs: list[Path]) -> list[Result]:
    """Steps, launch cost above the floor by family, and on which tier the launches stand.

    `..._exact` is the share on the tier of that name with the replayed launch configuration equal
    too: of launches, and of their dFT + dCT + dKT.
    """
    rows: list[Result] = []
    with stored(runs) as (connection, ids):
        from analyzer import queries

        for run, run_id in zip(runs, ids, strict=True):
            rows += step_rows(run.name, queries.steps(connection, run_id))
            of = {"system": "hostbound", "workload": run.name}
            for family, (values, _) in above_floor(connection, run_id).items():
                rows.append(result("above_floor", "ns", {**of, "family": family}, values))
            tiers = queries.match_tiers(connection, run_id)
            if tiers is None:
                sys.stderr.write(f"{run.name}: no kernel replay\n")
                continue
            for tier, entry in tiers.items():
                same = entry.same_configuration
                for is_same, count in ((True, same), (False, entry.launches - same)):
                    group = {**of, "tier": tier, "same_configuration": is_same}
                    rows += [result("launches", "count", group, [count])] if count else []
            exact = tiers.get("exact")
            launches = sum(tier.launches for tier in tiers.values())
            share = exact.same_configuration / launches if exact else 0.0
            rows.append(result("launches_exact", "share", of, [share]))
            cost = (exact and exact.same_configuration_cost_share) or 0.0
            rows.append(result("orchestration_exact", "share", of, [cost]))
    return rows


def batch_rows(runs: list[Path]) -> list[Result]:
    """T_Orchestration and HDBI by batch, and T_Orchestration against the smallest batch, pair by
    pair of traces."""
    rows: list[Result] = []
    with stored(runs) as (connection, ids):
        from analyzer import queries
        from analyzer.reports import comparison

        batch = {run_id: queries.run(connection, run_id).batch_size or 0 for run_id in ids}
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
        found = comparison.compare(connection, [run_id for run_id, _ in ordered]).pairs
        for pair, (_, run) in zip(found, ordered[1:], strict=True):
            for phase, entry in (pair.turns.phases if pair.turns else {}).items():
                names = f"{ordered[0][1].name}, {run.name}"
                of = {"system": "hostbound", "phase": phase, "recordings": names}
                rows += paired_rows(of, entry)
    return rows
