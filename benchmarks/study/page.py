"""Writes docs/study.md: its template docs/study.md.in with the values and tables filled in.

In the template `$name` stands for a value of values.py or for the rows of a table of tables.py.
"""

from __future__ import annotations

import textwrap
from pathlib import Path
from string import Template

from benchmarks.result_file import ROOT
from benchmarks.study.results import Recorded, lines
from benchmarks.study.tables import tables
from benchmarks.study.values import values

TEMPLATE = ROOT / "docs" / "study.md.in"
PAGE = ROOT / "docs" / "study.md"
WIDTH = 120


def render(recorded: Recorded) -> str:
    """Return the whole page.

    Raises:
        KeyError: The template names something that is no value and no table.
    """
    template = Template(TEMPLATE.read_text(encoding="utf-8"))
    return wrapped(template.substitute(named(recorded)))


def named(recorded: Recorded) -> dict[str, str]:
    """Return every value and table by the name that the template has for it."""
    return values(recorded) | {name: lines(rows) for name, rows in tables(recorded).items()}


def write(recorded: Recorded, target: Path = PAGE) -> Path:
    """Write the page; returns its path."""
    target.write_text(render(recorded), encoding="utf-8")
    return target


def wrapped(text: str) -> str:
    """Fill prose and lists to the width of the other pages; tables, headings, code stay."""
    made: list[str] = []
    for block in text.rstrip("\n").split("\n\n"):
        if block.startswith("- "):
            items = block.removeprefix("- ").split("\n- ")
            made.append("\n".join(_fill(item, "- ", "  ") for item in items))
        elif block.startswith(("|", "#", "!", "<", "```")):
            made.append(block)
        else:
            made.append(_fill(block, "", ""))
    return "\n\n".join(made) + "\n"


def _fill(text: str, first: str, later: str) -> str:
    return textwrap.fill(
        " ".join(text.split()),
        WIDTH,
        initial_indent=first,
        subsequent_indent=later,
        break_long_words=False,
        break_on_hyphens=False,
    )
