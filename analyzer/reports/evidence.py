"""What the figures of a run rest on: bounds where a check says so, unknown where not even that.

Works on the stored checks; a figure that is not judged is None in every record, so that command
line, `--json`, API and pages cannot show it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from functools import cache
from typing import Any, TypeVar

from analyzer import queries
from analyzer.attribution.evidence.check import FIGURES
from analyzer.queries.costs import AccountTime, Ledger, Step, StepTotals
from analyzer.queries.records import Check
from analyzer.reports.records import Bound, Evidence, PhaseFigures
from analyzer.store import Connection

AT_LEAST, AT_MOST, NOT_JUDGED = "at least", "at most", "not judged"
_WORST_FIRST = ("touched", "unknown", "ok")

# Fields of all records by group of figures.
_FIELDS: dict[str, tuple[str, ...]] = {
    "device_time": (
        "kernels",
        "memcpys",
        "memsets",
        "device_active_ns",
        "device_busy_ns",
        "device_event_sum_ns",
        "orphan_device_events",
        "orphan_device_ns",
        "active_outside_steps_ns",
        "event_sum_outside_steps_ns",
        "busy_in_window_ns",
        "median_device_active_ns",
        "device_ns",
    ),
    "device_idle": ("device_idle_ns", "exposed_ns", "between_exposed_ns", "overlap"),
    "hdbi": ("hdbi", "hdbi_busy"),
    "launch_time": (
        "tklqt_ns",
        "negative_gaps",
        "clean_launches",
        "launch_ns",
        "above_floor_ns",
        "launch_floor_ns",
    ),
    "launches": (
        "launches",
        "graph_launches",
        "launches_without_op",
        "launches_without_device_event",
    ),
    "host_cost": (
        "t_py_ns",
        "t_dispatch_ns",
        "t_base_ns",
        "ft_ns",
        "ct_ns",
        "kt_ns",
        "kt_fw_ns",
        "kt_fw_low_ns",
        "kt_fw_high_ns",
        "ct_paper_ns",
        "orchestration_ns",
        "median_orchestration_ns",
        "host_ns",
    ),
    "step_time": ("elapsed_ns", "device_tail_ns", "median_elapsed_ns"),
    "host_time": ("wall_ns", "median_wall_ns", "ns"),
}
_GROUP = {field: group for group, names in _FIELDS.items() for field in names}
_Record = TypeVar("_Record")
_WithLedger = TypeVar("_WithLedger", Step, StepTotals, PhaseFigures)


def evidence(connection: Connection, run_id: str) -> Evidence:
    """What the traces of a run can prove."""
    return of_checks(queries.checks(connection, run_id))


def of_checks(checks: Sequence[Check]) -> Evidence:
    """What checks of one or several traces say together."""
    merged = [
        _merged([check for check in checks if check.name == name])
        for name in dict.fromkeys(check.name for check in checks)
    ]
    touched = [check for check in merged if check.verdict == "touched"]
    bounds = {
        group: bound for group in FIGURES for bound in [_bound(group, touched)] if bound is not None
    }
    return Evidence(_sentence(touched, bounds), bounds, merged)


def bound_of(found: Evidence, metric: str) -> Bound | None:
    """What the evidence says of a figure by its name, as `gate.metric` knows it; None: sound."""
    if metric.startswith("latency."):
        return None
    return found.bounds.get(_GROUP.get(metric.rpartition(".")[2], ""))


def withheld(record: _Record, found: Evidence, **changes: Any) -> _Record:
    """The record without the figures that are not judged, as far as they may be unknown; `changes`:
    fields that get another value.
    """
    changes |= dict.fromkeys(_hidden_fields(type(record), _not_judged(found)))
    if getattr(record, "floor_source", None) == "null_kernel":  # measured apart from the trace
        changes.pop("launch_floor_ns", None)
    # Not `dataclasses.replace`: a run may have tens of thousands of steps.
    return type(record)(**vars(record) | changes) if changes else record


@cache
def _hidden_fields(record: type, groups: frozenset[str]) -> tuple[str, ...]:
    """The fields of a record that are in groups of figures and may be unknown."""
    hidden = {field for group in groups for field in _FIELDS[group]}
    return tuple(f.name for f in fields(record) if f.name in hidden and "None" in str(f.type))


def withheld_costs(record: _WithLedger, found: Evidence) -> _WithLedger:
    """The same of a step or a sum of steps, with its ledger."""
    return withheld(record, found, ledger=withheld_ledger(record.ledger, found))


def withheld_ledger(ledger: Ledger, found: Evidence) -> Ledger:
    """The same of a ledger, of whose figures only exposed time may be unknown."""
    if "exposed_ns" not in _hidden_fields(AccountTime, _not_judged(found)):
        return ledger
    return {account: AccountTime(time.ns, None) for account, time in ledger.items()}


def _not_judged(found: Evidence) -> frozenset[str]:
    return frozenset(group for group, bound in found.bounds.items() if bound.kind == NOT_JUDGED)


def _merged(of_one: Sequence[Check]) -> Check:
    """A check of all traces of a run; the words are those of the trace with the most."""
    if len(of_one) == 1:
        return replace(of_one[0], trace_id=None)
    worst = min((check.verdict for check in of_one), key=_WORST_FIRST.index)
    those = [check for check in of_one if check.verdict == worst]
    first = max(those, key=lambda check: check.count)
    more = sum(check.count > 0 and check.found != first.found for check in those)
    totals = [check.total for check in of_one if check.total is not None]
    count, total = sum(check.count for check in of_one), sum(totals) if totals else None
    is_counted = first.total and first.share == first.count / first.total
    return replace(
        first,
        trace_id=None,
        count=count,
        total=total,
        share=count / total if is_counted and total else first.share,
        found=f"{first.found} (and {more} more trace{'s' * (more > 1)})" * bool(first.found)
        if more > 0
        else first.found,
        at_least=_union(check.at_least for check in those),
        at_most=_union(check.at_most for check in those),
        not_judged=_union(check.not_judged for check in those),
    )


def _union(lists: Any) -> list[str]:
    names = {name for some in lists for name in some}
    return [name for name in FIGURES if name in names]


def _bound(group: str, touched: Sequence[Check]) -> Bound | None:
    """What a group of figures is by all checks; two bounds of different sense are none."""
    kinds = {
        kind: check
        for check in reversed(touched)
        for kind, figures in (
            (AT_LEAST, check.at_least),
            (AT_MOST, check.at_most),
            (NOT_JUDGED, check.not_judged),
        )
        if group in figures
    }
    if not kinds:
        return None
    kind = next(iter(kinds)) if len(kinds) == 1 else NOT_JUDGED
    reason = kinds.get(kind) or next(iter(kinds.values()))
    return Bound(kind, FIGURES[group], reason.found, reason.remedy or "")


def _sentence(touched: Sequence[Check], bounds: dict[str, Bound]) -> str | None:
    """What is touched and what follows, in a line."""
    if not touched:
        return None
    follows = [
        f"{kind}: {', '.join(bound.figures for bound in bounds.values() if bound.kind == kind)}"
        for kind in (NOT_JUDGED, AT_LEAST, AT_MOST)
        if any(bound.kind == kind for bound in bounds.values())
    ]
    what = "; ".join(check.found for check in touched)
    told = "; ".join(follows)
    return f"{what}. {told[:1].upper()}{told[1:]}."
