"""Accounts of the launching thread's time: of a run, of each step, and from one run to another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import altair as alt
import polars as pl

from analyzer.queries.costs import AccountTime, Ledger, Step
from analyzer.reports.records import AccountChange
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

# More steps than this are drawn without outlines and names.
_MANY_STEPS = 20
_UNKNOWN = "exposed or hidden: unknown"
_OPACITY = {"exposed": 1.0, "hidden": theme.HIDDEN, _UNKNOWN: 0.65}


def ledger(accounts: Ledger, dark: bool = False) -> Chart:
    """Each account's time on the launching thread: exposed solid, hidden pale; between them what
    may be either.
    """
    wall = sum(entry.ns for entry in accounts.values()) or 1
    name, divisor = format.unit([entry.ns for entry in accounts.values()])
    frame = pl.DataFrame(
        [
            {
                "account": account,
                "part": part,
                "place": place,
                "value": ns / divisor,
                "shown": format.duration(ns),
                "exact": format.exact(ns),
                "share": format.share(ns / wall),
            }
            for account, entry in accounts.items()
            if entry.ns
            for place, (part, ns) in enumerate(_parts(entry))
        ]
    )
    legend = alt.Legend(
        title=None,
        orient="top",
        symbolType="square",
        symbolFillColor=theme.ACCOUNTS["wait"],
    )
    shown = [part for part in _OPACITY if part in set(frame["part"])]
    opacity = alt.Scale(domain=shown, range=[_OPACITY[part] for part in shown])
    return stacked_bars(
        frame,
        f"time on the launching thread ({name})",
        dark,
        y=alt.Y("account:N", title=None, sort=list(theme.ACCOUNTS), axis=wide_axis()),
        color=alt.Color("account:N", scale=scale(theme.ACCOUNTS), legend=None),
        opacity=alt.Opacity("part:N", scale=opacity, legend=legend),
        tooltip=tips(
            {"account": None, "part": None, "shown": "time", "share": "of the steps", "exact": None}
        ),
    ).properties(height={"step": 26})


def _parts(time: AccountTime) -> list[tuple[str, int]]:
    """The time by whether the device was idle; unknown is neither."""
    if time.exposed_ns is None:
        return [(_UNKNOWN, time.ns)]
    return [("exposed", time.exposed_ns), ("hidden", time.ns - time.exposed_ns)]


def steps(rows: Sequence[Step], dark: bool = False) -> Chart:
    """Each step's host time by account, in order of time."""
    name, divisor = format.unit([row.wall_ns for row in rows])
    frame = pl.DataFrame(
        [
            {
                "step": f"{i} {format.short(row.name, 30)}",
                "account": account,
                "place": place,
                "value": entry.ns / divisor,
                "shown": format.duration(entry.ns),
                "exposed": format.duration(entry.exposed_ns),
                "exact": format.exact(entry.ns),
            }
            for i, row in enumerate(rows)
            for place, (account, entry) in enumerate(row.ledger.items())
            if entry.ns
        ],
        infer_schema_length=None,
    )
    many = len(rows) > _MANY_STEPS
    present = set(frame["account"])
    colours = {account: c for account, c in theme.ACCOUNTS.items() if account in present}
    axis = alt.Axis(labels=not many, ticks=False, labelLimit=220)
    return stacked_bars(
        frame,
        f"host time ({name})",
        dark,
        stroke_width=0 if many else 1,
        y=alt.Y("step:N", title=None, sort=None, axis=axis),
        color=alt.Color("account:N", scale=scale(colours), legend=wrapped_legend()),
        tooltip=tips(
            {"step": None, "account": None, "shown": "time", "exposed": None, "exact": None}
        ),
    ).properties(height={"step": max(3, min(26, 700 // max(len(rows), 1)))})


def waterfall(rows: Sequence[AccountChange], base: str, other: str, dark: bool = False) -> Chart:
    """From one run's mean step to another's: what each account added or took."""
    bars = _bars(rows, format.short(base, 34), format.short(other, 34))
    name, divisor = format.unit([bars[0].end, bars[-1].end])
    frame = pl.DataFrame(
        [
            {
                "bar": bar.name,
                "account": bar.account,
                "from": bar.start / divisor,
                "to": bar.end / divisor,
                "shown": bar.shown,
                "exact": bar.exact,
            }
            for bar in bars
        ],
        infer_schema_length=None,
    ).with_columns((pl.max_horizontal("from", "to")).alias("top"))
    ends = [level / divisor for bar in bars for level in (bar.start, bar.end)]
    y = alt.Y("bar:N", title=None, sort=[bar.name for bar in bars], axis=wide_axis())
    shown = tips({"bar": "account", "shown": "change a step", "exact": None})
    body = (
        alt.Chart(frame)
        .mark_bar()
        .encode(
            y=y,
            x=alt.X(
                "from:Q",
                title=f"mean step, profiled ({name})",
                scale=alt.Scale(domain=[min([0.0, *ends]), 1.1 * max(ends)]),
            ),
            x2=alt.X2("to:Q"),
            color=alt.Color("account:N", scale=scale(theme.WATERFALL), legend=None),
            tooltip=shown,
        )
    )
    text = (
        alt.Chart(frame)
        # Room for this text beside the longest bar is in the scale above.
        .mark_text(align="left", dx=5, color=ink(dark))
        .encode(y=y, x=alt.X("top:Q"), text=alt.Text("shown:N"), tooltip=shown)
    )
    return alt.layer(body, text).properties(height={"step": 26})


@dataclass(frozen=True)
class _Bar:
    """A bar of the waterfall, in ns."""

    name: str
    account: str  # or total
    start: int
    end: int
    shown: str
    exact: str


def _bars(rows: Sequence[AccountChange], base: str, other: str) -> list[_Bar]:
    """The base's bar, one from level to level for each account, the other run's."""
    level = sum(row.before_ns for row in rows)
    bars = [_bar(base, "total", 0, level, level)]
    for row in rows:
        if row.before_ns or row.after_ns:
            change = row.change_ns
            bars.append(_bar(row.account, row.account, level, level + change, change))
            level += change
    after = sum(row.after_ns for row in rows)
    return [*bars, _bar(other, "total", 0, after, after)]


def _bar(name: str, account: str, start: int, end: int, change: int) -> _Bar:
    shown = format.duration(change) if account == "total" else format.signed(change)
    return _Bar(name, account, start, end, shown, format.exact(change))
