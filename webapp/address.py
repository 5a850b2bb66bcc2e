"""The page's address holds its state: a copied URL shows what its owner saw.

A widget here takes its value from the query parameter of its name and writes it there when it
changes. The address is the only truth: the back button, a link and a fresh browser all lead to the
same page.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import streamlit as st


def get(name: str, default: str = "") -> str:
    """A parameter of the address."""
    return st.query_params.get(name, default)


def put(**values: str | int | None) -> None:
    """Write parameters; None or an empty text takes one away."""
    for name, value in values.items():
        if value is None or value == "":
            st.query_params.pop(name, None)
        elif st.query_params.get(name) != str(value):
            st.query_params[name] = str(value)


def _take(name: str, key: str) -> None:
    value = st.session_state[key]
    if isinstance(value, (list, tuple)):
        put(**{name: ",".join(str(part) for part in cast("Sequence[Any]", value))})
    elif isinstance(value, bool):
        put(**{name: "1" if value else None})
    else:
        put(**{name: value})


def select(
    label: str,
    options: Sequence[str],
    name: str,
    *,
    default: str | None = None,
    show: Callable[[str], str] = str,
    help: str | None = None,
    place: Any = st,
) -> str:
    """One of some options."""
    key = f"choice {name}"
    wanted = get(name, default or options[0])
    st.session_state[key] = wanted if wanted in options else (default or options[0])
    return place.selectbox(
        label, options, key=key, format_func=show, help=help, on_change=_take, args=(name, key)
    )


def several(
    label: str,
    options: Sequence[str],
    name: str,
    *,
    default: Sequence[str] = (),
    show: Callable[[str], str] = str,
    help: str | None = None,
    place: Any = st,
    placeholder: str | None = None,
) -> list[str]:
    """Some of some options; none chosen is an empty list."""
    key = f"choice {name}"
    text = get(name)
    wanted = text.split(",") if text else list(default)
    st.session_state[key] = [value for value in wanted if value in options]
    return place.multiselect(
        label,
        options,
        key=key,
        format_func=show,
        help=help,
        on_change=_take,
        args=(name, key),
        placeholder=placeholder,
        select_all=False,
    )


def text(label: str, name: str, *, placeholder: str = "", place: Any = st) -> str:
    """A line of text."""
    key = f"choice {name}"
    st.session_state[key] = get(name)
    return place.text_input(
        label, key=key, placeholder=placeholder, on_change=_take, args=(name, key)
    )


def switch(label: str, name: str, *, help: str | None = None, place: Any = st) -> bool:
    """Yes or no."""
    key = f"choice {name}"
    st.session_state[key] = get(name) == "1"
    return place.toggle(label, key=key, help=help, on_change=_take, args=(name, key))
