"""The page's URL holds its state: a copied URL shows what its owner saw.

A widget here takes its value from the query parameter of its name and writes it there when it
changes. The URL is the only truth: the back button, a link and a fresh browser all lead to the
same page.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import streamlit as st
from streamlit.delta_generator import DeltaGenerator


def get(name: str, default: str = "") -> str:
    """A query parameter of the URL."""
    return st.query_params.get(name, default)


def put(**values: str | int | None) -> None:
    """Write parameters; None or an empty text takes one away."""
    for name, value in values.items():
        if value is None or value == "":
            st.query_params.pop(name, None)
        elif st.query_params.get(name) != str(value):
            st.query_params[name] = str(value)


def _store(name: str, key: str) -> None:
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
    place: DeltaGenerator | None = None,
) -> str:
    """One of some options."""
    key = f"choice {name}"
    wanted = get(name, default or options[0])
    st.session_state[key] = wanted if wanted in options else (default or options[0])
    return (place or st).selectbox(
        label, options, key=key, format_func=show, help=help, on_change=_store, args=(name, key)
    )


def several(
    label: str,
    options: Sequence[str],
    name: str,
    *,
    default: Sequence[str] = (),
    show: Callable[[str], str] = str,
    help: str | None = None,
    place: DeltaGenerator | None = None,
    placeholder: str | None = None,
) -> list[str]:
    """Some of some options; none chosen is an empty list."""
    key = f"choice {name}"
    text = get(name)
    wanted = text.split(",") if text else list(default)
    st.session_state[key] = [value for value in wanted if value in options]
    return (place or st).multiselect(
        label,
        options,
        key=key,
        format_func=show,
        help=help,
        on_change=_store,
        args=(name, key),
        placeholder=placeholder,
        select_all=False,
    )


def text(
    label: str, name: str, *, placeholder: str = "", place: DeltaGenerator | None = None
) -> str:
    """A line of text."""
    key = f"choice {name}"
    st.session_state[key] = get(name)
    return (place or st).text_input(
        label, key=key, placeholder=placeholder, on_change=_store, args=(name, key)
    )
