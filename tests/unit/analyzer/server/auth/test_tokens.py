"""Tokens and browser sessions, with clocks that jump: in SQLite and in PostgreSQL alike."""

from __future__ import annotations

import pytest

from analyzer.errors import AnalyzerError
from analyzer.server.layout import check_team
from support.server_parts import DAY_S, Clock, ServerParts


def test_a_token_is_found_by_its_text_alone(parts: ServerParts) -> None:
    text, row = parts.tokens.create("perf", ["read"], "laptop")

    found = parts.tokens.find(text)

    assert found is not None
    assert (found.team, found.token_id) == ("perf", row.id)
    assert parts.tokens.find(text[:-1]) is None
    assert parts.tokens.find(text + "x") is None
    assert parts.tokens.find("") is None


def test_an_expired_token_lets_nobody_in_and_neither_does_its_session(
    parts: ServerParts, clock: Clock
) -> None:
    text, _ = parts.tokens.create("perf", ["read"], days=0.25)
    principal = parts.tokens.find(text)
    assert principal is not None
    session = parts.tokens.begin_session(principal)
    assert parts.tokens.session(session) is not None

    clock.now += 0.25 * DAY_S

    assert parts.tokens.find(text) is None
    assert parts.tokens.session(session) is None


def test_a_revoked_token_ends_its_sessions(parts: ServerParts) -> None:
    text, row = parts.tokens.create("perf", ["read"])
    principal = parts.tokens.find(text)
    assert principal is not None
    session = parts.tokens.begin_session(principal)

    assert parts.tokens.revoke(row.id, "perf")

    assert parts.tokens.find(text) is None
    assert parts.tokens.session(session) is None
    assert not parts.tokens.revoke(row.id, "other")


def test_a_clock_set_back_gives_no_revoked_token_its_life_again(
    parts: ServerParts, clock: Clock
) -> None:
    text, row = parts.tokens.create("perf", ["read"])
    parts.tokens.revoke(row.id)

    clock.now -= 10 * DAY_S

    assert parts.tokens.find(text) is None


def test_admin_holds_the_other_scopes_and_nobody_else_does(parts: ServerParts) -> None:
    admin = parts.tokens.find(parts.tokens.create("perf", ["admin"])[0])
    reader = parts.tokens.find(parts.tokens.create("perf", ["read"])[0])
    assert admin is not None
    assert reader is not None

    assert [admin.may(s) for s in ("upload", "read", "admin")] == [True] * 3
    assert [reader.may(s) for s in ("upload", "read", "admin")] == [False, True, False]


@pytest.mark.parametrize("name", ["", "..", "a/b", "A", "-x", "x" * 64, "t\n", "ü", "."])
def test_a_team_is_a_plain_folder_name(name: str) -> None:
    with pytest.raises(AnalyzerError, match="no name for a team"):
        check_team(name)
