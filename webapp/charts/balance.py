"""The balance of host and device: HDBI on its scale, and the costs that it is made of."""

from __future__ import annotations

from typing import Any

import altair as alt
import polars as pl

from analyzer.reports.report import DEVICE_BOUND_FROM, HOST_BOUND_BELOW
from webapp import format, theme
from webapp.charts.parts import (
    Chart,
    Rows,
    ink,
    scale,
    stacked_bars,
    tips,
    wide_axis,
    wrapped_legend,
)

_ZONES = {
    "host-bound": theme.ACCOUNTS["framework"],
    "balanced": theme.ACCOUNTS["wait"],
    "device-bound": theme.DEVICE,
}
_STRIP = {
    "hdbi": pl.Float64,
    "exact": pl.String,
    "run": pl.String,
    "mode": pl.String,
    "step": pl.String,
}
_COSTS = ("ft_ns", "ct_ns", "kt_ns", "device_active_ns")


def hdbi_scale(value: float, reading: str, dark: bool = False) -> Chart:
    """One HDBI on its scale from 0 (host-bound) to 1 (device-bound)."""
    zones = pl.DataFrame(
        {
            "from": [0.0, HOST_BOUND_BELOW, DEVICE_BOUND_FROM],
            "to": [HOST_BOUND_BELOW, DEVICE_BOUND_FROM, 1.0],
            "zone": list(_ZONES),
        }
    )
    axis = _hdbi_axis("HDBI: 0 waits on the host, 1 on the device")
    base = alt.Chart(zones)
    band = base.mark_rect(opacity=0.35).encode(
        x=alt.X("from:Q", scale=alt.Scale(domain=[0, 1]), axis=axis),
        x2=alt.X2("to:Q"),
        y=alt.YValue(12),
        y2=alt.Y2Value(44),
        color=alt.Color("zone:N", scale=scale(_ZONES), legend=None),
    )
    names = base.mark_text(color=ink(dark), fontSize=13, align="left", dx=6).encode(
        x=alt.X("from:Q"), y=alt.YValue(28), text=alt.Text("zone:N")
    )
    mark = pl.DataFrame({"hdbi": [value], "reading": [reading], "exact": [f"{value:.6f}"]})
    needle = (
        alt.Chart(mark)
        .mark_tick(thickness=4, height=52, color=ink(dark), opacity=1)
        .encode(
            x=alt.X("hdbi:Q"),
            y=alt.YValue(28),
            tooltip=tips({"exact": "HDBI", "reading": "reading"}),
        )
    )
    return alt.layer(band, names, needle).properties(height=120)


def hdbi_strip(rows: Rows, dark: bool = False) -> Chart:
    """Each run's HDBI as a mark on one scale, one lane a mode."""
    known = [row for row in rows if row["hdbi"] is not None]
    frame = pl.DataFrame(
        {
            "hdbi": [row["hdbi"] for row in known],
            "exact": [f"{row['hdbi']:.4f}" for row in known],
            "run": [format.short(row["name"]) for row in known],
            "mode": [str(row["mode"] or "unknown") for row in known],
            "step": [format.duration(row["step_elapsed_ns"]) for row in known],
        },
        schema=_STRIP,
    )
    rules = (
        alt.Chart(pl.DataFrame({"bound": [HOST_BOUND_BELOW, DEVICE_BOUND_FROM]}))
        .mark_rule(strokeDash=[3, 3], color=ink(dark), opacity=0.5)
        .encode(x=alt.X("bound:Q"))
    )
    axis = _hdbi_axis(
        f"HDBI: below {HOST_BOUND_BELOW} host-bound, from {DEVICE_BOUND_FROM} device-bound"
    )
    points = (
        alt.Chart(frame)
        .mark_point(filled=True, size=90, opacity=0.85, color=theme.DEVICE)
        .encode(
            x=alt.X("hdbi:Q", scale=alt.Scale(domain=[0, 1]), axis=axis),
            y=alt.Y("mode:N", title=None, sort=sorted(set(frame["mode"].to_list()))),
            tooltip=tips(
                {"run": None, "exact": "HDBI", "mode": None, "step": "step p50, profiled"}
            ),
        )
    )
    return alt.layer(rules, points).properties(height={"step": 26})


def _hdbi_axis(title: str) -> alt.Axis:
    return alt.Axis(title=title, values=[0, 0.2, 0.4, 0.6, 0.8, 1], format=".1f", grid=False)


def decomposition(rows: Rows, dark: bool = False) -> Chart:
    """Stacked costs and device time: one bar each for host and device of every row.

    Args:
        rows: label, ft_ns, ct_ns, kt_ns, device_active_ns; unknown parts are left out.
    """
    parts = _costs(rows)
    sums: dict[str, int] = {}
    for part in parts:
        sums[part["row"]] = sums.get(part["row"], 0) + part["ns"]
    name, divisor = format.unit(sums.values())
    frame = pl.DataFrame(
        [{**part, "value": part["ns"] / divisor} for part in parts], infer_schema_length=None
    )
    return stacked_bars(
        frame,
        f"time ({name})",
        dark,
        y=alt.Y("row:N", title=None, sort=list(sums), axis=wide_axis()),
        color=alt.Color("component:N", scale=scale(theme.COMPONENTS), legend=wrapped_legend()),
        tooltip=tips({"row": "of", "component": None, "shown": "time", "exact": None}),
    ).properties(height={"step": 30})


def _costs(rows: Rows) -> list[dict[str, Any]]:
    return [
        {
            "row": f"{row['label']}: {'device' if key == 'device_active_ns' else 'host'}",
            "component": component,
            "place": place,
            "ns": row[key],
            "shown": format.duration(row[key]),
            "exact": format.exact(row[key]),
        }
        for row in rows
        for place, (component, key) in enumerate(zip(theme.COMPONENTS, _COSTS, strict=True))
        if row[key] is not None
    ]
