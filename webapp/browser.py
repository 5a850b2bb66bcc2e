"""What only the browser can do: a table of links, the address without a step of history, a drop
anywhere on the page. Small scripts of ours in `static/`, mounted as Streamlit's components.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import streamlit as st
from streamlit.components.v2 import component

_STATIC = Path(__file__).parent / "static"


def _text(name: str) -> str:
    return (_STATIC / name).read_text(encoding="utf-8")


_table = component(
    "hostbound_table",
    html='<div class="box" tabindex="0" role="region"></div>',
    css=_text("table.css"),
    js=_text("table.js"),
)
_address = component("hostbound_address", js=_text("address.js"))
_drop = component("hostbound_drop", js=_text("drop.js"))


def address(page: str, **state: str) -> str:
    """The address of a page with its state, on this server; "" is the list of runs."""
    base = str(st.get_option("server.baseUrlPath") or "").strip("/")
    query = urlencode({name: value for name, value in state.items() if value})
    return f"{f'/{base}' if base else ''}/{page}{f'?{query}' if query else ''}"


def settle(values: Mapping[str, str]) -> None:
    """Put parameters into the address in place; "" takes one away."""
    if values:
        _address(data=dict(values), key="address", height="content")


def catch_drops() -> None:
    """Let files that are dropped anywhere on the page go to its uploader."""
    _drop(key="drop", height="content")


# -- a table


@dataclass(frozen=True)
class Column:
    """A column: what it is called, and what it means."""

    name: str  # in addresses
    title: str  # for people
    help: str = ""  # a sentence
    number: bool = True  # aligned right, sorted from the largest


@dataclass(frozen=True)
class Cell:
    """What a cell says, and what it is sorted by."""

    text: str  # for people
    order: float | str | None = None  # None: unknown, always last
    href: str = ""  # where it leads
    tip: str = ""  # all digits, the whole name
    part: float | None = None  # 0 to 1: a bar below the text
    tone: str = ""  # better | worse


@dataclass(frozen=True)
class Row:
    """A row; chosen by its id, wherever it stands."""

    id: str
    cells: Sequence[Cell]  # one a column


@dataclass(frozen=True)
class Table:
    """A table, and how it is when it is first shown."""

    description: str  # for screen readers
    columns: Sequence[Column]
    rows: Sequence[Row]
    pick: bool = False  # whether rows can be chosen
    picked: Sequence[str] = ()  # their ids
    sort: str = ""  # name of a column, "-" before it: from the largest


@dataclass(frozen=True)
class TableState:
    """What a person has done to a table."""

    picked: list[str]  # ids, in the order of choosing
    sort: str


def table(content: Table, key: str) -> TableState:
    """Show a table; choices and order outlive other rows in it."""
    known: Any = st.session_state.get(key, {})
    picked = list(known.get("picked", content.picked))
    sort = str(known.get("sort", content.sort))
    data = {**asdict(content), "picked": picked, "sort": sort}
    found: Any = _table(
        data=data, key=key, default={"picked": picked, "sort": sort},
        on_picked_change=lambda: None, on_sort_change=lambda: None, height="content",
    )  # fmt: skip
    return TableState(list(found.picked), str(found.sort))
