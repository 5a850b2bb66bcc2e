"""Prints the steps of a serving engine by phase and batch."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console

from analyzer import numbers
from analyzer.queries.records import StepGroup
from analyzer.render.tables import heading, table


def print_step_groups(groups: Sequence[StepGroup], out: Console) -> None:
    """Print medians of each phase and batch; nothing where no mark tells a batch."""
    if all(group.batch is None for group in groups):
        return
    heading(out, "Steps by phase and batch (medians; overlap: host beside device work)")
    rows = [
        (
            group.phase,
            numbers.count(group.batch),
            numbers.count(group.steps),
            *(
                numbers.duration(ns)
                for ns in (group.host_ns, group.device_ns, group.period_ns, group.between_ns)
            ),
            numbers.share(group.overlap),
        )
        for group in groups
    ]
    columns = ("phase", "batch", "steps", "host", "device", "period", "between", "overlap")
    out.print(table([(name, "left" if name == "phase" else "right") for name in columns], rows))
