"""Messages in the wire format of protocol buffers, for tests that build their own files."""

from __future__ import annotations


def message(*given: tuple[int, int | bytes | str]) -> bytes:
    """The bytes of a message; an int is a varint (int64), text is UTF-8."""
    parts: list[bytes] = []
    for number, value in given:
        if isinstance(value, int):
            parts += [_varint(number << 3), _varint(value)]
        else:
            data = value.encode() if isinstance(value, str) else value
            parts += [_varint(number << 3 | 2), _varint(len(data)), data]
    return b"".join(parts)


def _varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    made = bytearray()
    while value >= 0x80:
        made.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*made, value])
