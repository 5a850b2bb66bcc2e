"""Which runs are there, and which of them wait on the host?"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import date
from typing import Any, cast

import polars as pl
import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from analyzer.reports.bands import BANDS, UNKNOWN, reading
from webapp import browser, components, data, downloads, format, session, url_state
from webapp.browser import Cell, Column, Row
from webapp.charts import balance

MOST_DRAWN = 400
FILTERS = {
    "model": "Model",
    "mode": "Mode",
    "host": "Host",
    "gpu": "GPU",
    "batch_size": "Batch",
    "prompt_len": "Length",
}
SEARCHED = ("run_id", "name", "model", "mode", "host", "gpu", "attention", "dtype")


# -- filter


def filtered(runs: pl.DataFrame) -> pl.DataFrame:
    """Runs that the URL asks for."""
    row = st.container(horizontal=True, vertical_alignment="bottom")
    search = url_state.text(
        "Search", "q", placeholder="name, model, host or GPU; several words: all", place=row
    )
    runs = of_bands(runs, row)
    more = row.popover("More filters", icon=":material/filter_list:", width=170)
    for column, title in FILTERS.items():
        runs = of_values(runs, column, title, more)
    runs = of_phases(runs, more)
    recorded = pl.col("created_at").str.slice(0, 10)
    if since := asked_day("Recorded since", "since", more):
        runs = runs.filter(recorded >= since)
    if until := asked_day("Recorded until", "until", more):
        runs = runs.filter(recorded <= until)
    return with_words(runs, search)


def of_bands(runs: pl.DataFrame, place: DeltaGenerator) -> pl.DataFrame:
    """Runs in one of the chosen bands of HDBI."""
    options = [*(band.name for band in BANDS), UNKNOWN]
    chosen = url_state.several("Bound", options, "bound", place=place, placeholder="all")
    keep = [not chosen or reading(value) in chosen for value in runs["hdbi"]]
    return runs.filter(pl.Series(keep, dtype=pl.Boolean))


def of_values(runs: pl.DataFrame, column: str, title: str, place: DeltaGenerator) -> pl.DataFrame:
    """Runs with one of the chosen values of a column."""
    known: list[Any] = runs[column].drop_nulls().unique().sort().to_list()
    options = [str(value) for value in known]
    chosen = url_state.several(title, options, column, place=place, placeholder="all")
    return runs.filter(pl.col(column).cast(pl.String).is_in(chosen)) if chosen else runs


def of_phases(runs: pl.DataFrame, place: DeltaGenerator) -> pl.DataFrame:
    """Runs with one of the chosen phases."""
    phases = [phase_names(text) for text in runs["phases"]]
    options = sorted({name for names in phases for name in names})
    chosen = url_state.several("Phase", options, "phase", place=place, placeholder="all")
    if not chosen:
        return runs
    keep = [not set(chosen).isdisjoint(names) for names in phases]
    return runs.filter(pl.Series(keep, dtype=pl.Boolean))


def phase_names(phases: str | None) -> list[str]:
    """Phase names of the manifest's plan."""
    entries: list[Any] = json.loads(phases) if phases else []
    known = [cast("dict[str, Any]", entry) for entry in entries if isinstance(entry, dict)]
    return [str(entry.get("phase")) for entry in known]


def asked_day(title: str, name: str, place: DeltaGenerator) -> str | None:
    """The date of a field in ISO form; None where it is empty, or no date, which is said."""
    text = url_state.text(title, name, place=place, placeholder="YYYY-MM-DD")
    if not text:
        return None
    try:
        return date.fromisoformat(text.strip()).isoformat()
    except ValueError:
        place.warning("Write the date as 2026-01-31.")
        return None


def with_words(runs: pl.DataFrame, search: str) -> pl.DataFrame:
    """Runs that hold every word in one of their texts."""
    columns = [pl.col(c).cast(pl.String).fill_null("").str.to_lowercase() for c in SEARCHED]
    text = pl.concat_str(columns, separator=" ")
    for word in search.lower().split():
        runs = runs.filter(text.str.contains(word, literal=True))
    return runs


# -- show


COLUMNS = (
    Column("run", "run", "Its name: opens it", number=False),
    Column("idle", "GPU idle", "Share of the steps' host time in which the device was idle"),
    Column("hdbi", "HDBI", "Host-Device Balance Index: 0 waits on the host, 1 on the device"),
    Column("bound", "bound", "HDBI in words", number=False),
    Column("step", "step p50 (ms)", "Median step, profiled: no latency"),
    Column("mode", "mode", "foreign: a trace that the collector did not record", number=False),
    Column("model", "model", number=False),
    Column("batch", "batch", "Sequences"),
    Column("length", "length", "Tokens of a prompt"),
    Column("gpu", "GPU", number=False),
    Column("host", "host", number=False),
    Column("recorded", "recorded", "When (loaded, where the recording does not say)", number=False),
    Column("warnings", "warnings", "Findings that one should know; the Run page has them"),
    Column("steps", "steps"),
    Column("kernels", "kernels", "Of the steps"),
)


def cells(run: Mapping[str, Any]) -> list[Cell]:
    """What a row of the table says."""
    step_ns = run["step_elapsed_ns"]
    step_ms = format.digits(None if step_ns is None else step_ns / 1e6)
    when = run["created_at"] or run["ingested_at"]
    return [
        Cell(
            run["name"],
            run["name"].lower(),
            browser.address("run", run=run["run_id"]),
            f"{run['name']} · {run['run_id'][:12]}",
        ),
        Cell(format.share(run["idle_share"]), run["idle_share"], part=run["idle_share"]),
        Cell(format.index(run["hdbi"]), run["hdbi"], tip=str(run["hdbi"] or "")),
        Cell(reading(run["hdbi"]), None if run["hdbi"] is None else reading(run["hdbi"])),
        Cell(format.number(step_ms), step_ms, tip=format.exact(step_ns)),
        *(Cell(format.text(run[key]), run[key]) for key in ("mode", "model")),
        *(Cell(format.count(run[key]), run[key]) for key in ("batch_size", "prompt_len")),
        *(Cell(format.text(run[key]), run[key]) for key in ("gpu", "host")),
        Cell(when[:16].replace("T", " "), when),
        *(Cell(format.count(run[key]), run[key]) for key in ("warnings", "steps", "kernels")),
    ]


def run_table(runs: pl.DataFrame) -> list[str]:
    """The runs as a table; returns the ids of the chosen ones, shown or not."""
    rows = [Row(run["run_id"], cells(run)) for run in runs.to_dicts()]
    asked = [part for part in url_state.get("picked").split(",") if part]
    known = [row[0] for row in data.runs().select("run_id").iter_rows()]
    picked = [run_id for part in asked for run_id in known if run_id.startswith(part)]
    state = browser.table(
        browser.Table(
            "Runs of the store: choose some to compare, a name opens its run",
            COLUMNS,
            rows,
            pick=True,
            picked=picked,
            sort=url_state.get("sort"),
        ),
        "runs table",
    )
    chosen = [run_id for run_id in state.picked if run_id in known]
    url_state.settle(picked=",".join(run_id[:8] for run_id in chosen), sort=state.sort)
    return chosen


def open_or_compare(runs: pl.DataFrame, chosen: Sequence[str]) -> None:
    """To the page of one chosen run, or of several."""
    with st.container(horizontal=True, vertical_alignment="center"):
        hidden = len(set(chosen) - set(runs["run_id"]))
        st.markdown(
            f"**{len(runs)}** of {len(data.runs())} runs, {len(chosen)} chosen"
            + (f", {hidden} of them not shown" if hidden else "")
        )
        components.link(
            st, "pages/run.py", "Open", ":material/speed:", {"run": chosen[0] if chosen else ""},
            disabled=len(chosen) != 1, help="One run: is it host-bound?",
        )  # fmt: skip
        components.link(
            st, "pages/compare.py", "Compare", ":material/compare:", {"runs": ",".join(chosen)},
            disabled=len(chosen) < 2, help="Two runs or more; the first is the base",
        )  # fmt: skip


def hdbi_strip(runs: pl.DataFrame) -> None:
    """Every run on the scale of HDBI."""
    st.subheader("How host-bound is each?", anchor=False)
    drawn = runs.filter(pl.col("hdbi").is_not_null()).head(MOST_DRAWN)
    if drawn.is_empty():
        st.info("HDBI is unknown for these runs: no launch floor, or no kernels.")
        return
    listed = data.listed_runs()
    components.chart(
        balance.hdbi_strip([listed[i] for i in drawn["run_id"]], session.is_dark()),
        "hdbi-of-runs",
        f"HDBI of {len(drawn)} runs on a scale from 0, host-bound, to 1, device-bound, by mode",
        drawn.select("run_id", "name", "mode", "hdbi", "step_elapsed_ns"),
        about=f"{len(drawn)} runs",
    )


def main() -> None:
    """The page."""
    everything = data.runs()
    if everything.is_empty():
        components.no_runs()
        return
    runs = filtered(everything)
    if runs.is_empty():
        st.info("No run is like that; take a filter away.")
        return
    above = st.container()
    chosen = run_table(runs)
    with above:
        open_or_compare(runs, chosen)
    downloads.offer("runs", runs)
    hdbi_strip(runs)


with components.page("Runs", "Which recordings are there, and which of them wait on the host?"):
    main()
