"""Prints predictions for a terminal of 100 columns; the report has the same table."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from analyzer import numbers
from analyzer.render.tables import heading, printable, table
from analyzer.reports.records import Predictions


def print_predictions(value: Predictions, out: Console) -> None:
    """Print all predictions of a run."""
    out.print(Text(value.run.name, style="bold"))
    for name, phase in value.phases.items():
        before = "un-profiled" if phase.unprofiled_ns is not None else "profiled"
        out.print(
            Text(
                f"{name}: {numbers.duration(phase.base_ns)} a step, {before}; the schedule gives"
                f" it back within {abs(phase.fit_error):.1%}"
                f" (as recorded: {abs(phase.replay_error):.1%})"
            )
        )
    prediction_table(value, out)
    if value.measured:
        heading(out, "Runs that made the change")
        out.print(
            table(
                [
                    ("run", "name"),
                    ("change", "left"),
                    ("phase", "left"),
                    ("measured", "right"),
                    ("error", "right"),
                ],
                [
                    (
                        m.run,
                        m.what,
                        m.phase,
                        numbers.duration(m.measured_ns),
                        numbers.UNKNOWN if m.error is None else f"{m.error:+.1%}",
                    )
                    for m in value.measured
                ],
            )
        )
    _exposed(value, out)
    for note in [*value.notes, value.validated]:
        out.print(Text(f"  {note}"))


def _exposed(value: Predictions, out: Console) -> None:
    rows = [
        (
            phase,
            account,
            numbers.duration(ns),
            numbers.share(ns / value.phases[phase].profiled_ns),
        )
        for phase, accounts in value.exposed.items()
        for account, ns in sorted(accounts.items(), key=lambda entry: -entry[1])[:4]
    ]
    if rows:
        heading(out, "At most to be won in an account: its exposed time (profiled, a step)")
        out.print(
            table(
                [("phase", "left"), ("account", "left"), ("exposed", "right"), ("", "right")], rows
            )
        )


def prediction_table(value: Predictions, out: Console) -> None:
    """Each change and phase: predicted time, bounds, what it is against the step as it is."""
    heading(out, "Predicted step times")
    rows: list[tuple[str, ...]] = []
    reasons: dict[str, None] = {}
    for p in value.predictions:
        best = p.predicted_ns
        rows.append(
            (
                p.what,
                p.phase,
                numbers.duration(p.base_ns),
                numbers.duration(best),
                f"{numbers.duration(p.low_ns)} to {numbers.duration(p.high_ns)}",
                numbers.UNKNOWN if not best else f"{p.base_ns / best:.2f} x",
            )
        )
        if p.reason:
            reasons[f"{p.what}: {p.reason}"] = None
    out.print(
        table(
            [
                ("change", "left"),
                ("phase", "left"),
                ("now", "right"),
                ("predicted", "right"),
                ("bounds", "right"),
                ("speed", "right"),
            ],
            rows,
        )
    )
    for reason in reasons:
        out.print(Text(printable(f"  {reason}")))
