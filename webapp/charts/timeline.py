"""What ran when: lanes of rectangles over a window of the trace.

Lanes, top to bottom: the host by account, regions, ops and calls of the main thread, the host by
account while the device was idle, the device's streams, the other threads. A lane is one unit high.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import altair as alt
import polars as pl

from webapp import format, theme
from webapp.charts.parts import Chart, ink, scale, tips, wrapped_legend

LANE_KINDS = {"region": "regions", "op": "ops", "call": "calls", "stream": "stream"}

_COLOURS = {
    **theme.ACCOUNTS,
    "op": "#F2C45A",
    "kernel": theme.DEVICE,
    "copy or memset": theme.DEVICE_COPY,
}
_HOST_ORDER = ("region", "op", "call")
_ACCOUNTS, _IDLE = "accounts", "idle"
_COLUMNS = ("x", "x2", "y", "y2", "colour", "name", "shown", "note", "event")
_LABEL_WIDTH = 150
_MARGIN = 0.12


class Lane(NamedTuple):
    """One lane: the key of its events, and its name on the axis."""

    key: str
    label: str


def lanes(
    profile: pl.DataFrame | None, slices: pl.DataFrame, threads: Mapping[int, str], main: int | None
) -> list[Lane]:
    """Lanes from top to bottom: main thread, device, other threads."""
    found = {(kind, lane) for kind, lane in slices.select("lane_kind", "lane").iter_rows()}
    host = [pair for pair in found if pair[0] != "stream"]
    several = len({lane for _, lane in host}) > 1
    has_profile = profile is not None and not profile.is_empty()

    def place(pair: tuple[str, str]) -> tuple[int, int]:
        kind, lane = pair
        return int(lane), _HOST_ORDER.index(kind)

    def named(pair: tuple[str, str]) -> Lane:
        kind, lane = pair
        suffix = ""
        if several and int(lane) != main:
            suffix = f", {format.short(threads.get(int(lane), lane), 18)}"
        return Lane(f"{kind} {lane}", f"{LANE_KINDS[kind]}{suffix}")

    first = [pair for pair in host if int(pair[1]) == main]
    result = [Lane(_ACCOUNTS, "host by account")] if has_profile else []
    result += [named(pair) for pair in sorted(first, key=place)]
    if has_profile and len(found) > len(host):
        result.append(Lane(_IDLE, "device idle, host in"))
    streams = sorted(lane for kind, lane in found if kind == "stream")
    result += [Lane(f"stream {lane}", f"stream {lane}") for lane in streams]
    return result + [named(pair) for pair in sorted(set(host) - set(first), key=place)]


def busiest(lanes: Sequence[Lane], slices: pl.DataFrame, most: int) -> list[Lane]:
    """The lanes, at most so many: accounts and idle time stay, then the busiest, in their order.

    Half of the places at least are the device's, if it has as many streams.
    """
    if len(lanes) <= most:
        return list(lanes)
    key = pl.format("{} {}", pl.col("lane_kind"), pl.col("lane"))
    busy = dict(slices.group_by(key.alias("key")).agg(pl.col("busy_ns").sum()).iter_rows())
    ranked = sorted(lanes, key=lambda lane: -busy.get(lane.key, 0))
    kept = [lane for lane in lanes if lane.key in (_ACCOUNTS, _IDLE)]
    streams = [lane for lane in ranked if lane.key.startswith("stream ")]
    rest = most - len(kept)
    host = [lane for lane in ranked if lane not in streams and lane not in kept]
    kept += streams[: max(rest // 2, rest - len(host))]
    kept += host[: most - len(kept)]
    return [lane for lane in lanes if lane in kept]


def rectangles(
    profile: pl.DataFrame | None,
    slices: pl.DataFrame,
    keys: Sequence[str],
    origin_ns: int,
    divisor: float,
) -> pl.DataFrame:
    """Rectangles: x in time units from the trace's start, y in lanes from the top."""
    place = {key: float(i) for i, key in enumerate(keys)}
    parts: list[pl.DataFrame] = []
    if not slices.is_empty():
        parts.append(_of_slices(slices, place, origin_ns, divisor))
    if profile is not None and not profile.is_empty():
        for lane, value in ((_ACCOUNTS, "ns"), (_IDLE, "exposed_ns")):
            if lane in place:
                parts.append(
                    _of_accounts(profile, value, place[lane], lane == _IDLE, origin_ns, divisor)
                )
    if not parts:
        return pl.DataFrame(schema=dict.fromkeys(_COLUMNS, pl.String))
    return pl.concat(parts)


def _span(origin_ns: int, divisor: float) -> tuple[pl.Expr, pl.Expr]:
    """Columns x and x2, from start and end."""
    return (
        ((pl.col("start_ns") - origin_ns) / divisor).alias("x"),
        ((pl.col("end_ns") - origin_ns) / divisor).alias("x2"),
    )


def _of_slices(
    slices: pl.DataFrame, place: Mapping[str, float], origin_ns: int, divisor: float
) -> pl.DataFrame:
    """One rectangle a slice; those of lanes that are not shown are left out."""
    key = pl.col("lane_kind") + " " + pl.col("lane")
    top = key.replace_strict(place, default=None, return_dtype=pl.Float64)
    kind = pl.col("lane_kind")
    colour = (
        pl.when(kind.is_in(["op", "region"]))
        .then(kind)
        .when(kind == "call")
        .then(pl.col("detail"))
        .when(pl.col("detail").is_in(["memcpy", "memset"]))
        .then(pl.lit("copy or memset"))
        .otherwise(pl.lit("kernel"))
    )
    note = (
        pl.when(pl.col("events") == 1)
        .then(pl.lit("one event"))
        .otherwise(pl.format("{} short events, the longest named", pl.col("events")))
    )
    return (
        slices.with_columns(top=top)
        .filter(pl.col("top").is_not_null())
        .with_columns(
            *_span(origin_ns, divisor),
            (pl.col("top") + _MARGIN).alias("y"),
            (pl.col("top") + (1 - _MARGIN)).alias("y2"),
            colour.alias("colour"),
            pl.col("name").fill_null("").str.slice(0, 300).alias("name"),
            pl.col("busy_ns").map_elements(format.duration, pl.String).alias("shown"),
            note.alias("note"),
            pl.format("{}:{}", kind, pl.col("id")).alias("event"),
        )
        .select(_COLUMNS)
    )


def _of_accounts(
    profile: pl.DataFrame, value: str, top: float, idle: bool, origin_ns: int, divisor: float
) -> pl.DataFrame:
    """Each column's accounts stacked from the lane's floor, by their share of the column.

    Args:
        value: "ns", or "exposed_ns" for the time in which the device was idle.
    """
    width = pl.col("end_ns") - pl.col("start_ns")
    stacked = (
        profile.filter(pl.col(value) > 0)
        .with_columns((pl.col(value) / width).alias("share"))
        .with_columns(pl.col("share").cum_sum().over("column").alias("upto"))
    )
    note = "{} % of this stretch" + (", device idle" if idle else "")
    drawn = stacked.with_columns(
        *_span(origin_ns, divisor),
        (top + 0.96 - 0.92 * pl.col("upto")).alias("y"),
        (top + 0.96 - 0.92 * (pl.col("upto") - pl.col("share"))).alias("y2"),
        pl.col("account").alias("colour"),
        pl.col("account").alias("name"),
        pl.col(value).map_elements(format.duration, pl.String).alias("shown"),
        pl.format(note, (pl.col("share") * 100).round(0).cast(pl.Int64)).alias("note"),
        pl.lit("").alias("event"),
    )
    return _joined(drawn.select(_COLUMNS))


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
    alone = (
        pl.when(pl.len() == 1).then(pl.col("shown").first()).otherwise(pl.lit("all of it")).first()
    )
    return (
        rows.with_columns((~same).cum_sum().alias("group"))
        .group_by("group", maintain_order=True)
        .agg(
            pl.col("x").first(),
            pl.col("x2").last(),
            pl.col("y", "y2", "colour", "name").first(),
            alone.alias("shown"),
            pl.col("note", "event").first(),
        )
        .drop("group")
    )


def draw(
    rows: pl.DataFrame,
    labels: Sequence[str],
    window: tuple[float, float],
    unit: str,
    chosen: str = "",
    dark: bool = False,
) -> Chart:
    """Rectangles in lanes over a window of time; a drag selects a part of it, a click an event."""
    colours = {c: v for c, v in _COLOURS.items() if c in set(rows["colour"])}
    is_chosen = alt.datum.event == (chosen or "-")
    legend = wrapped_legend(symbolType="square")
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
            y=alt.Y(
                "y:Q",
                title=None,
                scale=alt.Scale(domain=[len(labels), 0], nice=False),
                axis=_lane_axis(labels),
            ),
            y2=alt.Y2("y2:Q"),
            color=alt.Color("colour:N", scale=scale(colours), legend=legend),
            stroke=alt.condition(is_chosen, alt.value(ink(dark)), alt.value(None)),
            strokeWidth=alt.condition(is_chosen, alt.value(2.5), alt.value(0)),
            tooltip=tips({"name": None, "colour": "kind", "shown": "time", "note": None}),
        )
        .properties(height=130 + 40 * len(labels))
        .add_params(
            alt.selection_interval(name="window", encodings=["x"]),
            alt.selection_point(name="event", fields=["event"], on="click", empty=False),
        )
    )


def _lane_axis(labels: Sequence[str]) -> alt.Axis:
    """The lanes' names, each in the middle of its lane."""
    text = "''"
    for i, label in reversed(list(enumerate(labels))):
        quoted = label.replace("\\", "\\\\").replace("'", "\\'")
        text = f"datum.value - 0.5 == {i} ? '{quoted}' : {text}"
    return alt.Axis(
        values=[i + 0.5 for i in range(len(labels))],
        labelExpr=text,
        ticks=False,
        domain=False,
        grid=False,
        labelLimit=_LABEL_WIDTH,
        labelOverlap=False,
        minExtent=_LABEL_WIDTH,
    )
