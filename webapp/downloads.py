"""What is shown, to take away: rows as CSV and Parquet, charts as PNG and SVG in the colours of the
theme, with what they show and of which run above them.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from functools import partial

import altair as alt
import polars as pl
import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from webapp import session, theme
from webapp.charts.parts import Chart


def offer(
    name: str, rows: pl.DataFrame, drawing: Chart | None = None, run_id: str = "", title: str = ""
) -> None:
    """A menu below a table or chart. A button is called like its file: each has its own name.

    Args:
        run_id: The run that it shows, which the files' names then say too.
        title: What a picture says above the chart: what it shows, and of which run, a line each.
    """
    file = f"{name}-{run_id[:8]}" if run_id else name
    row = st.container(horizontal=True, horizontal_alignment="right")
    place = row.popover(name, icon=":material/download:", type="tertiary", help="To take away")
    dark = session.is_dark()
    kinds: dict[str, tuple[Callable[[], bytes], str]] = {
        "csv": (partial(csv, rows), "text/csv"),
        "parquet": (partial(parquet, rows), "application/vnd.apache.parquet"),
    }
    if drawing is not None:
        kinds["png"] = (partial(picture, drawing, "png", dark, title), "image/png")
        kinds["svg"] = (partial(picture, drawing, "svg", dark, title), "image/svg+xml")
    for kind, (content, mime) in kinds.items():
        is_picture = kind in ("png", "svg")
        place.download_button(
            f"{name}.{kind}",
            content,
            f"{file}.{kind}",
            mime,
            key=f"{kind} {name}",
            icon=":material/image:" if is_picture else ":material/table:",
            type="tertiary",
            on_click="ignore",
            help="This chart as a picture" if is_picture else "The numbers behind this, exact",
        )


def offer_paper(place: DeltaGenerator, name: str, write: Callable[[str], bytes]) -> None:
    """Buttons that take away what the command line prints, for an issue or a mail.

    Args:
        write: The content, as "html" or "md".
    """
    menu = place.popover(name, icon=":material/description:", type="tertiary", help="To take away")
    for form, mime in (("html", "text/html"), ("md", "text/markdown")):
        menu.download_button(
            f"{name}.{form}", partial(write, form), f"{name}.{form}", mime, key=f"{form} {name}",
            icon=":material/description:", type="tertiary", on_click="ignore",
            help="One file that opens offline" if form == "html" else "For an issue or a mail",
        )  # fmt: skip


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


def parquet(rows: pl.DataFrame) -> bytes:
    """Rows as Parquet, with their types."""
    out = io.BytesIO()
    rows.write_parquet(out)
    return out.getvalue()


def picture(drawing: Chart, kind: str, dark: bool = False, title: str = "") -> bytes:
    """A chart as "png" or "svg", in the colours of the theme that it is shown in.

    Args:
        title: Above it, its first line large.
    """
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
    if title:
        first, *more = title.splitlines()
        ink = {"color": colours["textColor"], "subtitleColor": colours["grayTextColor"]}
        spec["title"] = {"text": first, "subtitle": more, "anchor": "start", "offset": 16, **ink}
    return _rendered(json.dumps(spec), kind)


@st.cache_data(ttl=600, max_entries=20, show_spinner=False)
def _rendered(chart_json: str, kind: str) -> bytes:
    """Render a chart on this machine."""
    import vl_convert  # deferred: only a download needs it

    if kind == "svg":
        return vl_convert.vegalite_to_svg(chart_json).encode()
    return vl_convert.vegalite_to_png(chart_json, scale=2)
