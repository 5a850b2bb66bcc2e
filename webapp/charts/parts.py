"""What charts share: colour scales, axes, tooltips, stacked bars."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import altair as alt
import polars as pl
from altair.utils.schemapi import disable_debug_mode

from webapp import theme

Chart: TypeAlias = "alt.Chart | alt.LayerChart | alt.FacetChart"

# Each part would be checked by itself, and again with the whole; the whole is enough, and faster.
# For the same reason channels are named (`alt.X("a:Q")`): from a bare text they take 10 ms each.
disable_debug_mode()

# As many entries of a legend beside each other as there is room for.
_WRAPPED = alt.ExprRef("max(2, floor(width / 125))")


def ink(dark: bool) -> str:
    """The colour of text."""
    return (theme.DARK if dark else theme.LIGHT)["textColor"]


def paper(dark: bool) -> str:
    """The colour of the background."""
    return (theme.DARK if dark else theme.LIGHT)["backgroundColor"]


def scale(colours: Mapping[str, str]) -> alt.Scale:
    """Names to their colours, in this order."""
    return alt.Scale(domain=list(colours), range=list(colours.values()))


def run_colours(names: Sequence[str]) -> dict[str, str]:
    """Names without a colour of their own, to the colours of runs; grey for what is left over."""
    return {
        name: [*theme.RUNS, theme.REST][min(i, len(theme.RUNS))] for i, name in enumerate(names)
    }


def wrapped_legend(**options: Any) -> alt.Legend:
    """A legend above the chart, with as many columns as fit."""
    return alt.Legend(title=None, orient="top", columns=_WRAPPED, **options)


def wide_axis(limit: int = 260) -> alt.Axis:
    """An axis of names, with room for long ones."""
    return alt.Axis(labelLimit=limit, ticks=False, domain=False)


def tips(titles: Mapping[str, str | None]) -> list[alt.Tooltip]:
    """Tooltips of text columns, each with its title; None: the column's name."""
    return [
        alt.Tooltip(f"{name}:N") if title is None else alt.Tooltip(f"{name}:N", title=title)
        for name, title in titles.items()
    ]


def stacked_bars(
    frame: pl.DataFrame, title: str, dark: bool, *, stroke_width: int = 1, **channels: Any
) -> alt.Chart:
    """Horizontal bars of the columns `value` and `place`, stacked in order of `place`.

    Args:
        title: Of the axis of `value`.
        channels: Altair's other channels: y, color, tooltip, ...
    """
    return (
        alt.Chart(frame)
        .mark_bar(stroke=paper(dark), strokeWidth=stroke_width)
        .encode(
            x=alt.X("value:Q", title=title, stack="zero"), order=alt.Order("place:Q"), **channels
        )
    )
