"""The app in the process that serves it: `webapp`, or `analyzer serve` by the entry point
`hostbound.pages`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import streamlit as st
from streamlit.runtime.pages_manager import PagesManager
from streamlit.web import bootstrap

from analyzer.server import pages
from webapp import charts, components, query_task, settings, uploads

# What the pages import, loaded before the first visitor comes.
LOADED = (charts, components, query_task, uploads)


def configure(options: Mapping[str, Any]) -> dict[str, Any]:
    """Set Streamlit's options in this process; returns them as flags of its command line."""
    # Else a deep link's first visitor gets that file of pages/ alone, without app.py.
    PagesManager.uses_pages_directory = False
    flags = {name.replace(".", "_"): value for name, value in options.items()}
    bootstrap.load_config_options(flag_options=flags)
    return flags


def app(
    hosting: pages.Hosting,
    host: str,
    port: int,
    base_path: str,
    most_bytes: int,
    auth: Mapping[str, Any] | None = None,
) -> st.App:
    """The ASGI application of the pages.

    Args:
        hosting: What the pages ask of the server.
        base_path: Path of the pages, as /hostbound; "" is none.
        most_bytes: Largest file that a page takes.
        auth: Streamlit's section `[auth]`, if an identity provider lets people in.
    """
    pages.host(hosting)
    configure(
        {
            **settings.options(host, port, base_path),
            "server.maxUploadSize": most_bytes >> 20,
            "logger.level": "error",
        }
    )
    return st.App(settings.APP, secrets={"auth": dict(auth)} if auth else None)
