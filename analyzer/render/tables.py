"""Text tables for a terminal of 100 columns. Names out of traces are text, never markup."""

from __future__ import annotations

from collections.abc import Sequence
from typing import IO

from rich.console import Console
from rich.table import Table
from rich.text import Text

WIDTH = 100
BAR = 24


def console(file: IO[str] | None = None) -> Console:
    """A console that wraps at 100 columns and colours only a terminal."""
    return Console(
        width=WIDTH, file=file, highlight=False, emoji=False, markup=False, soft_wrap=False
    )


def table(
    columns: Sequence[tuple[str, str]], rows: Sequence[Sequence[str]], indent: int = 2
) -> Table:
    """A plain table; a column is (heading, "left" | "right" | "name"); names are cut to fit."""
    result = Table(
        box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=any(h for h, _ in columns)
    )
    result.add_column("", width=max(indent - 2, 0))
    for heading, kind in columns:
        result.add_column(
            Text(heading, style="dim"),
            justify="right" if kind == "right" else "left",
            no_wrap=True,
            overflow="ellipsis",
            ratio=1 if kind == "name" else None,
        )
    result.expand = any(kind == "name" for _, kind in columns)
    for row in rows:
        result.add_row("", *[Text(printable(cell)) for cell in row])
    return result


def printable(text: str) -> str:
    """An untrusted text: what would move the cursor of a terminal is shown as an escape."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def bar(part: float, whole: float) -> str:
    """A bar of at most BAR characters."""
    return "█" * round(BAR * min(part / whole, 1)) if whole > 0 else ""


def heading(out: Console, text: str) -> None:
    """A section's title."""
    out.print()
    out.print(Text(text, style="bold"))
