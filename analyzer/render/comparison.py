"""Prints a comparison for a terminal of 100 columns."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from analyzer import numbers
from analyzer.render.tables import heading, printable, table
from analyzer.reports.evidence import bound_of
from analyzer.reports.records import Comparison, Pair

_METRICS = (
    ("elapsed", "elapsed_ns"),
    ("host wall", "wall_ns"),
    ("T_DeviceActive", "device_active_ns"),
    ("GPU idle", "device_idle_ns"),
    ("T_Orchestration", "orchestration_ns"),
    ("  dFT framework", "ft_ns"),
    ("  dCT CUDA library", "ct_ns"),
    ("  dKT launch path", "kt_ns"),
    ("TKLQT", "tklqt_ns"),
    ("launches", "launches"),
    ("  of graphs", "graph_launches"),
    ("kernels", "kernels"),
)


def print_comparison(value: Comparison, out: Console) -> None:
    """Print a comparison, the verdicts first."""
    for pair in value.pairs:
        out.print(Text(printable(pair.verdict), style="bold"))
        if pair.turns:
            out.print(Text(printable(f"  {pair.turns.sentence}")))
        for warning in pair.warnings:
            line = Text("  ")
            line.append("warning: ", style="yellow")
            line.append(printable(warning))
            out.print(line)
    sides = value.runs
    heading(out, "Side by side, mean of a step (profiled)")
    letters = [chr(ord("A") + i) for i in range(len(sides))]
    for letter, side in zip(letters, sides, strict=True):
        described = f"{side.name} ({side.mode}, {side.steps} steps)"
        out.print(Text(printable(f"  {letter}  {described}")))
    rows = [("HDBI", *[numbers.index(s.hdbi) for s in sides], *["" for _ in sides[1:]])]
    for label, key in _METRICS:
        show = numbers.duration if key.endswith("_ns") else numbers.count
        values = [getattr(side.per_step, key) for side in sides]
        bounds = [bound_of(side.evidence, key) for side in sides]
        shown = [
            numbers.bounded(bound.kind if bound else "", show(value))
            for bound, value in zip(bounds, values, strict=True)
        ]
        # A change of what is only a bound is none.
        sure = [None if bound else value for bound, value in zip(bounds, values, strict=True)]
        rows.append((label, *shown, *[numbers.change(sure[0], v) for v in sure[1:]]))
    for phase in sides[0].phases:
        if all(phase in side.phases for side in sides):
            values = [side.phases[phase].median_orchestration_ns for side in sides]
            shown = [numbers.duration(v) for v in values]
            changes = [numbers.change(values[0], v) for v in values[1:]]
            rows.append((f"T_Orch, median {phase}", *shown, *changes))
    speeds = [side.host_speed and side.host_speed.traces_ns for side in sides]
    if any(speeds):
        changes = [numbers.change(speeds[0], v) for v in speeds[1:]]
        rows.append(("host, fixed work", *[numbers.duration(v) for v in speeds], *changes))
    for place, one in enumerate(sides[0].ranks or ()):
        if all(side.ranks and len(side.ranks) == len(sides[0].ranks or ()) for side in sides):
            values = [side.ranks[place].wait_ns for side in sides if side.ranks]
            shown = [numbers.duration(v) for v in values]
            changes = [numbers.change(values[0], v) for v in values[1:]]
            rows.append((f"{one.label} waits, median", *shown, *changes))
    out.print(
        table(
            [
                ("", "left"),
                *[(letter, "right") for letter in letters],
                *[(f"{letter} to A", "right") for letter in letters[1:]],
            ],
            rows,
        )
    )
    for letter, pair in zip(letters[1:], value.pairs, strict=True):
        _pair(pair, letter, out)


def _difference(before: int | None, after: int | None) -> int | None:
    return None if before is None or after is None else after - before


def _pair(pair: Pair, letter: str, out: Console) -> None:
    heading(out, f"From A to {letter}: what changed in a step, by account")
    rows = [
        (
            row.account,
            numbers.duration(row.before_ns),
            numbers.duration(row.after_ns),
            numbers.signed(row.change_ns),
            numbers.signed(_difference(row.before_exposed_ns, row.after_exposed_ns)),
        )
        for row in pair.waterfall
        if row.before_ns or row.after_ns
    ]
    change = sum(row.change_ns for row in pair.waterfall)
    rows.append(
        (
            "sum",
            numbers.duration(sum(r.before_ns for r in pair.waterfall)),
            numbers.duration(sum(r.after_ns for r in pair.waterfall)),
            numbers.signed(change),
            "",
        )
    )
    out.print(
        table(
            [
                ("account", "left"),
                ("A", "right"),
                (letter, "right"),
                ("change", "right"),
                ("exposed", "right"),
            ],
            rows,
        )
    )
    if pair.sequences:
        out.print()
        out.print(Text(f"A and {letter}: {pair.sequences.sentence}"))
    heading(out, f"Kernels that changed most, a step, A to {letter}")
    changed = [row for row in pair.kernels if row.status != "same"][:10]
    out.print(
        table(
            [
                ("kernel", "name"),
                ("op", "left"),
                ("", "left"),
                ("A", "right"),
                (letter, "right"),
                ("change", "right"),
            ],
            [
                (
                    row.clean_name,
                    row.op or numbers.UNKNOWN,
                    row.status,
                    f"{row.before:g}",
                    f"{row.after:g}",
                    numbers.signed(row.change_ns),
                )
                for row in changed
            ],
        )
    )
    fused = [row for row in pair.kernels if row.status == "fused" and not row.before]
    if fused:
        heading(out, f"Fused kernels of {letter}, a step, and the ops of A in their names")
        out.print(
            table(
                [("kernel", "name"), (letter, "right"), ("ops of A", "left")],
                [
                    (row.clean_name, f"{row.after:g}", ", ".join(row.fused))
                    for row in sorted(fused, key=lambda row: -row.after)[:10]
                ],
            )
        )
    heading(out, f"Operators whose host cost changed most, a step, A to {letter}")
    out.print(
        table(
            [
                ("op", "name"),
                ("", "left"),
                ("launches A", "right"),
                (letter, "right"),
                ("host A", "right"),
                (letter, "right"),
                ("change", "right"),
            ],
            [
                (
                    row.op,
                    row.status if row.status != "both" else "",
                    f"{row.before_launches:g}",
                    f"{row.after_launches:g}",
                    numbers.duration(row.before_ns),
                    numbers.duration(row.after_ns),
                    numbers.signed(row.change_ns),
                )
                for row in pair.ops[:10]
            ],
        )
    )
