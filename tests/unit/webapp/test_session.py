"""Who looks at the pages, asked anew."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, cast

import pytest
from streamlit.testing.v1 import AppTest

from analyzer.server import pages


class Revoking:
    """A server that knows its visitor until the token is revoked."""

    has_identity_provider = False
    is_revoked = False

    def visitor(self, session: str | None, claims: Mapping[str, Any] | None) -> object:
        return None if self.is_revoked else pages.Principal("perf", frozenset(("read",)), "1", "x")


@pytest.fixture
def hosting() -> Iterator[Revoking]:
    found = Revoking()
    pages.host(cast("pages.Hosting", found))
    yield found
    pages.host(None)


def script() -> None:
    import streamlit as st

    from analyzer.errors import AnalyzerError
    from analyzer.server import pages
    from webapp import session

    session.enter()
    pages.current().is_revoked = True  # while the page is open, of which a part runs by itself
    try:
        session.hosted()
    except AnalyzerError as error:
        st.text(str(error))


def test_a_part_of_a_page_that_runs_by_itself_asks_for_the_right_again(hosting: Revoking) -> None:
    page = AppTest.from_function(script, default_timeout=240).run()

    assert [text.value for text in page.text] == ["log in first."]
