"""Prints what a recording can prove, for a terminal of 100 columns."""

from __future__ import annotations

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from analyzer import numbers
from analyzer.queries.records import Check
from analyzer.render.tables import heading, printable
from analyzer.reports.records import Diagnosis

_STYLES = {"touched": "yellow", "unknown": "cyan", "ok": "green"}


def print_diagnosis(value: Diagnosis, out: Console) -> None:
    """Print the verdict, then each check: those that touch a figure first."""
    out.print(Text(printable(value.name), style="bold"))
    out.print(Text(printable(f"Evidence: {value.evidence.sentence or 'no figure is touched.'}")))
    for verdict, title in (
        ("touched", "Touches figures"),
        ("unknown", "Cannot be told from this trace"),
        ("ok", "Touches no figure"),
    ):
        checks = [check for check in value.evidence.checks if check.verdict == verdict]
        seen = [check for check in checks if check.found]
        if not checks:
            continue
        heading(out, title)
        for check in seen:
            _print(check, out)
        names = ", ".join(check.name for check in checks if not check.found)
        if names:
            out.print(Padding(Text(f"nothing found: {names}"), (0, 0, 0, 2)))


def _print(check: Check, out: Console) -> None:
    share = f" ({numbers.share(check.share)})" if check.share and check.total else ""
    line = Text("  ")
    line.append(check.name, style=_STYLES[check.verdict])
    line.append(printable(f": {check.found}{share}"))
    out.print(line)
    for label, text in (("effect", check.effect), ("remedy", check.remedy)):
        if text:
            out.print(Padding(Text(printable(f"{label}: {text}")), (0, 0, 0, 6)))
