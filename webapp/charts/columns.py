"""Columns of a typed statement's answer as a chart: bars over words, a line over numbers."""

from __future__ import annotations

import altair as alt
import polars as pl

from webapp import theme
from webapp.charts.parts import Chart, wide_axis

_MOST_BARS = 40


def along(rows: pl.DataFrame, x: str, y: str) -> Chart:
    """Column `y` along column `x`."""
    # By series: polars reads some names in a `col` as patterns, and these may be any.
    frame = pl.DataFrame({"x": rows[x], "y": rows[y].cast(pl.Float64)})
    tips = [alt.Tooltip("x", title=x), alt.Tooltip("y:Q", title=y)]
    if frame["x"].dtype.is_numeric():
        return (
            alt.Chart(frame)
            .mark_line(point=True, color=theme.RUNS[0])
            .encode(
                x=alt.X("x:Q", title=x, scale=alt.Scale(zero=False)),
                y=alt.Y("y:Q", title=y),
                tooltip=tips,
            )
            .properties(height=320)
        )
    frame = frame.with_columns(pl.col("x").cast(pl.String).str.slice(0, 80))
    return (
        alt.Chart(frame.head(_MOST_BARS))
        .mark_bar(color=theme.RUNS[0])
        .encode(
            y=alt.Y("x:N", title=None, sort=None, axis=wide_axis(320)),
            x=alt.X("y:Q", title=f"{y} by {x}"),
            tooltip=tips,
        )
        .properties(height={"step": 22})
    )
