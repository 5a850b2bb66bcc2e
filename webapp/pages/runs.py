"""Which runs are there, and which of them wait on the host?"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import date
from typing import Any, cast

import polars as pl
import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from analyzer.ingest import Ingested
from analyzer.reports.bands import reading
from webapp import components, data, format, session, uploads, url_state
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


# -- load


def upload() -> None:
    """Load dropped files into the store."""
    with st.expander("Load a trace or a run directory", icon=":material/upload:"):
        with st.form("upload", clear_on_submit=True, border=False):
            files = st.file_uploader(
                "A trace (PyTorch, Nsight Systems, ROCm, JAX), or all files of a run directory",
                accept_multiple_files=True,
            )
            sent = st.form_submit_button("Load into the store", icon=":material/upload:")
        if not sent:
            return
        if not files:
            st.warning("Choose a file first.")
            return
        with st.spinner("Reading …"):
            results = uploads.load([(file.name, file) for file in files])
        if not results:
            st.info("Kept, and still being converted: the Jobs page shows when it is done.")
        for result in results:
            show_result(result)


def show_result(result: Ingested) -> None:
    """What became of one uploaded run."""
    name = format.plain(result.name)
    if result.error:
        st.error(format.plain(result.error))
    elif result.state == "already stored":
        st.info(f"{name} is in the store already.")
    else:
        st.success(f"{name} is in the store: {format.count(result.kernels)} kernels.")


# -- filter


def filtered(runs: pl.DataFrame) -> pl.DataFrame:
    """Runs that the URL asks for."""
    search = url_state.text(
        "Search", "q", placeholder="part of a name, model, host or GPU; several words: all of them"
    )
    for (column, title), place in zip(FILTERS.items(), st.columns(len(FILTERS)), strict=True):
        runs = of_values(runs, column, title, place)
    left, middle, right = st.columns([2, 2, 2])
    runs = of_phases(runs, left)
    recorded = pl.col("created_at").str.slice(0, 10)
    if since := asked_day("Recorded since", "since", middle):
        runs = runs.filter(recorded >= since)
    if until := asked_day("Recorded until", "until", right):
        runs = runs.filter(recorded <= until)
    return with_words(runs, search)


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


def shown(runs: pl.DataFrame) -> pl.DataFrame:
    """The columns a person compares."""
    return pl.DataFrame(
        {
            "run": runs["name"],
            "HDBI": [format.digits(v) for v in runs["hdbi"]],
            "bound": [reading(v) for v in runs["hdbi"]],
            "step p50 (ms, profiled)": milliseconds(runs["step_elapsed_ns"]),
            "T_Orchestration (ms)": milliseconds(runs["orchestration_ns"]),
            "device time (ms)": milliseconds(runs["device_active_ns"]),
            "mode": runs["mode"],
            "model": runs["model"],
            "batch": runs["batch_size"],
            "length": runs["prompt_len"],
            "steps": runs["steps"],
            "kernels": runs["kernels"],
            "GPU": runs["gpu"],
            "host": runs["host"],
            "recorded": [
                None if v is None else v[:16].replace("T", " ") for v in runs["created_at"]
            ],
            "warnings": runs["warnings"],
            "id": runs["run_id"].str.slice(0, 12),
        },
        strict=False,
    )


def milliseconds(values_ns: pl.Series) -> list[float | None]:
    """Three significant digits; unknown stays unknown."""
    return [format.digits(None if v is None else v / 1e6) for v in values_ns]


def run_table(runs: pl.DataFrame) -> list[str]:
    """The runs as a table; returns the ids of the ticked ones."""
    ticked = components.selectable_table(
        shown(runs),
        "Runs of the store: choose rows to open or compare them",
        "runs",
        exact=runs,
        key="runs table",
        several=True,
        columns={
            "HDBI": st.column_config.ProgressColumn(
                "HDBI",
                help="Host-Device Balance Index: 0 waits on the host, 1 on the device",
                format="%.3f",
                min_value=0,
                max_value=1,
            ),
            "run": st.column_config.TextColumn("run", width=260, pinned=True),
        },
    )
    return [runs["run_id"][i] for i in ticked]


def open_or_compare(runs: pl.DataFrame, ticked: Sequence[str]) -> None:
    """Choose runs by name too, and go to their page."""
    names = {i: components.label(i, n) for i, n in runs.select("run_id", "name").iter_rows()}
    with st.container(horizontal=True, vertical_alignment="bottom"):
        by_name = st.multiselect(
            "Open or compare",
            list(names),
            default=None,
            format_func=lambda run_id: names[run_id],
            placeholder="choose here, or tick rows above",
            key="by name",
            select_all=False,
        )
        picked = [*ticked, *(run_id for run_id in by_name if run_id not in ticked)]
        if st.button(
            "Open",
            icon=":material/speed:",
            disabled=len(picked) != 1,
            help="One run: is it host-bound?",
        ):
            st.switch_page("pages/run.py", query_params={"run": picked[0]})
        if st.button(
            "Compare",
            icon=":material/compare:",
            disabled=len(picked) < 2,
            help="Two runs or more; the first is the base",
            type="primary",
        ):
            st.switch_page("pages/compare.py", query_params={"runs": ",".join(picked)})


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
    )


def main() -> None:
    """The page."""
    upload()
    everything = data.runs()
    if everything.is_empty():
        components.no_runs()
        return
    runs = filtered(everything)
    st.markdown(f"**{len(runs)}** of {len(everything)} runs")
    if runs.is_empty():
        st.info("No run is like that; take a filter away.")
        return
    open_or_compare(runs, run_table(runs))
    hdbi_strip(runs)


with components.page("Runs", "Which recordings are there, and which of them wait on the host?"):
    main()
