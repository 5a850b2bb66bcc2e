"""The balance of host and device: HDBI on its scale, and the costs that it is made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypedDict

import altair as alt
import polars as pl

from analyzer.queries.costs import Costs
from analyzer.queries.records import ListedRun
from analyzer.reports.bands import BANDS
from webapp import format, theme
from webapp.charts.parts import (
    Chart,
    ink,
    scale,
    stacked_bars,
    tips,
    wide_axis,
    wrapped_legend,
)

_COLOURS = (theme.ACCOUNTS["framework"], theme.ACCOUNTS["wait"], theme.DEVICE)
_ZONES = {band.name: colour for band, colour in zip(BANDS, _COLOURS, strict=True)}
_STRIP = {
    "hdbi": pl.Float64,
    "exact": pl.String,
    "run": pl.String,
    "mode": pl.String,
    "step": pl.String,
}


def hdbi_scale(value: float, reading: str, dark: bool = False) -> Chart:
    """One HDBI on its scale from 0 (host-bound) to 1 (device-bound)."""
    zones = pl.DataFrame(
        {
            "from": [band.least for band in BANDS],
            "to": [band.below for band in BANDS],
            "zone": [band.name for band in BANDS],
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


def hdbi_strip(runs: Sequence[ListedRun], dark: bool = False) -> Chart:
    """Each run's HDBI as a mark on one scale, one lane a mode."""
    known = [run for run in runs if run.hdbi is not None]
    frame = pl.DataFrame(
        {
            "hdbi": [run.hdbi for run in known],
            "exact": [f"{run.hdbi:.4f}" for run in known],
            "run": [format.short(run.name) for run in known],
            "mode": [run.mode or "unknown" for run in known],
            "step": [format.duration(run.step_elapsed_ns) for run in known],
        },
        schema=_STRIP,
    )
    rules = (
        alt.Chart(pl.DataFrame({"bound": [band.least for band in BANDS[1:]]}))
        .mark_rule(strokeDash=[3, 3], color=ink(dark), opacity=0.5)
        .encode(x=alt.X("bound:Q"))
    )
    first, last = BANDS[0], BANDS[-1]
    axis = _hdbi_axis(f"HDBI: below {first.below} {first.name}, from {last.least} {last.name}")
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


def decomposition(costs: Mapping[str, Costs], dark: bool = False) -> Chart:
    """Stacked costs and device time: one bar each for host and device of every label.

    Unknown parts are left out.
    """
    parts = _parts(costs)
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


class _Part(TypedDict):
    row: str
    component: str
    place: int
    ns: int
    shown: str
    exact: str


def _parts(costs: Mapping[str, Costs]) -> list[_Part]:
    return [
        {
            "row": f"{label}: {side}",
            "component": component,
            "place": place,
            "ns": ns,
            "shown": format.duration(ns),
            "exact": format.exact(ns),
        }
        for label, of in costs.items()
        for place, (component, side, ns) in enumerate(
            zip(
                theme.COMPONENTS,
                ("host", "host", "host", "device"),
                (of.ft_ns, of.ct_ns, of.kt_ns, of.device_active_ns),
                strict=True,
            )
        )
        if ns is not None
    ]
