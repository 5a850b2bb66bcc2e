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
    "idle_share": "GPU idle (share of the host's time)",
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
# What makes two runs the same configuration, so that their mean means something.
CONFIGURATION = (
    "model", "mode", "batch_size", "prompt_len", "new_tokens", "dtype", "attention", "gpu", "host",
)  # fmt: skip
UNITS = {"batch_size": "batch {}", "prompt_len": "length {}", "new_tokens": "{} new tokens"}
ALL_STEPS = "all steps"
# Of a phase's steps; the others are of requests.
OF_PHASES = (
    "hdbi", "idle_share", "orchestration_ns", "device_active_ns", "step_elapsed_ns", "launches",
)  # fmt: skip
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
    phase: str
    search: str

    @property
    def title(self) -> str:
        return QUANTITIES[self.quantity]


def choose() -> Choice:
    """The controls above the charts."""
    places = st.columns(5)
    quantity = url_state.select(
        "Quantity", list(QUANTITIES), "quantity", show=lambda q: QUANTITIES[q], place=places[0]
    )
    along = url_state.select(
        "Along", list(AXES), "along", show=lambda a: AXES[a], place=places[1], clears=("across",)
    )
    others = [axis for axis in AXES if axis != along]
    across = url_state.select(
        "Heat map against",
        others,
        "across",
        default=others[0],
        show=lambda a: AXES[a],
        place=places[2],
    )
    phases = sorted(set(data.run_phases()["phase"].to_list()))
    phase = url_state.select("Steps", [ALL_STEPS, *phases], "phase", place=places[3])
    search = url_state.text("Runs with", "q", placeholder="words of a name", place=places[4])
    return Choice(quantity, along, across, phase, search)


def rows_of(choice: Choice) -> list[dict[str, Any]]:
    """The runs that the URL asks for, with the figures of the chosen steps."""
    runs = data.runs_with_latency()
    if choice.phase != ALL_STEPS and choice.quantity in OF_PHASES:
        phases = data.run_phases().filter(pl.col("phase") == choice.phase)
        runs = runs.drop(*OF_PHASES, "steps").join(
            phases.select("run_id", "steps", *OF_PHASES), on="run_id", maintain_order="left"
        )
    words = choice.search.lower().split()
    return [
        row for row in runs.to_dicts() if all(word in (row["name"] or "").lower() for word in words)
    ]


# -- points


def points_of(rows: Sequence[Mapping[str, Any]], choice: Choice) -> list[Point]:
    """The runs that tell the quantity and the setting; a series for each configuration."""
    varying = [
        setting
        for setting in CONFIGURATION
        if setting != choice.along and len({row[setting] for row in rows}) > 1
    ]
    found: list[Point] = []
    for row in rows:
        value = value_of(row, choice.quantity)
        if value is None or row[choice.along] is None:
            continue
        known = [UNITS.get(s, "{}").format(row[s]) for s in varying if row[s] is not None]
        # Two traces that do not say what they ran are not known to be alike.
        series = known if row["model"] is not None else [*known, f"{row['name']}"]
        found.append(
            Point(
                x=row[choice.along],
                y=row[choice.across],
                value=value,
                series=", ".join(series) or "all runs",
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


# -- along one setting


def lines(points: Sequence[Point], choice: Choice) -> None:
    """The quantity along one setting, and where the bound changes."""
    axis = AXES[choice.along]
    components.chart(
        sweep.lines(points, choice.quantity, choice.title, axis, session.is_dark()),
        f"sweep-{choice.quantity}",
        f"{choice.title} along {axis}, a line a series",
        with_text_settings(points),
        about=f"{choice.phase}, {len(points)} runs",
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
                    who = format.plain(format.short(name, 90))
                    found.append(
                        f"{who} {side} between {along} {x1:g} and {x2:g} "
                        f"(near {near:.3g}, by a straight line)"
                    )
    return found


# -- over two settings


def heat_map(points: Sequence[Point], choice: Choice) -> None:
    """The quantity over two settings."""
    cells = cells_of(points)
    if not cells:
        return
    along, across = AXES[choice.along], AXES[choice.across]
    st.subheader("Heat map", anchor=False)
    st.caption(
        f"{along} from left to right, {across} downwards. A cell has a value where its runs are "
        "one configuration, the mean if it was repeated; where they are several, it says between "
        "which values they lie."
    )
    components.chart(
        sweep.heat_map(cells, choice.title, along, across, session.is_dark()),
        "heat-map",
        f"Heat map of {choice.title} over {along} and {across}",
        with_text_settings(cells),
        about=f"{choice.phase}, {len(points)} runs",
    )


def cells_of(points: Sequence[Point]) -> list[Cell]:
    """The runs of each pair of settings: their mean if they are one configuration."""
    groups: dict[tuple[Setting, Setting], list[Point]] = defaultdict(list)
    for point in points:
        if point.y is not None:
            groups[point.x, point.y].append(point)
    cells: list[Cell] = []
    for (x, y), own in groups.items():
        values = [point.value for point in own]
        configurations = len({point.series for point in own})
        mean = sum(values) / len(values) if configurations == 1 else None
        text = f"{len(own)} runs, {min(values):.3g} to {max(values):.3g}"
        if mean is not None:
            text = f"{mean:.3g}" if len(own) == 1 else f"{mean:.3g} of {len(own)}"
        cells.append(Cell(x, y, mean, text, len(own), configurations))
    return cells


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
    choice = choose()
    rows = rows_of(choice)
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
