"""What pages are made of: a heading, errors in one clear line, the choice of a run, links, charts
and tables with their downloads.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import altair as alt
import polars as pl
import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from analyzer.ingest import Ingested
from analyzer.queries.records import ListedRun
from schemas.errors import HostboundError
from webapp import browser, data, downloads, format, session, store, theme, uploads, url_state
from webapp.charts.parts import Chart


@contextmanager
def page(title: str, question: str) -> Generator[None, None, None]:
    """Heading and question; an error that a person can mend ends the page in one line."""
    st.set_page_config(page_title=f"{title} · Hostbound")
    st.title(title, anchor=False)
    st.caption(question)
    show_loaded()
    try:
        with store.one_connection():
            yield
    except HostboundError as error:
        st.error(format.prose(str(error)), icon=":material/error:")


def no_runs() -> None:
    """What to do first, for a store without runs."""
    st.info("There is no run in this store yet.", icon=":material/inbox:")
    st.markdown(
        "Drop a trace of the PyTorch profiler anywhere on this page, load one with the command "
        "line, or look at recorded runs of GPT-2 on an NVIDIA H200 first."
    )
    if st.button("Load the sample runs", icon=":material/science:", type="primary"):
        load(uploads.load_samples)
    st.code(f"analyzer ingest PATH --db {store.path()}", language=None)


# -- what is loaded

_LOADED, _UPLOADS = "loaded", "uploads so far"


def upload() -> None:
    """Where files are dropped: here, or anywhere on the page. They are loaded at once."""
    if (hosted := session.hosted()) and not hosted[1].may("upload"):
        st.caption("To load runs here: your token lacks the scope upload; ask an admin for one.")
        return
    browser.catch_drops()
    number = st.session_state.get(_UPLOADS, 0)
    files = st.file_uploader(
        "Drop a trace (PyTorch, Nsight Systems, ROCm, JAX) or a run directory's files anywhere",
        accept_multiple_files=True,
        key=f"upload {number}",
    )
    if files:
        st.session_state[_UPLOADS] = number + 1
        load(lambda: uploads.load([(file.name, file) for file in files]))


def load(make: Callable[[], list[Ingested]]) -> None:
    """Load runs, and show the page again with what became of each."""
    with st.spinner("Reading …"):
        try:
            st.session_state[_LOADED] = make()
        except HostboundError as error:
            st.session_state[_LOADED] = [Ingested("", "failed", error=str(error))]
    st.rerun()


def show_loaded() -> None:
    """What became of the files that were dropped last."""
    found: list[Ingested] | None = st.session_state.pop(_LOADED, None)
    if found is None:
        return
    if not found:
        st.info("Kept, and still being converted: the Jobs page shows when it is done.")
    for result in found:
        if result.error:
            st.error(format.plain(result.error), icon=":material/error:")
            continue
        name = format.plain(result.name)
        if result.state == "already stored":
            st.info(f"{name} is in the store already.", icon=":material/inbox:")
        else:
            st.success(f"{name} is in the store: {format.count(result.kernels)} kernels.")
        if result.run_id:
            link(st, "pages/run.py", "Open it", ":material/speed:", {"run": result.run_id})


# -- runs

# What means nothing in another run.
_OF_A_RUN = ("from", "to", "event", "around", "trace", "kernel", "op", "family", "phase", "lanes")


def label(run_id: str, name: str) -> str:
    """A run in a list: its name and the beginning of its id, which is unique."""
    return f"{format.short(name, 60)} · {run_id[:6]}"


def choose_run(here: str) -> ListedRun | None:
    """The run of the URL, or the one looked at last, or the newest, with links to its other pages;
    None in an empty store.

    Args:
        here: The page that asks.
    """
    runs = data.listed_runs()
    if not runs:
        no_runs()
        return None
    wanted = url_state.get("run") or st.session_state.get("last run", "")
    found = _matching(runs, wanted) if wanted else None
    if url_state.get("run") and not found:
        st.warning(f"The store has no run {format.plain(wanted)}; this is the newest one instead.")
    key = "choice run"
    run_id = st.session_state[key] = found or next(iter(runs))
    row = st.container(horizontal=True, vertical_alignment="bottom")
    row.selectbox(
        "Run", list(runs), key=key, format_func=lambda r: label(r, runs[r].name),
        on_change=lambda: url_state.put(run=st.session_state[key], **dict.fromkeys(_OF_A_RUN)),
    )  # fmt: skip
    links(row, run_id, here)
    url_state.settle(run=run_id)
    st.session_state["last run"] = run_id
    st.set_page_config(page_title=f"{format.short(runs[run_id].name)} · Hostbound")
    return runs[run_id]


def _matching(runs: Mapping[str, ListedRun], wanted: str) -> str | None:
    """The run of this id, else the first of this name or with an id that begins so."""
    if wanted in runs:
        return wanted
    named = (r for r, run in runs.items() if run.name == wanted or r.startswith(wanted))
    return next(named, None)


# -- links


def links(row: DeltaGenerator, run_id: str, here: str) -> None:
    """The other pages about the same run."""
    pages = {
        "run": ("Run", ":material/speed:"),
        "timeline": ("Timeline", ":material/view_timeline:"),
        "kernels": ("Kernels and ops", ":material/memory:"),
    }
    for name, (text, icon) in pages.items():
        if name != here:
            link(row, f"pages/{name}.py", text, icon, {"run": run_id})


def link(
    place: DeltaGenerator | ModuleType,
    path: str,
    text: str,
    icon: str,
    state: Mapping[str, str],
    *,
    disabled: bool = False,
    help: str | None = None,
) -> None:
    """A link to a page with its state: one step of the browser's history."""
    place.page_link(
        path, label=text, icon=icon, query_params=dict(state), disabled=disabled, help=help
    )


# -- charts


def chart(
    drawing: Chart,
    name: str,
    description: str,
    rows: pl.DataFrame,
    *,
    run_id: str = "",
    about: str = "",
) -> None:
    """Show a chart with its description for screen readers, and offer it and its numbers.

    Args:
        name: Of the files.
        run_id: The run that it shows, which the files then say too.
        about: What else it shows, if not one run.
    """
    only_chart(drawing, description)
    downloads.offer(name, rows, drawing, run_id, _title(description, run_id, about))


def _title(description: str, run_id: str, about: str = "") -> str:
    """What a picture says above the chart."""
    name = data.listed_runs()[run_id].name if run_id else ""
    run = f"{format.short(name, 90)} · {run_id[:12]}" if run_id else ""
    return "\n".join(line for line in (description, run, about) if line)


def selectable_chart(
    drawing: Chart, name: str, description: str, rows: pl.DataFrame, *, run_id: str, key: str
) -> Mapping[str, Any]:
    """Like `chart`; returns what is selected in it, by the names of the chart's selections."""
    state = st.altair_chart(
        _readable(drawing), alt=description, width="stretch", key=key, on_select="rerun"
    )
    downloads.offer(name, rows, drawing, run_id, _title(description, run_id))
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


def us_cell(ns: float | None) -> browser.Cell:
    """A time in microseconds, all of its digits for who hovers."""
    value = format.digits(None if ns is None else ns / 1e3)
    return browser.Cell(format.number(value), value, tip=format.exact(ns))


def place(run_id: str, trace_id: int, event: str) -> str:
    """The address of an event's place in the timeline."""
    return browser.address("timeline", run=run_id, trace=str(trace_id), event=event, around="1")


def link_table(
    description: str,
    columns: Sequence[browser.Column],
    rows: Sequence[browser.Row],
    name: str,
    exact: pl.DataFrame,
) -> None:
    """A table whose first column leads somewhere, and its file.

    Args:
        name: Of the file.
        exact: What the file holds: all rows and digits.
    """
    browser.table(browser.Table(description, columns, rows), f"{name} table")
    if len(exact) > len(rows):
        st.caption(f"The first {len(rows):,} of {len(exact):,}; the file has all of them.")
    downloads.offer(name, exact)
