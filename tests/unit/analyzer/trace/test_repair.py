"""Events that are no plain JSON: what is mended, what is dropped, and that it is said."""

from __future__ import annotations

import contextlib
from decimal import ROUND_HALF_UP, Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from analyzer.trace import repair


@pytest.mark.parametrize(
    ("text", "value", "mended"),
    [
        (b'{"a": "b"}', {"a": "b"}, set()),
        (b'{"a": "\xff"}', {"a": "\\xff"}, {"bad_utf8"}),
        (b'{"a": "x\x01y"}', {"a": "x\x01y"}, {"control_characters"}),
        (rb'{"a": "c:\data\new"}', {"a": r"c:\data\new"}, {"backslashes"}),
        (b'{"a": inf}', {"a": None}, {"nonfinite"}),
        (b'{"a": -inf}', {"a": None}, {"nonfinite"}),
        (b'{"a": NaN}', {"a": None}, {"nonfinite"}),
        (b'{"a": N/A}', {"a": None}, {"nonfinite"}),
        (b'{"a": [1,],}', {"a": ["1"]}, {"trailing_comma"}),
        (rb'{"a": "good \n escape"}', {"a": "good \n escape"}, set()),
        (rb'{"a": "\ud83d\ude00"}', {"a": "\U0001f600"}, set()),
    ],
)
def test_what_can_be_mended_is_mended_and_named(text, value, mended) -> None:
    assert repair.loads(text) == (value, mended)


@pytest.mark.parametrize("text", [b'{"a": "b"c"}', b'{"a": }', b"{", b'{"a" "b"}', b"[" * 100_000])
def test_what_is_no_json_even_so_is_refused(text) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - the reader drops the event and says where
        repair.loads(text)


def test_two_bytes_that_are_no_utf8_stay_two_names() -> None:
    names = {repair.loads(b'{"name": "k_%c"}' % byte)[0]["name"] for byte in (0xFE, 0xFF)}
    assert len(names) == 2


@given(st.binary(max_size=80))
def test_any_bytes_give_a_value_or_a_value_error(data) -> None:
    with contextlib.suppress(ValueError):
        repair.loads(data)


@given(st.integers(0, 10**16), st.integers(0, 999))
def test_three_decimals_of_a_microsecond_are_nanoseconds_exactly(whole, part) -> None:
    assert repair.to_ns(f"{whole // 1000}.{part:03d}") == whole // 1000 * 1000 + part


@given(st.decimals(-(10**12), 10**12, places=7))
def test_further_decimals_round_half_away_from_zero(value) -> None:
    want = (value * 1000).quantize(Decimal(1), rounding=ROUND_HALF_UP)
    assert repair.to_ns(str(value)) == int(want)


@pytest.mark.parametrize("value", ["x", "", "1e400", "9" * 40, None, True, "NaN", "Infinity"])
def test_what_is_no_time_of_64_bits_is_unknown(value) -> None:
    assert repair.to_ns(value) is None
    assert repair.to_int(value) is None


@pytest.mark.parametrize(
    ("text", "value"), [("12", 12), ("-7", -7), ("12.0", 12), ("1e3", 1000), ("1.5", None)]
)
def test_ids_are_whole_numbers(text, value) -> None:
    assert repair.to_int(text) == value
