"""The page's URL holds its state: a copied URL shows what its owner saw.

A widget here takes its value from the query parameter of its name and writes it there when it
changes. The URL is the only truth: the back button, a link and a fresh browser all lead to the
same page. What a person does is one entry of the browser's history; what a page adds by itself is
none. A value that the page does not know is said, never passed over.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, cast

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from webapp import browser, format

_Value = str | int | None


def get(name: str, default: str = "") -> str:
    """A query parameter of the URL."""
    return st.query_params.get(name, default)


def number(name: str) -> int | None:
    """A whole number of the URL; None where there is none. What is no number is said."""
    text = get(name)
    if not text:
        return None
    try:
        return int(text)
    except ValueError:
        _refuse(name, text, "no number")
        return None


def put(**values: _Value) -> None:
    """Write parameters, as one step of the browser's history; None or "" takes one away."""
    before = st.query_params.to_dict()
    after = {**before, **{name: "" if v is None else str(v) for name, v in values.items()}}
    after = {name: value for name, value in after.items() if value}
    if after != before:
        st.query_params.from_dict(after)


def settle(**values: str) -> None:
    """What the page shows without having been asked: into the address, and no step of history."""
    browser.settle({name: value for name, value in values.items() if get(name) != value})


def _store(name: str, key: str, clears: Sequence[str]) -> None:
    value = st.session_state[key]
    gone: dict[str, _Value] = dict.fromkeys(clears)
    if isinstance(value, (list, tuple)):
        value = ",".join(str(part) for part in cast("Sequence[Any]", value))
    put(**{**gone, name: ("1" if value else None) if isinstance(value, bool) else value})


def check(name: str, options: Collection[str]) -> None:
    """Say it if the URL asks for what there is no choice of."""
    if get(name) and get(name) not in options:
        _refuse(name, get(name))


def _refuse(name: str, value: str, why: str = "nothing that is here") -> None:
    st.warning(
        f"The address asks for {format.plain(name)}={format.plain(format.short(value))}, which is "
        f"{why}; it is left out.",
        icon=":material/link_off:",
    )


def select(
    label: str,
    options: Sequence[str],
    name: str,
    *,
    default: str | None = None,
    show: Callable[[str], str] = str,
    help: str | None = None,
    place: DeltaGenerator | None = None,
    clears: Sequence[str] = (),
) -> str:
    """One of some options.

    Args:
        clears: Parameters that mean nothing any more when this one changes.
    """
    key = f"choice {name}"
    check(name, options)
    wanted = get(name)
    st.session_state[key] = wanted if wanted in options else (default or options[0])
    return (place or st).selectbox(
        label, options, key=key, format_func=show, help=help, on_change=_store,
        args=(name, key, clears),
    )  # fmt: skip


def several(
    label: str,
    options: Sequence[str],
    name: str,
    *,
    show: Callable[[str], str] = str,
    help: str | None = None,
    place: DeltaGenerator | None = None,
    placeholder: str | None = None,
    meant: Callable[[str], str | None] | None = None,
) -> list[str]:
    """Some of some options; none chosen is an empty list.

    Args:
        meant: The option that a value of the URL means, if it may be written in other ways.
    """
    key = f"choice {name}"
    chosen: list[str] = []
    for value in filter(None, get(name).split(",")):
        found = value if value in options else (meant(value) if meant else None)
        if found is None:
            _refuse(name, value)
        elif found not in chosen:
            chosen.append(found)
    st.session_state[key] = chosen
    return (place or st).multiselect(
        label, options, key=key, format_func=show, help=help, on_change=_store,
        args=(name, key, ()), placeholder=placeholder, select_all=False,
    )  # fmt: skip


def text(
    label: str, name: str, *, placeholder: str = "", place: DeltaGenerator | None = None
) -> str:
    """A line of text."""
    key = f"choice {name}"
    st.session_state[key] = get(name)
    return (place or st).text_input(
        label, key=key, placeholder=placeholder, on_change=_store, args=(name, key, ())
    )
