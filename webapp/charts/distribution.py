"""How times are distributed: device time over kernel families, samples from short to long."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

import altair as alt
import polars as pl

from analyzer.queries.records import Family
from webapp import format, theme
from webapp.charts.parts import Chart, ink, run_colours, scale, tips, wide_axis

_CURVES = {
    "of": pl.String,
    "value": pl.Float64,
    "share": pl.Float64,
    "shown": pl.String,
    "exact": pl.String,
}
_HEIGHT = 280


def families(rows: Mapping[str, Family], dark: bool = False) -> Chart:
    """Device time of each kernel family."""
    name, divisor = format.unit([row.device_ns for row in rows.values()])
    frame = pl.DataFrame(
        [
            {
                "family": family,
                "value": row.device_ns / divisor,
                "shown": format.duration(row.device_ns),
                "share": format.share(row.share),
                "events": format.count(row.events),
                "exact": format.exact(row.device_ns),
            }
            for family, row in rows.items()
        ]
    )
    # Room for the text beside the longest bar.
    domain = [0, 1.15 * max(frame["value"].to_list(), default=1.0)]
    base = alt.Chart(frame).encode(
        y=alt.Y("family:N", title=None, sort=None, axis=wide_axis()),
        x=alt.X("value:Q", title=f"device time ({name})", scale=alt.Scale(domain=domain)),
        tooltip=tips(
            {
                "family": None,
                "shown": "device time",
                "share": "of device time",
                "events": None,
                "exact": None,
            }
        ),
    )
    bars = base.mark_bar(color=theme.DEVICE)
    text = base.mark_text(align="left", dx=4, color=ink(dark)).encode(text=alt.Text("share:N"))
    return alt.layer(bars, text).properties(height={"step": 24})


def cdf(
    curves: Mapping[str, pl.DataFrame],
    title: str,
    floor_ns: int | None = None,
    dark: bool = False,
) -> Chart:
    """Cumulative distributions, log time; the launch floor as a line.

    Args:
        curves: Name to a frame of share and ns.
    """
    name, divisor = format.unit([_median(frame) for frame in curves.values()])
    lines = _lines(curves, f"{title} ({name}, log)", divisor)
    if floor_ns is None:
        return lines.properties(height=_HEIGHT)
    frame = pl.DataFrame(
        {
            "value": [floor_ns / divisor],
            "text": [f"launch floor {format.duration(floor_ns)}"],
            "exact": [format.exact(floor_ns)],
        }
    )
    rule = (
        alt.Chart(frame)
        .mark_rule(color=theme.ACCOUNTS["launch"], strokeDash=[6, 3], strokeWidth=2)
        .encode(x=alt.X("value:Q"), tooltip=tips({"text": None, "exact": None}))
    )
    text = (
        alt.Chart(frame)
        .mark_text(align="left", dx=6, dy=-4, baseline="bottom", color=ink(dark))
        .encode(x=alt.X("value:Q"), y=alt.YValue(14), text=alt.Text("text:N"))
    )
    return alt.layer(lines, rule, text).properties(height=_HEIGHT)


def _lines(curves: Mapping[str, pl.DataFrame], title: str, divisor: float) -> alt.Chart:
    frame = pl.DataFrame(
        [
            {
                "of": name,
                "value": ns / divisor,
                "share": share,
                "shown": format.duration(ns),
                "exact": format.exact(ns),
            }
            for name, rows in curves.items()
            for share, ns in rows.select("share", "ns").iter_rows()
            if ns is not None and ns > 0
        ],
        schema=_CURVES,
    )
    legend = alt.Legend(title=None, orient="top", labelLimit=320) if len(curves) > 1 else None
    return (
        alt.Chart(frame)
        .mark_line(interpolate="step-after", strokeWidth=2)
        .encode(
            x=alt.X("value:Q", title=title, scale=alt.Scale(type="log", nice=False)),
            y=alt.Y("share:Q", title="share at or below", axis=alt.Axis(format=".0%")),
            color=alt.Color("of:N", scale=scale(run_colours(list(curves))), legend=legend),
            strokeDash=alt.StrokeDash("of:N", sort=list(curves), legend=None),
            tooltip=[
                alt.Tooltip("of:N"),
                alt.Tooltip("share:Q", title="at or below", format=".1%"),
                *tips({"shown": "time", "exact": None}),
            ],
        )
    )


def _median(frame: pl.DataFrame) -> float | None:
    return None if frame.is_empty() else cast("float | None", frame["ns"].median())
