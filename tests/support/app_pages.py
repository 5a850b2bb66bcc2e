"""What a page of the app shows under Streamlit's `AppTest`."""

from __future__ import annotations

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
