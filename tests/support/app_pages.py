"""What a page of the app shows under Streamlit's `AppTest`."""

from __future__ import annotations

import json
from typing import Any

from streamlit.testing.v1 import AppTest

PAGES = ("runs", "run", "timeline", "kernels", "compare", "sweep", "sql")


def texts(app: AppTest) -> str:
    """Everything that the page says in words."""
    kinds = (
        app.title,
        app.subheader,
        app.markdown,
        app.caption,
        app.info,
        app.warning,
        app.error,
        app.text,
    )
    return "\n".join(str(element.value) for kind in kinds for element in kind)


def charts(app: AppTest) -> int:
    """How many charts the page draws."""
    return len(app.get("arrow_vega_lite_chart")) + len(app.get("vega_lite_chart"))


def link_tables(app: AppTest) -> list[dict[str, Any]]:
    """What the page's tables of links are given, in their order."""
    protos = [element.proto for element in app.get("bidi_component")]
    return [json.loads(p.json) for p in protos if p.component_name == "hostbound_table"]


def cells(table: dict[str, Any]) -> list[dict[str, dict[str, Any]]]:
    """The rows of a table of links: its cells by the names of their columns."""
    names = [column["name"] for column in table["columns"]]
    return [dict(zip(names, row["cells"], strict=True)) for row in table["rows"]]


def settled(app: AppTest) -> dict[str, str]:
    """What the page puts into its address by itself."""
    protos = [element.proto for element in app.get("bidi_component")]
    asked = [json.loads(p.json) for p in protos if p.component_name == "hostbound_address"]
    return {name: value for values in asked for name, value in values.items()}
