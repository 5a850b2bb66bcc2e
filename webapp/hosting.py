"""The app in the process that serves it: `webapp`, or `analyzer serve` by the entry point
`hostbound.pages`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any

import streamlit as st
from streamlit import runtime
from streamlit.runtime.pages_manager import PagesManager
from streamlit.web import bootstrap

from analyzer.server import pages
from webapp import charts, components, query_task, settings, uploads

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Asgi = Callable[[Message, Receive, Send], Awaitable[None]]

FILES = "/_stcore/upload_file/"
SESSIONS = 4
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
) -> FilesInMemory:
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
    made = st.App(settings.APP, secrets={"auth": dict(auth)} if auth else None)
    return FilesInMemory(made, most_bytes)


class FilesInMemory:
    """The application, which takes files into memory as long as there is room for them.

    Args:
        most_bytes: Of one visitor's session; of all, `SESSIONS` times that.
    """

    def __init__(self, app: Asgi, most_bytes: int) -> None:
        self._app = app
        self._most_bytes = most_bytes

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] == "PUT" and FILES in scope["path"]:
            session = scope["path"].partition(FILES)[2].partition("/")[0]
            length = dict(scope["headers"]).get(b"content-length", b"")
            coming = int(length) if length.isdigit() else self._most_bytes
            held = held_bytes()
            room = self._most_bytes - held.get(session, 0)
            room = min(room, SESSIONS * self._most_bytes - sum(held.values()))
            if coming > room:
                headers = [(b"content-type", b"text/plain"), (b"connection", b"close")]
                await send({"type": "http.response.start", "status": 413, "headers": headers})
                await send({"type": "http.response.body", "body": b"take other files away first"})
                return
        await self._app(scope, receive, send)


def held_bytes() -> dict[str, int]:
    """Bytes of files that the process holds, by session of a page."""
    if not runtime.exists():
        return {}
    # Streamlit tells no total; without the attribute nothing is held back.
    stored = getattr(runtime.get_instance().uploaded_file_mgr, "file_storage", {})
    return {
        session: sum(len(file.data) for file in list(files.values()))
        for session, files in list(stored.items())
    }
