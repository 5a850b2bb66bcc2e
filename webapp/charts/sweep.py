"""One quantity over the settings of runs: lines along one setting, a heat map over two."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import altair as alt
import polars as pl

from analyzer.reports.bands import BANDS
from webapp import format, theme
from webapp.charts.parts import Chart, ink, paper, run_colours, scale, tips

Setting = str | int


@dataclass(frozen=True)
class Point:
    """One run's value of the quantity."""

    x: Setting  # the run's setting along which the quantity is drawn
    y: Setting | None  # its other setting, of the heat map
    value: float
    series: str  # the line that it belongs to
    name: str  # of the run
    run_id: str
    exact: str  # the value in more digits than an axis shows


@dataclass(frozen=True)
class Cell:
    """The runs of two settings."""

    x: Setting
    y: Setting
    value: float | None  # their mean; None where they are of several configurations
    text: str  # what the cell says
    runs: int  # how many runs it holds
    configurations: int  # how many there are among them


REST = "others (named at their points)"


def lines(
    points: Sequence[Point], quantity: str, title: str, along_title: str, dark: bool = False
) -> Chart:
    """One quantity along batch or length, a line a series; the bounds of HDBI where it is HDBI.

    A series holds one configuration only, so a line goes through means of repetitions. Along words
    there are points only: words have no order for a line to follow. The series with most points
    have colours; the rest is grey, and named at its points.
    """
    counts = Counter(point.series for point in points)
    ranked = sorted(counts, key=lambda name: (-counts[name], name))
    named = sorted(ranked[: len(theme.RUNS)])
    frame = pl.DataFrame(
        [
            {
                "x": point.x,
                "value": point.value,
                "series": point.series,
                "shown": point.series if point.series in named else REST,
                "run": format.short(point.name),
                "exact": point.exact,
            }
            for point in points
        ],
        infer_schema_length=None,
    )
    shown = [*named, REST] if len(ranked) > len(named) else named
    words = any(isinstance(point.x, str) for point in points)
    axis = alt.Axis(grid=False, labelLimit=160, labelAngle=0)
    domain = alt.Scale(domain=[0, 1]) if quantity == "hdbi" else alt.Scale(zero=True)
    legend = alt.Legend(title=None, orient="top", labelLimit=330, columns=2, symbolLimit=0)
    base = alt.Chart(frame).encode(
        x=alt.X("x:N", title=along_title, axis=axis)
        if words
        else alt.X("x:O", title=along_title, axis=axis, sort="ascending"),
        y=alt.Y("value:Q", title=title, scale=domain),
        color=alt.Color("shown:N", scale=scale(run_colours(shown)), legend=legend),
        detail=alt.Detail("series:N"),
    )
    # Through the mean of the repetitions at each place.
    means = base.mark_line(strokeWidth=2).encode(
        y=alt.Y("mean(value):Q", title=title, scale=domain)
    )
    marks = base.mark_point(filled=True, size=90, opacity=1).encode(
        shape=alt.Shape("shown:N", sort=shown, legend=legend),
        tooltip=tips({"run": None, "series": None, "x": along_title, "exact": title}),
    )
    rest = (
        base.mark_text(align="left", dx=8, fontSize=11, limit=260)
        .encode(text=alt.Text("series:N"), color=alt.value(ink(dark)))
        .transform_filter(alt.datum.shown == REST)
    )
    layers = [marks, rest] if words else [means, marks, rest]
    if quantity == "hdbi":
        layers += _bounds(dark)
    return alt.layer(*layers).properties(height=360)


def _bounds(dark: bool) -> list[alt.Chart]:
    """Where host-bound ends and device-bound begins, across the whole chart."""
    base = alt.Chart(
        pl.DataFrame(
            {
                "bound": [BANDS[0].below, BANDS[-1].least],
                "text": [f"{BANDS[0].name} below", f"{BANDS[-1].name} from here"],
            }
        )
    )
    rules = base.mark_rule(strokeDash=[4, 4], color=ink(dark), opacity=0.6).encode(
        y=alt.Y("bound:Q")
    )
    text = base.mark_text(align="right", dy=-6, color=ink(dark)).encode(
        y=alt.Y("bound:Q"), x=alt.XValue("width"), text=alt.Text("text:N")
    )
    return [rules, text]


def heat_map(
    cells: Sequence[Cell], title: str, x_title: str, y_title: str, dark: bool = False
) -> Chart:
    """One quantity over two settings; each cell says its value, an empty one why it has none."""
    values = [cell.value for cell in cells if cell.value is not None]
    frame = pl.DataFrame(
        [{"x": str(c.x), "y": str(c.y), "value": c.value, "text": c.text} for c in cells],
        schema_overrides={"value": pl.Float64},
    )
    base = alt.Chart(frame).encode(
        x=alt.X(
            "x:O",
            title=x_title,
            sort=_ordered(cell.x for cell in cells),
            axis=alt.Axis(labelAngle=0, labelLimit=200),
        ),
        # A title on its side needs more height than a row has; the page names the rows.
        y=alt.Y(
            "y:O",
            title=None,
            sort=_ordered(cell.y for cell in cells),
            axis=alt.Axis(labelLimit=200),
        ),
        tooltip=[
            alt.Tooltip("x:O", title=x_title),
            alt.Tooltip("y:O", title=y_title),
            alt.Tooltip("text:N", title=title),
        ],
    )
    rectangles = base.mark_rect(stroke=paper(dark), strokeWidth=2).encode(
        color=alt.Color("value:Q", title=title, scale=alt.Scale(scheme="cividis"))
    )
    middle = (max(values, default=0.0) + min(values, default=0.0)) / 2
    colour = (
        alt.when(alt.expr.isValid(alt.datum.value) == False)  # noqa: E712  # of the chart's language
        .then(alt.value(ink(dark)))
        .when(alt.datum.value > middle)
        .then(alt.value("#111111"))
        .otherwise(alt.value("#FFFFFF"))
    )
    text = base.mark_text(fontSize=13).encode(text=alt.Text("text:N"), color=colour)
    return alt.layer(rectangles, text).properties(height={"step": 44})


def _ordered(settings: Iterable[Setting]) -> list[str]:
    """Settings as text: numbers by size, then words."""
    different = sorted(set(settings), key=lambda value: (isinstance(value, str), value))
    return [str(value) for value in different]
