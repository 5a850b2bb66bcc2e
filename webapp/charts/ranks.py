"""Ranks: whom each waited for and why, and the collectives of a step on one clock."""

from __future__ import annotations

from collections.abc import Sequence

import altair as alt
import polars as pl

from analyzer.queries.ranks import StepCollective
from analyzer.reports.ranks import RankCharge
from webapp import format, theme
from webapp.charts.parts import Chart, ink, scale, stacked_bars, tips, wide_axis, wrapped_legend


def charges(rows: Sequence[RankCharge], dark: bool = False) -> Chart:
    """What each rank waited for each other, by what that one did meanwhile."""
    name, divisor = format.unit([row.ns for row in rows])
    places = list(theme.LATE)
    frame = pl.DataFrame(
        [
            {
                "pair": f"rank {row.rank} for rank {row.late_rank}",
                "account": row.account,
                "place": places.index(row.account),
                "value": row.ns / divisor,
                "shown": format.duration(row.ns),
                "exact": format.exact(row.ns),
                "share": format.share(row.share),
            }
            for row in rows
        ]
    )
    used = {account: theme.LATE[account] for account in places if account in {*frame["account"]}}
    titles = {"pair": "waits", "account": "the late rank's", "shown": "time"}
    return stacked_bars(
        frame,
        f"waited in collectives of all steps ({name})",
        dark,
        y=alt.Y("pair:N", title=None, axis=wide_axis()),
        color=alt.Color("account:N", scale=scale(used), legend=wrapped_legend()),
        tooltip=tips({**titles, "share": "of the rank's waits", "exact": None}),
    ).properties(height={"step": 30})


def one_clock(rows: Sequence[StepCollective], dark: bool = False) -> Chart:
    """The collectives of a step, a line a rank: waiting pale, transfer solid, joined at their ends;
    the rank that came last is marked.
    """
    name, divisor = format.unit([row.start_ns + row.dur_ns for row in rows])
    parts: list[dict[str, object]] = []
    for row in rows:
        middle, end = row.start_ns + row.wait_ns, row.start_ns + row.dur_ns
        for part, start, stop in (("waits", row.start_ns, middle), ("transfers", middle, end)):
            if stop > start:
                parts.append(
                    {
                        "rank": f"rank {row.rank}",
                        "part": part,
                        "from": start / divisor,
                        "to": stop / divisor,
                        "collective": format.short(row.collective, 40),
                        "shown": format.duration(stop - start),
                        "late": f"rank {row.late_rank}",
                    }
                )
    last: dict[int, StepCollective] = {
        row.collective_id: row for row in rows if row.rank == row.late_rank
    }
    marks = [{"rank": f"rank {r.rank}", "from": r.start_ns / divisor} for r in last.values()]
    ends = [{"to": (r.start_ns + r.dur_ns) / divisor} for r in last.values()]
    x = alt.X("from:Q", title=f"from the step's start, on the first rank's clock ({name})")
    y = alt.Y("rank:N", title=None, axis=wide_axis())
    colours = {"waits": theme.ACCOUNTS["wait"], "transfers": theme.DEVICE}
    bars = (
        alt.Chart(pl.DataFrame(parts))
        .mark_bar()
        .encode(
            x=x,
            x2="to:Q",
            y=y,
            color=alt.Color("part:N", scale=scale(colours), legend=wrapped_legend()),
            tooltip=tips({"rank": None, "collective": None, "part": None, "shown": "time",
                          "late": "began last"}),
        )
    )  # fmt: skip
    joined = (
        alt.Chart(pl.DataFrame(ends))
        .mark_rule(color=ink(dark), opacity=0.4)
        .encode(x=alt.X("to:Q"))
    )
    late = (
        alt.Chart(pl.DataFrame(marks))
        .mark_point(shape="triangle-down", filled=True, size=60, color=theme.ACCOUNTS["library"])
        .encode(x=alt.X("from:Q"), y=y)
    )
    return alt.layer(joined, bars, late).properties(height={"step": 34})
