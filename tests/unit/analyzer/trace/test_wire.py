"""Messages are read field by field, and what is no message is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from analyzer.trace.wire import WireError, fields, signed
from tests.support.protobuf import message

INT64 = st.integers(-(1 << 63), (1 << 63) - 1)
FIELDS = st.lists(st.tuples(st.integers(1, (1 << 29) - 1), INT64 | st.binary()))


@given(FIELDS)
def test_a_message_is_its_fields_in_order(expected: list[tuple[int, int | bytes]]) -> None:
    data = message(*expected)
    for form in (data, memoryview(data)):
        found = [
            (number, signed(value) if isinstance(value, int) else bytes(value))
            for number, value in fields(form)
        ]
        assert found == expected


def test_fixed_numbers_are_integers_of_their_bits() -> None:
    data = b"\x09" + (1 << 63).to_bytes(8, "little") + b"\x15" + (7).to_bytes(4, "little")
    assert list(fields(data)) == [(1, 1 << 63), (2, 7)]


@given(FIELDS, st.integers(min_value=1))
def test_a_message_that_is_cut_off_in_a_field_is_refused(
    given_fields: list[tuple[int, int | bytes]], cut: int
) -> None:
    data = message(*given_fields, (1, b"123456"))
    with pytest.raises(WireError):
        list(fields(data[: -(cut % 6) - 1 or None]))


@pytest.mark.parametrize("data", [b"\x0b", b"\x07", b"\x00\x01", b"\x08" + b"\xff" * 10 + b"\x01"])
def test_what_is_no_message_is_refused(data: bytes) -> None:
    with pytest.raises(WireError):
        list(fields(data))
