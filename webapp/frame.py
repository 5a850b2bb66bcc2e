"""What every page has: a heading, errors in one clear line, charts with downloads."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import altair as alt
import polars as pl
import streamlit as st

from schemas.errors import HostboundError
from webapp import address, data, format, theme

FIRST_STEP = "make a recording with `collector record`, or take any PyTorch profiler trace, then:"


@contextmanager
def page(title: str, question: str) -> Iterator[None]:
    """Heading and question; an error that a person can mend ends the page in one line."""
    st.title(title, anchor=False)
    st.caption(question)
    try:
        with data.one_connection():
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
    st.code(f"analyzer ingest PATH --db {data.store()}", language=None)


def label(row: Mapping[str, Any]) -> str:
    """A run in a list: its name and the beginning of its id, which is unique."""
    return f"{format.short(row['name'], 60)} · {row['run_id'][:6]}"


def choose_run() -> dict[str, Any] | None:
    """The run of the address, or the one looked at last, or the newest; None in an empty store."""
    runs = data.runs()
    if runs.is_empty():
        no_runs()
        return None
    rows = {row["run_id"]: row for row in runs.to_dicts()}
    wanted = address.get("run", st.session_state.get("last run", ""))
    found = [r for r in rows if r == wanted] or [
        r for r, row in rows.items() if wanted and (row["name"] == wanted or r.startswith(wanted))
    ]
    if wanted and not found and address.get("run"):
        st.warning(f"The store has no run {format.plain(wanted)}; this is the newest one instead.")
    run_id = found[0] if found else next(iter(rows))
    address.put(run=run_id)
    run_id = address.select("Run", list(rows), "run", default=run_id, show=lambda r: label(rows[r]))
    st.session_state["last run"] = run_id
    return rows[run_id]


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
            go(f"pages/{name}.py", text, icon, {"run": run_id}, place=row)


def go(path: str, text: str, icon: str, params: Mapping[str, str], place: Any = st) -> None:
    """A link to a page with its state."""
    place.page_link(path, label=text, icon=icon, query_params=dict(params))


def is_dark() -> bool:
    """The theme that the browser shows."""
    return st.context.theme.type == "dark"


def chart(
    drawing: Any,
    name: str,
    description: str,
    rows: pl.DataFrame,
    *,
    of: str = "",
    **options: Any,
) -> Any:
    """Show a chart with its description for screen readers, and offer it as PNG, SVG and CSV.

    Args:
        name: Of the files.
        of: The run that it shows, which the files' names then say too.
    """
    result = only_chart(drawing, description, **options)
    downloads(name, rows, drawing, of)
    return result


def only_chart(drawing: Any, description: str, **options: Any) -> Any:
    """Show a chart with its description for screen readers."""
    # The library's own grey is too pale to read on white.
    ink = (theme.DARK if is_dark() else theme.LIGHT)["grayTextColor"]
    # Set, not `configure`d, which copies the whole chart.
    drawing.config = alt.Config(
        axis=alt.AxisConfig(labelColor=ink, titleColor=ink),
        legend=alt.LegendConfig(labelColor=ink, titleColor=ink),
    )
    return st.altair_chart(drawing, alt=description, width="stretch", **options)


def downloads(
    name: str, rows: pl.DataFrame, drawing: alt.TopLevelMixin | None = None, of: str = ""
) -> None:
    """What is shown, to take away. A button is called like its file: each has its own name."""
    file = f"{name}-{of[:8]}" if of else name
    place = st.container(horizontal=True, horizontal_alignment="right", gap="small")
    place.download_button(
        f"{name}.csv",
        lambda: csv(rows),
        f"{file}.csv",
        "text/csv",
        key=f"csv {name}",
        icon=":material/download:",
        type="tertiary",
        on_click="ignore",
        help="The numbers behind this, exact",
    )
    if drawing is None:
        return
    dark = is_dark()
    for kind, mime in (("png", "image/png"), ("svg", "image/svg+xml")):
        place.download_button(
            f"{name}.{kind}",
            partial(picture, drawing, kind, dark),
            f"{file}.{kind}",
            mime,
            key=f"{kind} {name}",
            icon=":material/image:",
            type="tertiary",
            on_click="ignore",
            help="This chart as a picture",
        )


def picture(drawing: alt.TopLevelMixin, kind: str, dark: bool = False) -> bytes:
    """A chart as "png" or "svg", in the colours of the theme that it is shown in."""
    colours = theme.DARK if dark else theme.LIGHT
    with alt.data_transformers.enable("default", max_rows=None):
        spec = drawing.to_dict()
    text = {"labelColor": colours["grayTextColor"], "titleColor": colours["grayTextColor"]}
    lines = {name: colours["borderColor"] for name in ("gridColor", "domainColor", "tickColor")}
    config = spec.setdefault("config", {})
    config["axis"] = {**text, **lines}
    config["legend"] = text
    config["view"] = {**config.get("view", {}), "stroke": None}
    spec.setdefault("background", colours["backgroundColor"])
    spec.setdefault("width", 900)
    return data.picture(json.dumps(spec), kind)


def csv(rows: pl.DataFrame) -> bytes:
    """Rows as CSV; lists and structures as JSON text."""
    nested = [name for name, kind in rows.schema.items() if kind.is_nested()]
    if nested:
        rows = rows.with_columns(
            pl.Series(
                name,
                [None if v is None else json.dumps(v, default=str) for v in rows[name].to_list()],
            )
            for name in nested
        )
    return rows.write_csv().encode()


def ns_columns(rows: pl.DataFrame, scale: str = "us") -> pl.DataFrame:
    """For a table on the screen: columns `x_ns` as `x (us)`, three significant digits."""
    divisor = {"us": 1e3, "ms": 1e6}[scale]
    changed: list[Any] = []
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


def table(
    rows: pl.DataFrame,
    description: str,
    name: str | None = None,
    *,
    exact: pl.DataFrame | None = None,
    **options: Any,
) -> Any:
    """A table, with a name for screen readers and its CSV.

    Args:
        name: Of the file.
        exact: What the file holds: all rows and digits; default: what is shown.
    """
    result = st.dataframe(
        rows, hide_index=True, width="stretch", alt=description, placeholder="-", **options
    )
    if name:
        downloads(name, rows if exact is None else exact)
    return result
