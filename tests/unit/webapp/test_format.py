"""Numbers and foreign texts on a page."""

from __future__ import annotations

import pytest

from webapp import format


@pytest.mark.parametrize(
    ("value", "shown"),
    [(0.0, 0.0), (1234.5, 1230.0), (0.0012345, 0.00123), (None, None), (float("nan"), None)],
)
def test_digits_keeps_three_and_leaves_the_unknown_unknown(value, shown):
    assert format.digits(value) == shown


def test_unit_fits_the_largest():
    assert format.unit([5, 1_900]) == ("ns", 1.0)
    assert format.unit([5_000_000, None]) == ("ms", 1e6)
    assert format.unit([]) == ("ns", 1.0)


def test_plain_leaves_no_sign_of_markdown_bare():
    assert format.plain("a*b_<i>") == "a\\*b\\_\\<i\\>"
    assert format.plain(None) == "-"


def test_short_cuts_in_the_middle():
    assert format.short("a" * 50 + "b" * 50, 11) == "a" * 6 + "…" + "b" * 4


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        ("run `collector floor` on it", "run `collector floor` on it"),
        ("`a` is no *file*", "`a` is no \\*file\\*"),
        ("a ` alone", "a \\` alone"),
        ("`` `x`", "\\`\\` `x`"),
        ("[x](http://example.invalid)", "\\[x\\]\\(http\\://example\\.invalid\\)"),
    ],
)
def test_code_in_a_message_is_code_and_the_rest_is_text(message, shown):
    assert format.prose(message) == shown
