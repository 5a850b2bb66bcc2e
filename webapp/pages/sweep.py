"""How does one quantity change over batch, length, model, mode and host?"""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise
from typing import Any

import polars as pl
import streamlit as st

from webapp import address, charts, data, format, frame

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
PER_STEP = ("orchestration_ns", "device_active_ns", "launches")


def value_of(row: dict[str, Any], quantity: str) -> float | None:
    """The quantity in its unit."""
    value = row[quantity]
    if value is None:
        return None
    if quantity in PER_STEP:
        value = value / max(row["steps"] or 1, 1)
    return value / 1e6 if quantity.endswith("_ns") else float(value)


def crossovers(points: list[dict[str, Any]], along: str) -> list[str]:
    """Between which settings each series goes from host-bound to device-bound, or back."""
    found: list[str] = []
    series: dict[str, dict[Any, list[float]]] = defaultdict(lambda: defaultdict(list))
    for point in points:
        series[point["series"]][point["x"]].append(point["value"])
    for name, at in series.items():
        means = [(x, sum(v) / len(v)) for x, v in sorted(at.items())]
        for (x1, a), (x2, b) in pairwise(means):
            for bound, side in (
                (charts.HOST_BOUND_BELOW, "stops being host-bound"),
                (charts.DEVICE_BOUND_FROM, "becomes device-bound"),
            ):
                if a < bound <= b:
                    share = (bound - a) / (b - a)
                    near = x1 + share * (x2 - x1)
                    found.append(
                        f"{format.plain(name)} {side} between {along} {x1:g} and {x2:g} "
                        f"(near {near:.3g}, by a straight line)"
                    )
    return found


def main() -> None:
    """The page."""
    if data.runs().is_empty():
        frame.no_runs()
        return
    runs = data.ask("runs_with_latency")
    places = st.columns(4)
    quantity = address.select(
        "Quantity", list(QUANTITIES), "quantity", show=lambda q: QUANTITIES[q], place=places[0]
    )
    along = address.select("Along", list(AXES), "along", show=lambda a: AXES[a], place=places[1])
    others = [axis for axis in AXES if axis != along]
    across = address.select(
        "Heat map against",
        others,
        "across",
        default=others[0],
        show=lambda a: AXES[a],
        place=places[2],
    )
    search = address.text("Runs with", "q", placeholder="words of a name", place=places[3])
    rows = [
        row
        for row in runs.to_dicts()
        if all(word in (row["name"] or "").lower() for word in search.lower().split())
    ]
    splitting = [axis for axis in others if len({row[axis] for row in rows}) > 1]
    points: list[dict[str, Any]] = []
    missing = 0
    for row in rows:
        value = value_of(row, quantity)
        if value is None or row[along] is None:
            missing += 1
            continue
        series = [
            f"{AXES[axis].split(' ')[0]} {row[axis]}"
            if axis in ("batch_size", "prompt_len")
            else str(row[axis] or "unknown")
            for axis in splitting
        ]
        points.append(
            {
                "x": row[along],
                "y": row[across],
                "value": value,
                "series": format.short(", ".join(series) or "all runs", 60),
                "name": row["name"],
                "run_id": row["run_id"],
                "exact": f"{value:,.6g}",
            }
        )
    if missing:
        st.caption(
            f"{missing} of {len(rows)} runs do not tell {QUANTITIES[quantity]} or {AXES[along]}."
        )
    if not points:
        st.info("No run tells this quantity; choose another, or other runs.")
        return
    title = QUANTITIES[quantity]
    lines(points, quantity, title, along)
    cells: dict[tuple[Any, Any], list[float]] = defaultdict(list)
    for point in points:
        if point["y"] is not None:
            cells[point["x"], point["y"]].append(point["value"])
    if cells:
        st.subheader("Heat map", anchor=False)
        st.caption(
            f"Each cell is the mean of its runs: {AXES[along]} from left to right, {AXES[across]} "
            "downwards."
        )
        grid = [
            {
                "x": x,
                "y": y,
                "value": sum(v) / len(v),
                "text": f"{sum(v) / len(v):.3g}",
                "runs": len(v),
            }
            for (x, y), v in cells.items()
        ]
        frame.chart(
            charts.heat_map(grid, title, AXES[along], AXES[across], frame.is_dark()),
            "heat-map",
            f"Heat map of {title} over {AXES[along]} and {AXES[across]}",
            pl.DataFrame(
                [{**cell, "x": str(cell["x"]), "y": str(cell["y"])} for cell in grid],
                infer_schema_length=None,
            ),
        )


def lines(points: list[dict[str, Any]], quantity: str, title: str, along: str) -> None:
    """The quantity along one setting, and where the bound changes."""
    frame.chart(
        charts.sweep_lines(points, quantity, title, along, AXES[along], frame.is_dark()),
        f"sweep-{quantity}",
        f"{title} along {AXES[along]}, a line a series",
        pl.DataFrame(
            [{**point, "x": str(point["x"]), "y": str(point["y"])} for point in points],
            infer_schema_length=None,
        ),
    )
    if quantity == "hdbi" and along in ("batch_size", "prompt_len"):
        found = crossovers(points, AXES[along].split(" ")[0])
        for text in found:
            st.markdown(f"- {text}")
        if not found:
            st.caption("No series crosses a bound here.")


with frame.page("Sweep", "How does one quantity change with batch, length, model, mode and host?"):
    main()
