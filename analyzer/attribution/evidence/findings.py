"""Checks of what a trace can prove: events with lost clocks, missing links, missing devices.

Each check adds a finding to its trace; what it says stands in one table. A check asks the columns
and changes nothing.
"""

from __future__ import annotations

from analyzer.attribution.events import LinkedTrace
from analyzer.trace.events import Finding, FindingKind, Trace, Unread, finding

FINDINGS = {
    "duplicated_events": FindingKind(
        "warning",
        "{count} events occur twice, with the same times, ids and names; each counts once",
    ),
    "unknown_calls": FindingKind(
        "warning",
        "{count} events are of categories that are not known ({named}); they launch by name or own "
        "device events, and are taken for calls",
    ),
    "events_not_read": FindingKind(
        "warning",
        "{count} events with a duration are of categories that are not known ({named}); they are "
        "in no figure",
    ),
    "bad_time": FindingKind(
        "warning",
        "{count} events have an impossible start or duration ({named}; first: {first}); they are "
        "counted and in no sum of times",
    ),
    "no_step_annotation": FindingKind(
        "warning", "no annotation matches {patterns}; the whole trace is one step. {has}"
    ),
    "other_step_annotation": FindingKind(
        "warning", "no annotation matches {patterns}; the steps are told by {source}. {has}"
    ),
    "steps_by_repetition": FindingKind(
        "note",
        "no annotation marks steps; found by repetition: {phases}, {coverage} of launches, "
        "{warm_up} of them warm-up",
    ),
    "own_marks_first": FindingKind(
        "note",
        "the collector's own marks are the steps; {count} annotations that were asked for are not",
    ),
    "outer_marks": FindingKind(
        "note",
        "{count} marks enclose the steps of {engine} (first: {first}, {first_ms:.3f} ms); what is "
        "in them beside the steps belongs to no step",
    ),
    "capture_marks": FindingKind(
        "note",
        "{count} marks of graph captures are no steps (first: {first}; {total_ms:.3f} ms in all)",
    ),
    "idle_marks": FindingKind(
        "note",
        "{count} marks of an engine without work are no steps (first: {first}; {total_ms:.3f} ms "
        "in all)",
    ),
    "orphan_device_events": FindingKind(
        "warning",
        "{count} of {total} device events have no launch call in the trace (queued before it "
        "began, or not recorded): {orphan_us:.3f} us of {total_us:.3f} us device time; they count "
        "as device time and belong to no step",
    ),
    "no_device_events": FindingKind("warning", "the trace has calls but no device event"),
    "no_gpu": FindingKind("note", "the trace has no GPU activity; it says nothing about a device"),
    "external_id_is_correlation": FindingKind(
        "note",
        "External id only repeats the correlation (PyTorch before 2.3); ops are found by time",
    ),
    "graph_ops": FindingKind(
        "note",
        "all {total} device events of graph replays took their op from the capture ({how})",
    ),
    "graph_ops_named": FindingKind(
        "note",
        "all {count} device events of graph replays carry the name of their op (that of the graph, "
        "where it was captured before the trace began)",
    ),
    "graph_without_capture": FindingKind(
        "warning", "{count} of {total} device events of graph replays have no op: {why}"
    ),
}


def found(code: str, count: int = 1, place: str | None = None, **values: object) -> Finding:
    """Return a finding of FINDINGS; `values` fill its sentence."""
    return finding(FINDINGS, code, count, place, **values)


def check_events(trace: Trace, unread: Unread) -> None:
    """Say which events were left out, and which were taken for something by their looks."""
    if unread.twice:
        trace.findings.append(found("duplicated_events", unread.twice))
    for code, counts in (
        ("unknown_calls", unread.unknown_calls),
        ("events_not_read", unread.not_read),
    ):
        if counts:
            most = sorted(counts, key=lambda category: (-counts[category], category))[:8]
            named = ", ".join(
                f"{counts[category]} {category or 'without one'}" for category in most
            )
            trace.findings.append(found(code, sum(counts.values()), named=named))


def check_times(linked: LinkedTrace) -> None:
    """Count the events whose clock is lost."""
    tables = {"ops": linked.ops, "calls": linked.calls, "device events": linked.device}
    counts = {what: int(table.bad.sum()) for what, table in tables.items()}
    total = sum(counts.values())
    if total:
        first = min(int(t.index[t.bad].min()) for t in tables.values() if t.bad.any())
        named = ", ".join(f"{n} {what}" for what, n in counts.items() if n)
        place = f"event {first}"
        linked.trace.findings.append(found("bad_time", total, place, named=named, first=place))


def check_links(linked: LinkedTrace) -> None:
    """Say which links the trace lacks: device events without a call, calls without a device."""
    findings, calls, device = linked.trace.findings, linked.calls, linked.device
    orphan = device.call < 0
    if orphan.any():
        duration = device.end - device.start
        findings.append(
            found(
                "orphan_device_events",
                int(orphan.sum()),
                total=len(orphan),
                orphan_us=int(duration[orphan].sum()) / 1e3,
                total_us=int(duration.sum()) / 1e3,
            )
        )
    if len(calls.start) and not len(device.start) and len(linked.ops.start):
        findings.append(found("no_device_events"))
    if not len(calls.start) and not len(device.start):
        findings.append(found("no_gpu"))
    both = calls.has_external & (calls.correlation > 0)
    if both.any() and (calls.external[both] == calls.correlation[both]).mean() > 0.9:
        findings.append(found("external_id_is_correlation", int(both.sum())))
