"""How does one quantity change over batch, length, model, mode and host?"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import pairwise
from typing import Any, NamedTuple

import polars as pl
import streamlit as st

from analyzer.reports.bands import BANDS
from webapp import components, data, format, session, url_state
from webapp.charts import sweep
from webapp.charts.sweep import Cell, Point, Setting

QUANTITIES = {
    "hdbi": "HDBI",
    "orchestration_ns": "T_Orchestration a step (ms)",
    "device_active_ns": "device time a step (ms)",
    "step_elapsed_ns": "step p50, profiled (ms)",
    "ttft_ns": "TTFT p50, un-profiled (ms)",
    "tpot_ns": "TPOT p50, un-profiled (ms)",
    "kernels_per_token": "kernels per token",
    "launches": "launches a step",
}
AXES = {
    "batch_size": "batch (sequences)",
    "prompt_len": "length (tokens)",
    "model": "model",
    "mode": "mode",
    "host": "host",
}
NUMERIC = ("batch_size", "prompt_len")
PER_STEP = ("orchestration_ns", "device_active_ns", "launches")
CROSSINGS = (
    (BANDS[0].below, f"stops being {BANDS[0].name}"),
    (BANDS[-1].least, f"becomes {BANDS[-1].name}"),
)


class Choice(NamedTuple):
    """What the URL asks for: a quantity, the axes, words of the runs' names."""

    quantity: str
    along: str
    across: str
    search: str

    @property
    def title(self) -> str:
        return QUANTITIES[self.quantity]


def choose() -> Choice:
    """The controls above the charts."""
    places = st.columns(4)
    quantity = url_state.select(
        "Quantity", list(QUANTITIES), "quantity", show=lambda q: QUANTITIES[q], place=places[0]
    )
    along = url_state.select("Along", list(AXES), "along", show=lambda a: AXES[a], place=places[1])
    others = [axis for axis in AXES if axis != along]
    across = url_state.select(
        "Heat map against",
        others,
        "across",
        default=others[0],
        show=lambda a: AXES[a],
        place=places[2],
    )
    search = url_state.text("Runs with", "q", placeholder="words of a name", place=places[3])
    return Choice(quantity, along, across, search)


# -- points


def points_of(rows: Sequence[Mapping[str, Any]], choice: Choice) -> list[Point]:
    """The runs that tell the quantity and the setting; a series for each mix of the others."""
    varying = [
        axis for axis in AXES if axis != choice.along and len({row[axis] for row in rows}) > 1
    ]
    found: list[Point] = []
    for row in rows:
        value = value_of(row, choice.quantity)
        if value is None or row[choice.along] is None:
            continue
        series = ", ".join(setting_text(row, axis) for axis in varying)
        found.append(
            Point(
                x=row[choice.along],
                y=row[choice.across],
                value=value,
                series=format.short(series or "all runs", 60),
                name=row["name"],
                run_id=row["run_id"],
                exact=f"{value:,.6g}",
            )
        )
    return found


def value_of(row: Mapping[str, Any], quantity: str) -> float | None:
    """The quantity in its unit."""
    value = row[quantity]
    if value is None:
        return None
    if quantity in PER_STEP:
        value = value / max(row["steps"] or 1, 1)
    return value / 1e6 if quantity.endswith("_ns") else float(value)


def setting_text(row: Mapping[str, Any], axis: str) -> str:
    """A setting of a run, numbers with their name."""
    if axis in NUMERIC:
        return f"{AXES[axis].split(' ')[0]} {row[axis]}"
    return str(row[axis] or "unknown")


# -- along one setting


def lines(points: Sequence[Point], choice: Choice) -> None:
    """The quantity along one setting, and where the bound changes."""
    axis = AXES[choice.along]
    components.chart(
        sweep.lines(points, choice.quantity, choice.title, axis, session.is_dark()),
        f"sweep-{choice.quantity}",
        f"{choice.title} along {axis}, a line a series",
        with_text_settings(points),
    )
    if choice.quantity == "hdbi" and choice.along in NUMERIC:
        found = crossings(points, axis.split(" ")[0])
        for text in found:
            st.markdown(f"- {text}")
        if not found:
            st.caption("No series crosses a bound here.")


def crossings(points: Sequence[Point], along: str) -> list[str]:
    """Between which settings each series stops being host-bound or becomes device-bound."""
    series: dict[str, dict[float, list[float]]] = defaultdict(lambda: defaultdict(list))
    for point in points:
        series[point.series][float(point.x)].append(point.value)
    found: list[str] = []
    for name, values in series.items():
        means = [(x, sum(v) / len(v)) for x, v in sorted(values.items())]
        for (x1, before), (x2, after) in pairwise(means):
            for bound, side in CROSSINGS:
                if before < bound <= after:
                    near = x1 + (bound - before) / (after - before) * (x2 - x1)
                    found.append(
                        f"{format.plain(name)} {side} between {along} {x1:g} and {x2:g} "
                        f"(near {near:.3g}, by a straight line)"
                    )
    return found


# -- over two settings


def heat_map(points: Sequence[Point], choice: Choice) -> None:
    """The mean of the quantity over two settings."""
    cells = cells_of(points)
    if not cells:
        return
    along, across = AXES[choice.along], AXES[choice.across]
    st.subheader("Heat map", anchor=False)
    st.caption(
        f"Each cell is the mean of its runs: {along} from left to right, {across} downwards."
    )
    components.chart(
        sweep.heat_map(cells, choice.title, along, across, session.is_dark()),
        "heat-map",
        f"Heat map of {choice.title} over {along} and {across}",
        with_text_settings(cells),
    )


def cells_of(points: Sequence[Point]) -> list[Cell]:
    """The mean of each pair of settings."""
    values: dict[tuple[Setting, Setting], list[float]] = defaultdict(list)
    for point in points:
        if point.y is not None:
            values[point.x, point.y].append(point.value)
    means = {settings: sum(v) / len(v) for settings, v in values.items()}
    return [Cell(x, y, mean, f"{mean:.3g}", len(values[x, y])) for (x, y), mean in means.items()]


def with_text_settings(rows: Sequence[Point] | Sequence[Cell]) -> pl.DataFrame:
    """Rows of a file; settings as text, as numbers and words may be mixed."""
    return pl.DataFrame(
        [{**asdict(row), "x": str(row.x), "y": str(row.y)} for row in rows],
        infer_schema_length=None,
    )


def main() -> None:
    """The page."""
    if data.runs().is_empty():
        components.no_runs()
        return
    runs = data.runs_with_latency()
    choice = choose()
    words = choice.search.lower().split()
    rows = [
        row for row in runs.to_dicts() if all(word in (row["name"] or "").lower() for word in words)
    ]
    points = points_of(rows, choice)
    if missing := len(rows) - len(points):
        st.caption(
            f"{missing} of {len(rows)} runs do not tell {choice.title} or {AXES[choice.along]}."
        )
    if not points:
        st.info("No run tells this quantity; choose another, or other runs.")
        return
    lines(points, choice)
    heat_map(points, choice)


with components.page(
    "Sweep", "How does one quantity change with batch, length, model, mode and host?"
):
    main()
