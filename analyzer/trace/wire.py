"""The wire format of protocol buffers, read without a schema: a message as its numbered fields.

A message within another is bytes until its reader asks for its fields.
Source: protobuf.dev, "Encoding".
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeVar

Data = TypeVar("Data", bytes, memoryview)

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_FIXED = {_FIXED64: 8, _FIXED32: 4}
_MOST_BITS = 64
_LOW_64 = (1 << _MOST_BITS) - 1


class WireError(ValueError):
    """The bytes are no message: a field ends behind their end, or is of no known type."""


def fields(data: Data) -> Iterator[tuple[int, int | Data]]:
    """Yield the fields of a message in their order: (number, value).

    A value is an unsigned integer (varint, fixed32, fixed64), or the part of `data` that a string,
    a message or packed numbers take.

    Raises:
        WireError: While iterating.
    """
    at, end = 0, len(data)
    while at < end:
        key, at = (data[at], at + 1) if data[at] < 0x80 else varint(data, at)
        kind, number = key & 7, key >> 3
        if kind == _VARINT:
            if at < end and data[at] < 0x80:
                value, at = data[at], at + 1
            else:
                value, at = varint(data, at)
        elif kind == _BYTES:
            size, at = varint(data, at)
            value, at = data[at : at + size], at + size
        elif kind in _FIXED:
            size = _FIXED[kind]
            value, at = int.from_bytes(data[at : at + size], "little"), at + size
        else:
            raise WireError(f"type {kind} of a field is unknown")
        if at > end or not number:
            raise WireError("a field is cut off or has no number")
        yield number, value


def behind(data: bytes | memoryview, at: int) -> int:
    """Return the place behind the field that begins at one.

    Raises:
        WireError: It is cut off, or of no known type.
    """
    key, at = varint(data, at)
    kind = key & 7
    if kind == _VARINT:
        _, at = varint(data, at)
    elif kind == _BYTES:
        size, at = varint(data, at)
        at += size
    elif kind in _FIXED:
        at += _FIXED[kind]
    else:
        raise WireError(f"type {kind} of a field is unknown")
    if at > len(data):
        raise WireError("a field is cut off")
    return at


def encoded(value: int) -> bytes:
    """Return a number of at most 64 bits as a varint."""
    made = bytearray()
    while value >= 0x80:
        made.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*made, value])


def varint(data: bytes | memoryview, at: int) -> tuple[int, int]:
    """Return the number of variable length at a place, and the place behind it.

    Raises:
        WireError: It is cut off, or longer than 64 bits.
    """
    value = shift = 0
    try:
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value & _LOW_64, at
            shift += 7
            if shift >= _MOST_BITS + 6:
                raise WireError("a number has more than 64 bits")
    except IndexError as error:
        raise WireError("a number is cut off") from error


def signed(value: int) -> int:
    """Return a varint as the int64 that it stands for."""
    return value - (1 << _MOST_BITS) if value >> (_MOST_BITS - 1) else value
