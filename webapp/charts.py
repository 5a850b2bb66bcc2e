"""Charts: records in, an Altair chart out. Pure functions: no store, no Streamlit.

Colours and their order are given, never left to the library. Axes carry units, tips exact values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt
import polars as pl
from altair.utils.schemapi import disable_debug_mode

from webapp import format, theme

Rows = Sequence[Mapping[str, Any]]
Chart = Any

LABEL = 150
# Each part would be checked by itself, and again with the whole; the whole is enough, and faster.
# For the same reason channels are named (`alt.X("a:Q")`): from a bare text they take 10 ms each.
disable_debug_mode()

# As many entries of a legend beside each other as there is room for.
WRAPPED = alt.ExprRef("max(2, floor(width / 125))")
HOST_BOUND_BELOW = 0.4
DEVICE_BOUND_FROM = 0.6
LANE_COLOURS = {
    **theme.ACCOUNTS,
    "op": "#F2C45A",
    "kernel": theme.DEVICE,
    "copy or memset": theme.DEVICE_COPY,
}


def _scale(colours: Mapping[str, str]) -> alt.Scale:
    return alt.Scale(domain=list(colours), range=list(colours.values()))


def _ink(dark: bool) -> str:
    return (theme.DARK if dark else theme.LIGHT)["textColor"]


def _paper(dark: bool) -> str:
    return (theme.DARK if dark else theme.LIGHT)["backgroundColor"]


def _values(rows: Rows, key: str, scale: float) -> list[float | None]:
    return [None if row[key] is None else row[key] / scale for row in rows]


def hdbi_scale(value: float, reading: str, dark: bool = False) -> Chart:
    """One HDBI on its scale from 0 (host-bound) to 1 (device-bound)."""
    zones = pl.DataFrame(
        {
            "from": [0.0, HOST_BOUND_BELOW, DEVICE_BOUND_FROM],
            "to": [HOST_BOUND_BELOW, DEVICE_BOUND_FROM, 1.0],
            "zone": ["host-bound", "balanced", "device-bound"],
        }
    )
    colours = {
        "host-bound": theme.ACCOUNTS["framework"],
        "balanced": theme.ACCOUNTS["wait"],
        "device-bound": theme.DEVICE,
    }
    axis = alt.Axis(
        title="HDBI: 0 waits on the host, 1 on the device",
        values=[0, 0.2, 0.4, 0.6, 0.8, 1],
        format=".1f",
        grid=False,
    )
    x = alt.X("from:Q", scale=alt.Scale(domain=[0, 1]), axis=axis)
    base = alt.Chart(zones)
    band = base.mark_rect(opacity=0.35).encode(
        x=x,
        x2=alt.X2("to:Q"),
        y=alt.YValue(12),
        y2=alt.Y2Value(44),
        color=alt.Color("zone:N", scale=_scale(colours), legend=None),
    )
    names = base.mark_text(color=_ink(dark), fontSize=13, align="left", dx=6).encode(
        x=alt.X("from:Q"), y=alt.YValue(28), text=alt.Text("zone:N")
    )
    mark = pl.DataFrame({"hdbi": [value], "reading": [reading], "exact": [f"{value:.6f}"]})
    tip = [
        alt.Tooltip("exact:N", title="HDBI"),
        alt.Tooltip("reading:N", title="reading"),
    ]
    needle = (
        alt.Chart(mark)
        .mark_tick(thickness=4, height=52, color=_ink(dark), opacity=1)
        .encode(x=alt.X("hdbi:Q"), y=alt.YValue(28), tooltip=tip)
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
        schema={
            "hdbi": pl.Float64,
            "exact": pl.String,
            "run": pl.String,
            "mode": pl.String,
            "step": pl.String,
        },
    )
    bounds = pl.DataFrame({"bound": [HOST_BOUND_BELOW, DEVICE_BOUND_FROM]})
    rules = (
        alt.Chart(bounds)
        .mark_rule(strokeDash=[3, 3], color=_ink(dark), opacity=0.5)
        .encode(x=alt.X("bound:Q"))
    )
    points = (
        alt.Chart(frame)
        .mark_point(filled=True, size=90, opacity=0.85, color=theme.DEVICE)
        .encode(
            x=alt.X(
                "hdbi:Q",
                scale=alt.Scale(domain=[0, 1]),
                axis=alt.Axis(
                    title="HDBI: below 0.4 host-bound, from 0.6 device-bound",
                    values=[0, 0.2, 0.4, 0.6, 0.8, 1],
                    format=".1f",
                    grid=False,
                ),
            ),
            y=alt.Y("mode:N", title=None, sort=sorted(set(frame["mode"].to_list()))),
            tooltip=[
                alt.Tooltip("run:N"),
                alt.Tooltip("exact:N", title="HDBI"),
                alt.Tooltip("mode:N"),
                alt.Tooltip("step:N", title="step p50, profiled"),
            ],
        )
    )
    return alt.layer(rules, points).properties(height={"step": 26})


def decomposition(rows: Rows, dark: bool = False) -> Chart:
    """Stacked costs and device time: one bar each for host and device of every row.

    Args:
        rows: label, ft_ns, ct_ns, kt_ns, device_active_ns; unknown parts are left out.
    """
    parts: list[dict[str, Any]] = []
    keys = ("ft_ns", "ct_ns", "kt_ns", "device_active_ns")
    order = list(theme.COMPONENTS)
    for row in rows:
        for place, (component, key) in enumerate(zip(order, keys, strict=True)):
            if row[key] is not None:
                side = "device" if key == "device_active_ns" else "host"
                parts.append(
                    {
                        "row": f"{row['label']}: {side}",
                        "component": component,
                        "place": place,
                        "ns": row[key],
                        "shown": format.duration(row[key]),
                        "exact": format.exact(row[key]),
                    }
                )
    name, scale = format.unit(
        [sum(p["ns"] for p in parts if p["row"] == row) for row in {p["row"] for p in parts}]
    )
    frame = pl.DataFrame(
        [{**part, "value": part["ns"] / scale} for part in parts], infer_schema_length=None
    )
    return (
        alt.Chart(frame)
        .mark_bar(stroke=_paper(dark), strokeWidth=1)
        .encode(
            x=alt.X("value:Q", title=f"time ({name})", stack="zero"),
            y=alt.Y(
                "row:N",
                title=None,
                sort=list(dict.fromkeys(frame["row"].to_list())),
                axis=_wide_axis(),
            ),
            color=alt.Color(
                "component:N",
                scale=_scale(theme.COMPONENTS),
                legend=alt.Legend(title=None, orient="top", columns=WRAPPED),
            ),
            order=alt.Order("place:Q"),
            tooltip=[
                alt.Tooltip("row:N", title="of"),
                alt.Tooltip("component:N"),
                alt.Tooltip("shown:N", title="time"),
                alt.Tooltip("exact:N"),
            ],
        )
        .properties(height={"step": 30})
    )


def _wide_axis(limit: int = 260) -> alt.Axis:
    return alt.Axis(labelLimit=limit, ticks=False, domain=False)


def ledger(accounts: Mapping[str, Mapping[str, int]], dark: bool = False) -> Chart:
    """Each account's time on the launching thread: exposed solid, hidden pale."""
    wall = sum(entry["ns"] for entry in accounts.values()) or 1
    name, scale = format.unit([entry["ns"] for entry in accounts.values()])
    frame = pl.DataFrame(
        [
            {
                "account": account,
                "part": part,
                "place": place,
                "value": ns / scale,
                "shown": format.duration(ns),
                "exact": format.exact(ns),
                "share": format.share(ns / wall),
            }
            for account, entry in accounts.items()
            if entry["ns"]
            for place, (part, ns) in enumerate(
                (("exposed", entry["exposed_ns"]), ("hidden", entry["ns"] - entry["exposed_ns"]))
            )
        ]
    )
    return (
        alt.Chart(frame)
        .mark_bar(stroke=_paper(dark), strokeWidth=1)
        .encode(
            x=alt.X("value:Q", title=f"time on the launching thread ({name})", stack="zero"),
            y=alt.Y("account:N", title=None, sort=list(theme.ACCOUNTS), axis=_wide_axis()),
            color=alt.Color("account:N", scale=_scale(theme.ACCOUNTS), legend=None),
            opacity=alt.Opacity(
                "part:N",
                scale=alt.Scale(domain=["exposed", "hidden"], range=[1, theme.HIDDEN]),
                legend=alt.Legend(
                    title=None,
                    orient="top",
                    symbolType="square",
                    symbolFillColor=theme.ACCOUNTS["wait"],
                ),
            ),
            order=alt.Order("place:Q"),
            tooltip=[
                alt.Tooltip("account:N"),
                alt.Tooltip("part:N"),
                alt.Tooltip("shown:N", title="time"),
                alt.Tooltip("share:N", title="of the steps"),
                alt.Tooltip("exact:N"),
            ],
        )
        .properties(height={"step": 26})
    )


def steps(rows: Rows, dark: bool = False) -> Chart:
    """Each step's host time by account, in order of time."""
    name, scale = format.unit([row["wall_ns"] for row in rows])
    frame = pl.DataFrame(
        [
            {
                "step": f"{i} {format.short(row['name'], 30)}",
                "account": account,
                "place": place,
                "value": entry["ns"] / scale,
                "shown": format.duration(entry["ns"]),
                "exposed": format.duration(entry["exposed_ns"]),
                "exact": format.exact(entry["ns"]),
            }
            for i, row in enumerate(rows)
            for place, (account, entry) in enumerate(row["ledger"].items())
            if entry["ns"]
        ],
        infer_schema_length=None,
    )
    many = len(rows) > 20
    return (
        alt.Chart(frame)
        .mark_bar(stroke=_paper(dark), strokeWidth=0 if many else 1)
        .encode(
            x=alt.X("value:Q", title=f"host time ({name})", stack="zero"),
            y=alt.Y(
                "step:N",
                title=None,
                sort=None,
                axis=alt.Axis(labels=not many, ticks=False, labelLimit=220),
            ),
            color=alt.Color(
                "account:N",
                scale=_scale(
                    {a: c for a, c in theme.ACCOUNTS.items() if a in set(frame["account"])}
                ),
                legend=alt.Legend(title=None, orient="top", columns=WRAPPED),
            ),
            order=alt.Order("place:Q"),
            tooltip=[
                alt.Tooltip("step:N"),
                alt.Tooltip("account:N"),
                alt.Tooltip("shown:N", title="time"),
                alt.Tooltip("exposed:N"),
                alt.Tooltip("exact:N"),
            ],
        )
        .properties(height={"step": max(3, min(26, 700 // max(len(rows), 1)))})
    )


def families(rows: Rows, dark: bool = False) -> Chart:
    """Device time of each kernel family."""
    name, scale = format.unit([row["device_ns"] for row in rows])
    frame = pl.DataFrame(
        [
            {
                "family": row["family"],
                "value": row["device_ns"] / scale,
                "shown": format.duration(row["device_ns"]),
                "share": format.share(row["share"]),
                "events": format.count(row["events"]),
                "exact": format.exact(row["device_ns"]),
            }
            for row in rows
        ]
    )
    base = alt.Chart(frame).encode(
        y=alt.Y("family:N", title=None, sort=None, axis=_wide_axis()),
        # Room for the text beside the longest bar.
        x=alt.X(
            "value:Q",
            title=f"device time ({name})",
            scale=alt.Scale(domain=[0, 1.15 * max(frame["value"].to_list(), default=1.0)]),
        ),
        tooltip=[
            alt.Tooltip("family:N"),
            alt.Tooltip("shown:N", title="device time"),
            alt.Tooltip("share:N", title="of device time"),
            alt.Tooltip("events:N"),
            alt.Tooltip("exact:N"),
        ],
    )
    bars = base.mark_bar(color=theme.DEVICE)
    text = base.mark_text(align="left", dx=4, color=_ink(dark)).encode(text=alt.Text("share:N"))
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
    name, scale = format.unit([_median(frame) for frame in curves.values()])
    colours = dict(zip(curves, theme.RUNS * 9, strict=False))
    frame = pl.DataFrame(
        [
            {
                "of": of,
                "value": ns / scale,
                "share": share,
                "shown": format.duration(ns),
                "exact": format.exact(ns),
            }
            for of, rows in curves.items()
            for share, ns in rows.select("share", "ns").iter_rows()
            if ns is not None and ns > 0
        ],
        schema={
            "of": pl.String,
            "value": pl.Float64,
            "share": pl.Float64,
            "shown": pl.String,
            "exact": pl.String,
        },
    )
    x = alt.X("value:Q", title=f"{title} ({name}, log)", scale=alt.Scale(type="log", nice=False))
    lines = (
        alt.Chart(frame)
        .mark_line(interpolate="step-after", strokeWidth=2)
        .encode(
            x=x,
            y=alt.Y("share:Q", title="share at or below", axis=alt.Axis(format=".0%")),
            color=alt.Color(
                "of:N",
                scale=_scale(colours),
                legend=alt.Legend(title=None, orient="top", labelLimit=320)
                if len(curves) > 1
                else None,
            ),
            strokeDash=alt.StrokeDash("of:N", sort=list(curves), legend=None),
            tooltip=[
                alt.Tooltip("of:N"),
                alt.Tooltip("share:Q", title="at or below", format=".1%"),
                alt.Tooltip("shown:N", title="time"),
                alt.Tooltip("exact:N"),
            ],
        )
    )
    if floor_ns is None:
        return lines.properties(height=280)
    rule_rows = pl.DataFrame(
        {
            "value": [floor_ns / scale],
            "text": [f"launch floor {format.duration(floor_ns)}"],
            "exact": [format.exact(floor_ns)],
        }
    )
    rule = (
        alt.Chart(rule_rows)
        .mark_rule(color=theme.ACCOUNTS["launch"], strokeDash=[6, 3], strokeWidth=2)
        .encode(x=alt.X("value:Q"), tooltip=[alt.Tooltip("text:N"), alt.Tooltip("exact:N")])
    )
    text = (
        alt.Chart(rule_rows)
        .mark_text(align="left", dx=6, dy=-4, baseline="bottom", color=_ink(dark))
        .encode(x=alt.X("value:Q"), y=alt.YValue(14), text=alt.Text("text:N"))
    )
    return alt.layer(lines, rule, text).properties(height=280)


def _median(frame: pl.DataFrame) -> float | None:
    return None if frame.is_empty() else frame["ns"].median()  # pyright: ignore[reportReturnType]


def waterfall(rows: Rows, base: str, other: str, dark: bool = False) -> Chart:
    """From one run's mean step to another's: what each account added or took.

    Args:
        rows: account, before_ns, after_ns, change_ns, as `compare` gives them.
    """
    before = sum(row["before_ns"] for row in rows)
    after = sum(row["after_ns"] for row in rows)
    name, scale = format.unit([before, after])
    bars = [_bar(format.short(base, 34), "total", 0, before, before)]
    level = before
    for row in rows:
        if row["before_ns"] or row["after_ns"]:
            bars.append(
                _bar(
                    row["account"],
                    row["account"],
                    level,
                    level + row["change_ns"],
                    row["change_ns"],
                )
            )
            level += row["change_ns"]
    bars.append(_bar(format.short(other, 34), "total", 0, after, after))
    frame = pl.DataFrame(
        [{**bar, "from": bar["from"] / scale, "to": bar["to"] / scale} for bar in bars],
        infer_schema_length=None,
    ).with_columns((pl.max_horizontal("from", "to")).alias("top"))
    ends: list[float] = [bar[key] / scale for bar in bars for key in ("from", "to")]
    y = alt.Y("bar:N", title=None, sort=[bar["bar"] for bar in bars], axis=_wide_axis())
    tips = [
        alt.Tooltip("bar:N", title="account"),
        alt.Tooltip("shown:N", title="change a step"),
        alt.Tooltip("exact:N"),
    ]
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
            color=alt.Color("account:N", scale=_scale(theme.WATERFALL), legend=None),
            tooltip=tips,
        )
    )
    text = (
        alt.Chart(frame)
        # Room for this text beside the longest bar is in the scale above.
        .mark_text(align="left", dx=5, color=_ink(dark))
        .encode(y=y, x=alt.X("top:Q"), text=alt.Text("shown:N"), tooltip=tips)
    )
    return alt.layer(body, text).properties(height={"step": 26})


def _bar(name: str, account: str, start: float, end: float, change: float) -> dict[str, Any]:
    shown = format.duration(change) if account == "total" else format.signed(change)
    return {
        "bar": name,
        "account": account,
        "from": start,
        "to": end,
        "shown": shown,
        "exact": format.exact(change),
    }


# -- timeline

LANE_KINDS = {"region": "regions", "op": "ops", "call": "calls", "stream": "stream"}


def lanes(
    profile: pl.DataFrame | None, slices: pl.DataFrame, threads: Mapping[int, str], main: int | None
) -> list[tuple[str, str]]:
    """Lanes from top to bottom, (key, label): main thread, other threads, device."""
    found = {(kind, lane) for kind, lane in slices.select("lane_kind", "lane").iter_rows()}
    host = [pair for pair in found if pair[0] != "stream"]
    order = {"region": 0, "op": 1, "call": 2}
    result: list[tuple[str, str]] = []
    if profile is not None and not profile.is_empty():
        result.append(("accounts", "host by account"))
    several = len({lane for _, lane in host}) > 1
    for kind, lane in sorted(
        host, key=lambda p: (int(p[1]) != main, int(p[1]), order.get(p[0], 9))
    ):
        suffix = ""
        if several and int(lane) != main:
            suffix = f", {format.short(threads.get(int(lane), lane), 18)}"
        result.append((f"{kind} {lane}", f"{LANE_KINDS[kind]}{suffix}"))
    if profile is not None and not profile.is_empty() and len(found) > len(host):
        result.append(("idle", "device idle, host in"))
    for kind, lane in sorted(pair for pair in found if pair[0] == "stream"):
        result.append((f"{kind} {lane}", f"stream {lane}"))
    return result


def timeline_rows(
    profile: pl.DataFrame | None,
    slices: pl.DataFrame,
    keys: Sequence[str],
    origin_ns: int,
    scale: float,
) -> pl.DataFrame:
    """Rectangles: x in time units from the trace's start, y in lanes from the top."""
    place = {key: float(i) for i, key in enumerate(keys)}
    parts: list[pl.DataFrame] = []
    columns = ["x", "x2", "y", "y2", "colour", "name", "shown", "note", "event"]

    def position(name: str) -> pl.Expr:
        return (pl.col(name) - origin_ns) / scale

    if not slices.is_empty():
        key = pl.col("lane_kind") + " " + pl.col("lane")
        top = key.replace_strict(place, default=None, return_dtype=pl.Float64)
        one = pl.col("events") == 1
        parts.append(
            slices.with_columns(top=top)
            .filter(pl.col("top").is_not_null())
            .with_columns(
                position("start_ns").alias("x"),
                position("end_ns").alias("x2"),
                (pl.col("top") + 0.12).alias("y"),
                (pl.col("top") + 0.88).alias("y2"),
                pl.when(pl.col("lane_kind") == "op")
                .then(pl.lit("op"))
                .when(pl.col("lane_kind") == "region")
                .then(pl.lit("region"))
                .when(pl.col("lane_kind") == "call")
                .then(pl.col("detail"))
                .when(pl.col("detail").is_in(["memcpy", "memset"]))
                .then(pl.lit("copy or memset"))
                .otherwise(pl.lit("kernel"))
                .alias("colour"),
                pl.col("name").fill_null("").str.slice(0, 300).alias("name"),
                pl.col("busy_ns").map_elements(format.duration, pl.String).alias("shown"),
                pl.when(one)
                .then(pl.lit("one event"))
                .otherwise(pl.format("{} short events, the longest named", pl.col("events")))
                .alias("note"),
                pl.format("{}:{}", pl.col("lane_kind"), pl.col("id")).alias("event"),
            )
            .select(columns)
        )
    if profile is not None and not profile.is_empty():
        width = pl.col("end_ns") - pl.col("start_ns")
        for lane, value in (("accounts", "ns"), ("idle", "exposed_ns")):
            if lane not in place:
                continue
            share = pl.col(value) / width
            stacked = (
                profile.filter(pl.col(value) > 0)
                .with_columns(share.alias("share"))
                .with_columns(pl.col("share").cum_sum().over("column").alias("upto"))
            )
            drawn = stacked.with_columns(
                position("start_ns").alias("x"),
                position("end_ns").alias("x2"),
                (place[lane] + 0.96 - 0.92 * pl.col("upto")).alias("y"),
                (place[lane] + 0.96 - 0.92 * (pl.col("upto") - pl.col("share"))).alias("y2"),
                pl.col("account").alias("colour"),
                pl.col("account").alias("name"),
                pl.col(value).map_elements(format.duration, pl.String).alias("shown"),
                (pl.col("share") * 100).round(0).cast(pl.Int64).alias("percent"),
            ).with_columns(
                pl.format(
                    "{} % of this stretch" + (", device idle" if lane == "idle" else ""),
                    pl.col("percent"),
                ).alias("note"),
                pl.lit("").alias("event"),
            )
            parts.append(_joined(drawn.select(columns)))
    if not parts:
        return pl.DataFrame(schema=dict.fromkeys(columns, pl.String))
    return pl.concat(parts)


def _joined(rows: pl.DataFrame) -> pl.DataFrame:
    """Neighbours that are whole columns of one account, as one rectangle: fewer to draw."""
    if rows.is_empty():
        return rows
    whole = (rows["y2"] - rows["y"]) > 0.9199
    same = (
        whole
        & whole.shift(1, fill_value=False)
        & (rows["colour"] == rows["colour"].shift(1, fill_value=""))
        & ((rows["x"] - rows["x2"].shift(1, fill_value=-1.0)).abs() < 1e-9)
    )
    return (
        rows.with_columns((~same).cum_sum().alias("group"))
        .group_by("group", maintain_order=True)
        .agg(
            pl.col("x").first(),
            pl.col("x2").last(),
            pl.col("y").first(),
            pl.col("y2").first(),
            pl.col("colour").first(),
            pl.col("name").first(),
            pl.when(pl.len() == 1)
            .then(pl.col("shown").first())
            .otherwise(pl.lit("all of it"))
            .first()
            .alias("shown"),
            pl.col("note").first(),
            pl.col("event").first(),
        )
        .drop("group")
    )


def timeline(
    rows: pl.DataFrame,
    labels: Sequence[str],
    window: tuple[float, float],
    unit: str,
    chosen: str = "",
    dark: bool = False,
) -> Chart:
    """Rectangles in lanes over a window of time; a drag selects a part of it, a click an event."""
    colours = {c: v for c, v in LANE_COLOURS.items() if c in set(rows["colour"])}
    names = list(labels)
    index = "datum.value - 0.5"
    text = "''"
    for i, label in reversed(list(enumerate(names))):
        quoted = label.replace("\\", "\\\\").replace("'", "\\'")
        text = f"{index} == {i} ? '{quoted}' : {text}"
    drag = alt.selection_interval(name="window", encodings=["x"])
    click = alt.selection_point(name="event", fields=["event"], on="click", empty=False)
    y = alt.Y(
        "y:Q",
        title=None,
        scale=alt.Scale(domain=[len(names), 0], nice=False),
        axis=alt.Axis(
            values=[i + 0.5 for i in range(len(names))],
            labelExpr=text,
            ticks=False,
            domain=False,
            grid=False,
            labelLimit=LABEL,
            labelOverlap=False,
            minExtent=LABEL,
        ),
    )
    is_chosen = alt.datum.event == chosen if chosen else alt.datum.event == "-"
    return (
        alt.Chart(rows)
        .mark_rect(clip=True, strokeWidth=0)
        .encode(
            x=alt.X(
                "x:Q",
                title=f"time from the trace's start ({unit})",
                scale=alt.Scale(domain=list(window), nice=False),
                axis=alt.Axis(grid=True, gridOpacity=0.4),
            ),
            x2=alt.X2("x2:Q"),
            y=y,
            y2=alt.Y2("y2:Q"),
            color=alt.Color(
                "colour:N",
                scale=_scale(colours),
                legend=alt.Legend(title=None, orient="top", columns=WRAPPED, symbolType="square"),
            ),
            stroke=alt.condition(is_chosen, alt.value(_ink(dark)), alt.value(None)),
            strokeWidth=alt.condition(is_chosen, alt.value(2.5), alt.value(0)),
            tooltip=[
                alt.Tooltip("name:N"),
                alt.Tooltip("colour:N", title="kind"),
                alt.Tooltip("shown:N", title="time"),
                alt.Tooltip("note:N"),
            ],
        )
        .properties(height=130 + 40 * len(names))
        .add_params(drag, click)
    )


# -- sweep and free results


def sweep_lines(
    rows: Rows, quantity: str, title: str, along: str, along_title: str, dark: bool = False
) -> Chart:
    """One quantity along batch or length, a line a series; the bounds of HDBI where it is HDBI."""
    frame = pl.DataFrame(
        [
            {
                "x": row["x"],
                "value": row["value"],
                "series": row["series"],
                "run": format.short(row["name"]),
                "exact": row["exact"],
            }
            for row in rows
        ],
        infer_schema_length=None,
    )
    series = sorted(set(frame["series"].to_list()))
    colours = dict(zip(series, theme.RUNS * 9, strict=False))
    ordinal = not all(isinstance(row["x"], (int, float)) for row in rows)
    axis = alt.Axis(grid=False, labelLimit=160, labelAngle=0)
    x = (
        alt.X("x:N", title=along_title, axis=axis)
        if ordinal
        else alt.X("x:O", title=along_title, axis=axis, sort="ascending")
    )
    domain = alt.Scale(domain=[0, 1]) if quantity == "hdbi" else alt.Scale(zero=True)
    base = alt.Chart(frame).encode(
        x=x,
        y=alt.Y("value:Q", title=title, scale=domain),
        color=alt.Color(
            "series:N",
            scale=_scale(colours),
            legend=alt.Legend(title=None, orient="top", labelLimit=300),
        ),
    )
    # Through the mean of each place. Words have no order that a line could follow.
    lines = base.mark_line(strokeWidth=2).encode(
        y=alt.Y("mean(value):Q", title=title, scale=domain)
    )
    points = base.mark_point(filled=True, size=90, opacity=1).encode(
        shape=alt.Shape("series:N", sort=series),
        tooltip=[
            alt.Tooltip("run:N"),
            alt.Tooltip("series:N"),
            alt.Tooltip("x:N", title=along_title),
            alt.Tooltip("exact:N", title=title),
        ],
    )
    layers: list[Any] = [points] if ordinal else [lines, points]
    if quantity == "hdbi":
        bounds = pl.DataFrame(
            {
                "bound": [HOST_BOUND_BELOW, DEVICE_BOUND_FROM],
                "text": ["host-bound below", "device-bound from here"],
            }
        )
        rules = (
            alt.Chart(bounds)
            .mark_rule(strokeDash=[4, 4], color=_ink(dark), opacity=0.6)
            .encode(y=alt.Y("bound:Q"))
        )
        text = (
            alt.Chart(bounds)
            .mark_text(align="right", dy=-6, color=_ink(dark))
            .encode(y=alt.Y("bound:Q"), x=alt.XValue("width"), text=alt.Text("text:N"))
        )
        layers += [rules, text]
    return alt.layer(*layers).properties(height=360)


def heat_map(rows: Rows, title: str, x_title: str, y_title: str, dark: bool = False) -> Chart:
    """One quantity over two settings; each cell says its value."""
    frame = pl.DataFrame(
        [{"x": str(r["x"]), "y": str(r["y"]), "value": r["value"], "text": r["text"]} for r in rows]
    )

    def order(key: str) -> list[str]:
        return [
            str(v) for v in sorted({r[key] for r in rows}, key=lambda v: (isinstance(v, str), v))
        ]

    base = alt.Chart(frame).encode(
        x=alt.X("x:O", title=x_title, sort=order("x"), axis=alt.Axis(labelAngle=0, labelLimit=200)),
        # A title on its side needs more height than a row has; the page names the rows.
        y=alt.Y("y:O", title=None, sort=order("y"), axis=alt.Axis(labelLimit=200)),
        tooltip=[
            alt.Tooltip("x:O", title=x_title),
            alt.Tooltip("y:O", title=y_title),
            alt.Tooltip("text:N", title=title),
        ],
    )
    cells = base.mark_rect(stroke=_paper(dark), strokeWidth=2).encode(
        color=alt.Color("value:Q", title=title, scale=alt.Scale(scheme="cividis"))
    )
    middle = (frame["value"].max() + frame["value"].min()) / 2  # pyright: ignore
    text = base.mark_text(fontSize=13).encode(
        text=alt.Text("text:N"),
        color=alt.condition(alt.datum.value > middle, alt.value("#111111"), alt.value("#FFFFFF")),
    )
    return alt.layer(cells, text).properties(height={"step": 44})


def free(rows: pl.DataFrame, x: str, y: str) -> Chart:
    """Columns of a free query's result: bars over words, a line over numbers."""
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
        alt.Chart(frame.head(40))
        .mark_bar(color=theme.RUNS[0])
        .encode(
            y=alt.Y("x:N", title=None, sort=None, axis=_wide_axis(320)),
            x=alt.X("y:Q", title=f"{y} by {x}"),
            tooltip=tips,
        )
        .properties(height={"step": 22})
    )
