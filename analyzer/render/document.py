"""What a command prints, as Markdown or as one HTML file: the same words and figures.

A `Document` takes what the printers give to a terminal. Names out of traces stay text: in Markdown
nothing in them makes a link, a mention or markup; in HTML nothing makes a tag. The HTML has no
script and asks for nothing from elsewhere.
"""

from __future__ import annotations

import html
import io
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, TypeVar

from rich.console import Console
from rich.table import Table
from rich.text import Text

from analyzer.render.json_text import print_json
from analyzer.render.tables import BAR, WIDTH, console

# What would make markup; and a joiner of no width where a name would be a link or call somebody.
_MARKUP = str.maketrans(
    {c: f"\\{c}" for c in "\\`*_[]#~$|"} | {"<": "&lt;", ">": "&gt;", "&": "&amp;", "@": "@\u2060"}
)
_LIST = re.compile(r"^(\d*)([-+.)])")
_BLOCK = "█"


FORMATS = ("text", "json", "markdown", "html")
_Value = TypeVar("_Value")


def show(value: _Value, printer: Callable[[_Value, Console], None], form: str, title: str) -> None:
    """Write a record to stdout.

    Args:
        printer: Prints it for a terminal.
        form: One of `FORMATS`.
        title: Of the HTML file.
    """
    if form == "json":
        print_json(value)
    elif form == "text":
        printer(value, console())
    else:
        document = Document()
        printer(value, document)
        text = document.markdown() if form == "markdown" else document.html(title)
        sys.stdout.write(text)


@dataclass(frozen=True)
class Grid:
    """A table: its columns' headings, which are right-aligned, its cells."""

    headings: list[str]
    right: list[bool]
    rows: list[list[str]]


@dataclass(frozen=True)
class Line:
    """A line of text."""

    text: str
    is_heading: bool
    is_item: bool  # one of several facts below another line


class Document(Console):
    """Takes what printers give to a console, and keeps it."""

    def __init__(self) -> None:
        super().__init__(file=io.StringIO(), width=WIDTH)
        self.parts: list[Grid | Line] = []

    def print(self, *objects: Any, **_: Any) -> None:
        """Keep lines and tables; anything else is kept as its text."""
        for printed in objects:
            if isinstance(printed, Table):
                self.parts.append(_grid(printed))
            else:
                self.parts += _lines(printed if isinstance(printed, Text) else Text(str(printed)))

    def markdown(self) -> str:
        """The document for an issue, a pull request or a job's summary."""
        blocks = list(self._blocks())
        return "\n\n".join(_markdown(block, i == 0) for i, block in enumerate(blocks)) + "\n"

    def html(self, title: str) -> str:
        """The document as one file that opens offline."""
        return _PAGE.format(title=html.escape(title), body=self.fragment())

    def fragment(self) -> str:
        """The document as HTML for a page that has a style of its own."""
        return "\n".join(_html(block, i == 0) for i, block in enumerate(self._blocks()))

    def _blocks(self) -> Iterator[Grid | Line | list[Line]]:
        """Neighbouring facts become one list."""
        facts: list[Line] = []
        for part in self.parts:
            if isinstance(part, Line) and part.is_item:
                facts.append(part)
                continue
            if facts:
                yield facts
                facts = []
            yield part
        if facts:
            yield facts


def _lines(text: Text) -> Iterator[Line]:
    plain = text.plain
    if plain.strip():
        whole = "bold" in str(text.style)
        yield Line(plain.strip(), whole, plain.startswith("  ") and not whole)


def _grid(printed: Table) -> Grid:
    columns = printed.columns[1:]  # the first is the indent of a terminal
    cells = [[_plain(cell) for cell in column.cells] for column in columns]
    return Grid(
        [_plain(column.header) if printed.show_header else "" for column in columns],
        [column.justify == "right" for column in columns],
        [list(row) for row in zip_longest(*cells, fillvalue="")],
    )


def _plain(cell: Any) -> str:
    return cell.plain if isinstance(cell, Text) else str(cell)


# -- Markdown


def _markdown(block: Grid | Line | list[Line], is_first: bool) -> str:
    if isinstance(block, list):
        return "\n".join(f"- {_escaped(line.text)}" for line in block)
    if isinstance(block, Line):
        text = _LIST.sub(r"\1\\\2", _escaped(block.text))
        return f"{'##' if is_first else '###'} {text}" if block.is_heading else text
    shown = [i for i, _ in enumerate(block.headings) if not _is_bars(block, i)]
    lines = [
        [_escaped(block.headings[i]) or " " for i in shown],
        ["---:" if block.right[i] else "---" for i in shown],
        *([_escaped(row[i].strip(_BLOCK)) for i in shown] for row in block.rows),
    ]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _is_bars(grid: Grid, column: int) -> bool:
    cells = {row[column].strip() for row in grid.rows}
    return not grid.headings[column] and any(cells) and all(not c.strip(_BLOCK) for c in cells)


def _escaped(text: str) -> str:
    plain = " ".join(text.split()).translate(_MARKUP)
    return plain.replace("://", ":\u2060//").replace("www.", "www\u2060.")


# -- HTML


def _html(block: Grid | Line | list[Line], is_first: bool) -> str:
    if isinstance(block, list):
        return f"<ul>{''.join(f'<li>{html.escape(line.text)}</li>' for line in block)}</ul>"
    if isinstance(block, Line):
        tag = "p" if not block.is_heading else "h1" if is_first else "h2"
        return f"<{tag}>{html.escape(block.text)}</{tag}>"
    kinds = ["right" if right else "" for right in block.right]
    head = "".join(
        f'<th scope="col" class="{kind}">{html.escape(text)}</th>'
        for kind, text in zip(kinds, block.headings, strict=True)
    )
    rows = "".join(f"<tr>{''.join(map(_cell, kinds, row))}</tr>" for row in block.rows)
    top = f"<thead><tr>{head}</tr></thead>" if any(block.headings) else ""
    return f'<div class="wide"><table>{top}<tbody>{rows}</tbody></table></div>'


def _cell(kind: str, text: str) -> str:
    blocks = text.count(_BLOCK)
    if blocks and blocks == len(text.strip()):
        part = 100 * blocks / BAR
        return f'<td class="bar"><span style="width:{part:.0f}%"></span></td>'
    return f'<td class="{kind}">{html.escape(text)}</td>'


_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>{title}</title>
<style>
:root {{ color-scheme: light dark; --ink: #1b1f24; --paper: #fff; --dim: #57606a; --line: #d0d7de;
  --bar: #0b6e99; }}
@media (prefers-color-scheme: dark) {{ :root {{ --ink: #e6edf3; --paper: #0d1117; --dim: #9198a1;
  --line: #3d444d; --bar: #4aa8d8; }} }}
body {{ font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper);
  max-width: 70rem; margin: 2rem auto; padding: 0 1rem; }}
h1 {{ font-size: 1.5rem; }} h2 {{ font-size: 1.1rem; margin-top: 2rem; }}
.wide {{ overflow-x: auto; }}
table {{ border-collapse: collapse; font-variant-numeric: tabular-nums; }}
th {{ color: var(--dim); font-weight: 600; text-align: left; }}
th, td {{ padding: .2rem .9rem .2rem 0; border-bottom: 1px solid var(--line);
  white-space: nowrap; }}
.right {{ text-align: right; }}
td.bar {{ width: 12rem; }}
td.bar span {{ display: block; height: .8rem; background: var(--bar); }}
</style></head><body>
{body}
</body></html>
"""
