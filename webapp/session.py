"""Who looks at the pages, and in which theme.

Where the app is part of a server, people log in; without a server, whoever can reach it looks.
"""

from __future__ import annotations

from typing import Any, cast

import streamlit as st
from streamlit.runtime.scriptrunner import get_script_run_ctx

from analyzer.errors import AnalyzerError
from analyzer.server import pages
from webapp import browser

_KEY = "visitor"


def enter() -> None:
    """Let the visitor in, or show how to log in and stop. Asked anew at each run of a page, so that
    a revoked token ends here too.
    """
    hosting = pages.current()
    if hosting is None:
        return
    found = _visitor(hosting)
    st.session_state[_KEY] = found
    if found is None:
        _show_login(hosting, _claims() if hosting.has_identity_provider else None)
        st.stop()
    if hosting.has_identity_provider and (context := get_script_run_ctx()):
        hosting.admit(context.session_id)


def _visitor(hosting: pages.Hosting) -> pages.Principal | None:
    claims = _claims() if hosting.has_identity_provider else None
    return hosting.visitor(st.context.cookies.get(pages.SESSION_COOKIE), claims)


def is_dark() -> bool:
    """The theme that the browser shows."""
    return st.context.theme.type == "dark"


def _claims() -> dict[str, Any] | None:
    user = cast("Any", st.user)
    return dict(user.to_dict()) if user.is_logged_in else None


def _show_login(hosting: pages.Hosting, claims: dict[str, Any] | None) -> None:
    st.title("Hostbound")
    if claims is not None:
        st.error(
            "You are logged in, but no team here is yours; ask who runs this server.",
            icon=":material/error:",
        )
        st.button("Log out", on_click=st.logout)
        return
    if hosting.has_identity_provider:
        st.button("Log in", on_click=st.login, type="primary", icon=":material/login:")
    st.link_button("Log in with a token", browser.address("login"))


def leave() -> None:
    """Above the page, at the right: whose runs these are, and the way out."""
    hosting = pages.current()
    found: pages.Principal | None = st.session_state.get(_KEY)
    if hosting is None or found is None or found.name == "open":
        return
    row = st.container(
        horizontal=True, horizontal_alignment="right", vertical_alignment="center", gap="small"
    )
    row.caption(f"Team {found.team}", width="content")
    icon = ":material/logout:"
    if hosting.has_identity_provider and found.token_id is None:
        row.button("Log out", on_click=st.logout, icon=icon, type="tertiary")
    else:
        row.link_button("Log out", browser.address("logout"), icon=icon, type="tertiary")


def hosted() -> tuple[pages.Hosting, pages.Principal] | None:
    """The server and the visitor of this run; None where there is no server. Asked anew each time:
    a part of a page that runs by itself does not pass `enter`.

    Raises:
        AnalyzerError: There is a server, and nobody has logged in.
    """
    hosting = pages.current()
    if hosting is None:
        return None
    found = _visitor(hosting)
    if found is None:
        raise AnalyzerError("log in first.")
    return hosting, found
