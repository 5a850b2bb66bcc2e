"""Which runs are there, and which of them wait on the host?"""

from __future__ import annotations

from datetime import date
from typing import Any

import polars as pl
import streamlit as st

from webapp import address, charts, data, format, frame

MOST_DRAWN = 400


def upload() -> None:
    """Load dropped files into the store."""
    with st.expander("Load a trace or a run directory", icon=":material/upload:"):
        with st.form("upload", clear_on_submit=True, border=False):
            files = st.file_uploader(
                "A PyTorch profiler trace (.json, .json.gz), or all files of a run directory",
                accept_multiple_files=True,
            )
            sent = st.form_submit_button("Load into the store", icon=":material/upload:")
        if not sent:
            return
        if not files:
            st.warning("Choose a file first.")
            return
        with st.spinner("Reading …"):
            results = data.load([(file.name, file) for file in files])
        if not results:
            st.info("Kept, and still being converted: the Jobs page shows when it is done.")
        for result in results:
            name = format.plain(result.name)
            if result.error:
                st.error(format.plain(result.error))
            elif result.state == "already stored":
                st.info(f"{name} is in the store already.")
            else:
                st.success(f"{name} is in the store: {format.count(result.kernels)} kernels.")


def filtered(runs: pl.DataFrame) -> pl.DataFrame:
    """Runs that the address asks for."""
    search = address.text(
        "Search", "q", placeholder="part of a name, model, host or GPU; several words: all of them"
    )
    places = st.columns(6)
    filters = (
        ("model", "Model"),
        ("mode", "Mode"),
        ("host", "Host"),
        ("gpu", "GPU"),
        ("batch_size", "Batch"),
        ("prompt_len", "Length"),
    )
    for (column, title), place in zip(filters, places, strict=True):
        known = runs[column].drop_nulls().unique().sort()
        options = [str(value) for value in known.to_list()]
        chosen = address.several(title, options, column, place=place, placeholder="all")
        if chosen:
            runs = runs.filter(pl.col(column).cast(pl.String).is_in(chosen))
    left, middle, right = st.columns([2, 2, 2])
    phases = sorted({phase for text in runs["phases"] for phase in names_of(text)})
    chosen = address.several("Phase", phases, "phase", place=left, placeholder="all")
    if chosen:
        keep = [bool(set(chosen) & set(names_of(text))) for text in runs["phases"]]
        runs = runs.filter(pl.Series(keep, dtype=pl.Boolean))
    for name, title, place, keeps in (
        ("since", "Recorded since", middle, "from"),
        ("until", "Recorded until", right, "to"),
    ):
        text = address.text(title, name, place=place, placeholder="YYYY-MM-DD")
        if not text:
            continue
        try:
            day = date.fromisoformat(text.strip()).isoformat()
        except ValueError:
            place.warning("Write the date as 2026-01-31.")
            continue
        recorded = pl.col("created_at").str.slice(0, 10)
        runs = runs.filter(recorded >= day if keeps == "from" else recorded <= day)
    for word in search.lower().split():
        text = pl.concat_str(
            [
                pl.col(column).cast(pl.String).fill_null("").str.to_lowercase()
                for column in (
                    "run_id",
                    "name",
                    "model",
                    "mode",
                    "host",
                    "gpu",
                    "attention",
                    "dtype",
                )
            ],
            separator=" ",
        )
        runs = runs.filter(text.str.contains(word, literal=True))
    return runs


def names_of(phases: str | None) -> list[str]:
    """Phase names of the manifest's plan."""
    if not phases:
        return []
    import json

    found: Any = json.loads(phases)
    return [str(entry.get("phase")) for entry in found if isinstance(entry, dict)]


def shown(runs: pl.DataFrame) -> pl.DataFrame:
    """The columns a person compares."""
    return pl.DataFrame(
        {
            "run": runs["name"],
            "HDBI": [format.digits(v) for v in runs["hdbi"]],
            "bound": [reading(v) for v in runs["hdbi"]],
            "step p50 (ms, profiled)": [
                format.digits(None if v is None else v / 1e6) for v in runs["step_elapsed_ns"]
            ],
            "T_Orchestration (ms)": [
                format.digits(None if v is None else v / 1e6) for v in runs["orchestration_ns"]
            ],
            "device time (ms)": [
                format.digits(None if v is None else v / 1e6) for v in runs["device_active_ns"]
            ],
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


def reading(hdbi: float | None) -> str:
    """HDBI in a word."""
    if hdbi is None:
        return "unknown"
    if hdbi < charts.HOST_BOUND_BELOW:
        return "host-bound"
    return "device-bound" if hdbi >= charts.DEVICE_BOUND_FROM else "balanced"


def main() -> None:
    """The page."""
    upload()
    everything = data.runs()
    if everything.is_empty():
        frame.no_runs()
        return
    runs = filtered(everything)
    st.markdown(f"**{len(runs)}** of {len(everything)} runs")
    if runs.is_empty():
        st.info("No run is like that; take a filter away.")
        return
    chosen = frame.table(
        shown(runs),
        "Runs of the store: choose rows to open or compare them",
        "runs",
        exact=runs,
        on_select="rerun",
        selection_mode="multi-row",
        key="runs table",
        column_config={
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
    ids = runs["run_id"].to_list()
    rows = [i for i in chosen["selection"]["rows"] if i < len(ids)]
    picked = [ids[i] for i in rows]
    first = st.container(horizontal=True, vertical_alignment="bottom")
    names = {row["run_id"]: frame.label(row) for row in runs.to_dicts()}
    with first:
        by_name = st.multiselect(
            "Open or compare",
            ids,
            default=None,
            format_func=lambda run_id: names[run_id],
            placeholder="choose here, or tick rows above",
            key="by name",
            select_all=False,
        )
        picked += [run_id for run_id in by_name if run_id not in picked]
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
    st.subheader("How host-bound is each?", anchor=False)
    drawn = runs.filter(pl.col("hdbi").is_not_null()).head(MOST_DRAWN)
    if drawn.is_empty():
        st.info("HDBI is unknown for these runs: no launch floor, or no kernels.")
        return
    frame.chart(
        charts.hdbi_strip(drawn.to_dicts(), frame.is_dark()),
        "hdbi-of-runs",
        f"HDBI of {len(drawn)} runs on a scale from 0, host-bound, to 1, device-bound, by mode",
        drawn.select("run_id", "name", "mode", "hdbi", "step_elapsed_ns"),
    )


with frame.page("Runs", "Which recordings are there, and which of them wait on the host?"):
    main()
