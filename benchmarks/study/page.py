"""Writes docs/study.md: its template docs/study.md.in (Jinja) with values and tables filled in.

In the template `{{name}}` stands for a value of values.py. A table is a loop over runs, whose cells
ask the result files; what is derived from them comes from tables.py.
"""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined

from benchmarks.result_file import ROOT
from benchmarks.study import results, tables
from benchmarks.study.results import Recorded
from benchmarks.study.values import values

TEMPLATE = ROOT / "docs" / "study.md.in"
PAGE = ROOT / "docs" / "study.md"
WIDTH = 120


def render(recorded: Recorded) -> str:
    """Return the whole page.

    Raises:
        jinja2.UndefinedError: The template names something that does not exist.
    """
    environment = Environment(trim_blocks=True, lstrip_blocks=True, undefined=StrictUndefined)
    template = environment.from_string(TEMPLATE.read_text(encoding="utf-8"))
    return wrapped(template.render(names(recorded) | values(recorded)))


def names(recorded: Recorded) -> dict[str, Any]:
    """Return what the template's tables use: the result files, and functions on their rows."""
    return {
        **{
            name: value
            for module in (results, tables)
            for name, value in vars(module).items()
            if not name.startswith("_")
        },
        "study": recorded.study,
        "batches": recorded.batches,
        "requests": recorded.hybrid,
    }


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
