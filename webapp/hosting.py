"""The app as a part of `analyzer serve`: made here, run by the server in its own process."""

from __future__ import annotations

from typing import Any

import streamlit as st

from analyzer.server import pages
from webapp.cli import APP, options


def app(hosting: pages.Hosting, host: str, port: int, most_bytes: int, auth: Any = None) -> Any:
    """The ASGI application of the pages.

    Args:
        hosting: What the pages ask of the server.
        most_bytes: Largest file that a page takes.
        auth: Streamlit's section `[auth]`, if an identity provider lets people in.
    """
    from streamlit.runtime.pages_manager import PagesManager
    from streamlit.web import bootstrap

    pages.host(hosting)
    PagesManager.uses_pages_directory = False
    given = {
        **options(host, port),
        "server.maxUploadSize": most_bytes >> 20,
        "logger.level": "error",
    }
    flags = {name.replace(".", "_"): value for name, value in given.items()}
    bootstrap.load_config_options(flag_options=flags)

    import webapp.charts
    import webapp.data  # noqa: F401  # loaded before the first visitor comes

    return st.App(APP, secrets={"auth": auth} if auth else None)
