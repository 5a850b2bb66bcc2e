"""What pages are made of: a heading, errors in one clear line, the choice of a run, links, charts
and tables with their downloads.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any

import altair as alt
import polars as pl
import streamlit as st
from streamlit.delta_generator import DeltaGenerator
from streamlit.elements.lib.column_types import ColumnConfig

from analyzer.queries.records import ListedRun
from schemas.errors import HostboundError
from webapp import data, downloads, format, session, store, theme, url_state
from webapp.charts.parts import Chart


@contextmanager
def page(title: str, question: str) -> Generator[None, None, None]:
    """Heading and question; an error that a person can mend ends the page in one line."""
    st.title(title, anchor=False)
    st.caption(question)
    try:
        with store.one_connection():
            yield
    except HostboundError as error:
        st.error(format.prose(str(error)), icon=":material/error:")


def no_runs() -> None:
    """What to do first, for a store without runs."""
    st.info("There is no run in this store yet.", icon=":material/inbox:")
    st.markdown(
        "Drop a trace on the **Runs** page, or load one with the command line. The package brings "
        "recorded runs of GPT-2 on an H200: `make demo` in the repository loads them."
    )
    st.code(f"analyzer ingest PATH --db {store.path()}", language=None)


# -- runs


def label(run_id: str, name: str) -> str:
    """A run in a list: its name and the beginning of its id, which is unique."""
    return f"{format.short(name, 60)} · {run_id[:6]}"


def choose_run() -> ListedRun | None:
    """The run of the URL, or the one looked at last, or the newest; None in an empty store."""
    runs = data.listed_runs()
    if not runs:
        no_runs()
        return None
    wanted = url_state.get("run", st.session_state.get("last run", ""))
    found = _matching(runs, wanted) if wanted else None
    if wanted and not found and url_state.get("run"):
        st.warning(f"The store has no run {format.plain(wanted)}; this is the newest one instead.")
    run_id = found or next(iter(runs))
    url_state.put(run=run_id)
    run_id = url_state.select(
        "Run", list(runs), "run", default=run_id, show=lambda r: label(r, runs[r].name)
    )
    st.session_state["last run"] = run_id
    return runs[run_id]


def _matching(runs: Mapping[str, ListedRun], wanted: str) -> str | None:
    """The run of this id, else the first of this name or with an id that begins so."""
    if wanted in runs:
        return wanted
    named = (r for r, run in runs.items() if run.name == wanted or r.startswith(wanted))
    return next(named, None)


# -- links


def links(run_id: str, here: str) -> None:
    """The other pages about the same run."""
    pages = {
        "run": ("Run", ":material/speed:"),
        "timeline": ("Timeline", ":material/view_timeline:"),
        "kernels": ("Kernels and ops", ":material/memory:"),
    }
    row = st.container(horizontal=True)
    for name, (text, icon) in pages.items():
        if name != here:
            link(row, f"pages/{name}.py", text, icon, {"run": run_id})


def link(place: DeltaGenerator, path: str, text: str, icon: str, state: Mapping[str, str]) -> None:
    """A link to a page with its state."""
    place.page_link(path, label=text, icon=icon, query_params=dict(state))


# -- charts


def chart(
    drawing: Chart, name: str, description: str, rows: pl.DataFrame, *, run_id: str = ""
) -> None:
    """Show a chart with its description for screen readers, and offer it as PNG, SVG and CSV.

    Args:
        name: Of the files.
        run_id: The run that it shows, which the files' names then say too.
    """
    only_chart(drawing, description)
    downloads.offer(name, rows, drawing, run_id)


def selectable_chart(
    drawing: Chart, name: str, description: str, rows: pl.DataFrame, *, run_id: str, key: str
) -> Mapping[str, Any]:
    """Like `chart`; returns what is selected in it, by the names of the chart's selections."""
    state = st.altair_chart(
        _readable(drawing), alt=description, width="stretch", key=key, on_select="rerun"
    )
    downloads.offer(name, rows, drawing, run_id)
    return state["selection"]


def only_chart(drawing: Chart, description: str) -> None:
    """Show a chart with its description for screen readers."""
    st.altair_chart(_readable(drawing), alt=description, width="stretch")


def _readable(drawing: Chart) -> Chart:
    """The library's own grey is too pale to read on white."""
    ink = (theme.DARK if session.is_dark() else theme.LIGHT)["grayTextColor"]
    # Set, not `configure`d, which copies the whole chart.
    drawing.config = alt.Config(
        axis=alt.AxisConfig(labelColor=ink, titleColor=ink),
        legend=alt.LegendConfig(labelColor=ink, titleColor=ink),
    )
    return drawing


# -- tables

WORDS = {
    "t_py": "T_py",
    "t_dispatch": "T_dispatch",
    "t_launch": "T_launch",
    "t_exec": "T_exec",
    "ft": "dFT",
    "ct": "dCT",
    "kt": "dKT",
    "dft": "dFT",
    "dct": "dCT",
    "dkt": "dKT",
    "hdbi": "HDBI",
    "orchestration": "T_Orchestration",
    "device": "device time",
    "launch": "launch p50, clean",
    "host": "host cost",
    "gpu": "GPU",
    "before": "A",
    "after": "B",
    "before_launches": "launches A",
    "after_launches": "launches B",
    "p50": "p50",
    "clean_name": "kernel",
}


def words(name: str) -> str:
    """A column's name for people."""
    return WORDS.get(name, name.replace("_", " "))


def ns_columns(rows: pl.DataFrame, scale: str = "us") -> pl.DataFrame:
    """For a table on the screen: columns `x_ns` as `x (us)`, three significant digits."""
    divisor = {"us": 1e3, "ms": 1e6}[scale]
    changed: list[pl.Series] = []
    for name in rows.columns:
        if name.endswith("_ns"):
            changed.append(
                pl.Series(
                    f"{words(name[:-3])} ({scale})",
                    [format.digits(None if v is None else v / divisor) for v in rows[name]],
                    dtype=pl.Float64,
                )
            )
        else:
            changed.append(rows[name].alias(words(name)))
    return pl.DataFrame(changed)


def table(
    rows: pl.DataFrame,
    description: str,
    name: str | None = None,
    *,
    exact: pl.DataFrame | None = None,
    all_rows: bool = False,
) -> None:
    """A table, with a name for screen readers and its CSV.

    Args:
        name: Of the file.
        exact: What the file holds: all rows and digits; default: what is shown.
        all_rows: As high as its rows need.
    """
    st.dataframe(  # pyright: ignore[reportUnknownMemberType]  # takes arrays of any type
        rows,
        hide_index=True,
        width="stretch",
        alt=description,
        placeholder="-",
        height="content" if all_rows else "auto",
    )
    if name:
        downloads.offer(name, rows if exact is None else exact)


def selectable_table(
    rows: pl.DataFrame,
    description: str,
    name: str,
    *,
    exact: pl.DataFrame,
    key: str,
    several: bool,
    columns: Mapping[str, ColumnConfig],
) -> list[int]:
    """Like `table`; returns which rows are ticked.

    Args:
        several: Whether more than one row can be ticked.
        columns: How Streamlit shows some of the columns.
    """
    state = st.dataframe(  # pyright: ignore[reportUnknownMemberType]  # takes arrays of any type
        rows,
        hide_index=True,
        width="stretch",
        alt=description,
        placeholder="-",
        on_select="rerun",
        selection_mode="multi-row" if several else "single-row",
        key=key,
        column_config=dict(columns),
    )
    downloads.offer(name, exact)
    return [i for i in state["selection"]["rows"] if i < len(rows)]
