"""Records of the analyzer as a test wants them: what it does not name is empty."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import MISSING, fields
from typing import Any, TypeVar

from analyzer import queries
from analyzer.queries.costs import Step, Totals
from analyzer.queries.records import Run
from analyzer.reports.evidence import of_checks
from analyzer.reports.records import RunFigures
from analyzer.reports.report import phase_figures

_Record = TypeVar("_Record")


def record(kind: type[_Record], **known: Any) -> _Record:
    """A record of a kind: unknown fields are None, counts and times 0."""
    empty = {
        field.name: 0 if field.type == "int" else None
        for field in fields(kind)  # type: ignore[arg-type]
        if field.default is MISSING
    }
    return kind(**empty | known)


def run_with(manifest: dict[str, Any]) -> Run:
    """A run that came with a manifest."""
    name, own = manifest["name"], manifest["run_id"]
    return record(Run, name=name, recording_id=own, manifest=json.dumps(manifest))


def figures_of(
    manifest: dict[str, Any], phase: str, costs_ns: Sequence[Sequence[int]]
) -> RunFigures:
    """Of a run with traces whose steps have these T_Orchestration, and take twice as long."""
    steps = [
        record(
            Step,
            phase=phase,
            trace_id=trace_id,
            orchestration_ns=cost,
            elapsed_ns=2 * cost,
            ledger={},
        )
        for trace_id, costs in enumerate(costs_ns)
        for cost in costs
    ]
    return RunFigures(
        run=run_with(manifest),
        totals=record(Totals),
        measured=queries.added(steps),
        phases=phase_figures(steps),
        steps=steps,
        latency=None,
        host_speed=None,
        ranks=None,
        evidence=of_checks([]),
    )
