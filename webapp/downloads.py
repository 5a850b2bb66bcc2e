"""What is shown, to take away: rows as CSV, charts as PNG and SVG in the colours of the theme."""

from __future__ import annotations

import json
from functools import partial

import altair as alt
import polars as pl
import streamlit as st

from webapp import session, theme
from webapp.charts.parts import Chart


def offer(name: str, rows: pl.DataFrame, drawing: Chart | None = None, run_id: str = "") -> None:
    """Buttons below a table or chart. A button is called like its file: each has its own name.

    Args:
        run_id: The run that it shows, which the files' names then say too.
    """
    file = f"{name}-{run_id[:8]}" if run_id else name
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
    dark = session.is_dark()
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


def picture(drawing: Chart, kind: str, dark: bool = False) -> bytes:
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
    return _rendered(json.dumps(spec), kind)


@st.cache_data(ttl=600, max_entries=20, show_spinner=False)
def _rendered(chart_json: str, kind: str) -> bytes:
    """Render a chart on this machine."""
    import vl_convert  # deferred: only a download needs it

    if kind == "svg":
        return vl_convert.vegalite_to_svg(chart_json).encode()
    return vl_convert.vegalite_to_png(chart_json, scale=2)
