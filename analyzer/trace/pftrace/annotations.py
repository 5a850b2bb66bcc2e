"""What PyTorch notes of an event beside its name and times, under the names of its Chrome traces.

Only the keys that are named here are read: an event may carry texts of its user too. A value keeps
the text that the same value has in a Chrome trace, so that runs of both formats compare.
Source: google/perfetto, `debug_annotation.proto`; pytorch, `monitor_pftrace.cpp`.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from analyzer.trace.columns import UNIT_SEPARATOR
from analyzer.trace.wire import fields, signed

Values = dict[str, str]  # by key, as JSON texts

_SHAPE = ("Input Dims", "Input type", "Input Strides", "Concrete Inputs")
_COLLECTIVE = (
    *("Collective name", "Process Group Name", "Process Group Ranks"),
    *("In msg nelems", "Out msg nelems", "dtype"),
)
_CONFIG = ("grid", "block", "shared memory", "registers per thread")
_STREAM = ("original_stream", "stream id", "stream", "sycl queue")  # an event may stand on a lane
_DEVICE = ("device id", "device")
_EXTERNAL = ("External id", "external id")
# What only an event of one kind has.
_PYTHON = ("Python id", "Python parent id", "Python module id")
_OF_OPERATORS = (*_EXTERNAL, "Ev Idx", "Record function id", "Sequence number")
# What an export of ours says of a trace, and of which of a file's traces an event is.
METADATA, PART = "hostbound.metadata", "hostbound.part"
_PART = re.compile(r'"((?:rank|trace) \d{1,9})"')
_WANTED = {
    key.encode(): key
    for key in (
        *_SHAPE, *_COLLECTIVE, *_CONFIG, *_STREAM, *_DEVICE, *_PYTHON, *_OF_OPERATORS,
        "correlation", "bytes", "kernel", "cbid", "cuda_sync_kind", "copy kind", "memory kind",
        METADATA, PART,
    )
}  # fmt: skip

_LARGEST = 2**63 - 1
_MOST_NESTED = 32


@dataclass
class Interned:
    """The texts that a sequence of packets refers to by number."""

    names: dict[int, bytes] = field(default_factory=dict[int, bytes])
    categories: dict[int, bytes] = field(default_factory=dict[int, bytes])
    keys: dict[int, bytes] = field(default_factory=dict[int, bytes])
    values: dict[int, bytes] = field(default_factory=dict[int, bytes])
    kernels: dict[int, bytes] = field(default_factory=dict[int, bytes])
    arguments: dict[int, bytes] = field(default_factory=dict[int, bytes])
    stages: dict[int, tuple[bytes, bool]] = field(default_factory=dict[int, tuple[bytes, bool]])


def noted(annotation: bytes, interned: Interned, values: Values) -> None:
    """Add a `DebugAnnotation` to the values, if its key is wanted.

    Raises:
        WireError: It is damaged.
    """
    key = ""
    for number, value in fields(annotation):
        if number in (1, 10):
            name = value if isinstance(value, bytes) else interned.keys.get(value, b"")
            key = _WANTED.get(name, "")
            break
    if key:
        text = _json_text(annotation, interned)
        if text is not None:
            values[key] = text


def noted_text(name: bytes, value: bytes, values: Values) -> None:
    """Add a value that is written as text, whatever it is."""
    key = _WANTED.get(name)
    if key:
        values[key] = decoded(value)


def _json_text(annotation: bytes, interned: Interned, depth: int = 0) -> str | None:
    """The JSON text of a value; None for one that is no list and no scalar."""
    array: list[str] = []
    for number, value in fields(annotation):
        if number == 12 and isinstance(value, bytes):
            if depth < _MOST_NESTED:
                array.append(_json_text(value, interned, depth + 1) or "null")
        elif number == 11:
            return None
        elif (text := _scalar(number, value, interned)) is not None:
            return text
    return f"[{', '.join(array)}]"  # an empty list is written as no value at all


def _scalar(number: int, value: int | bytes, interned: Interned) -> str | None:
    if isinstance(value, int):
        if number == 4:
            return str(signed(value))
        if number in (3, 7):
            return str(value)
        if number == 2:
            return "true" if value else "false"
        if number == 5:
            (real,) = struct.unpack("<d", struct.pack("<Q", value & (1 << 64) - 1))
            return json.dumps(real)
        if number != 17:
            return None
        value = interned.values.get(value, b"")
        number = 6
    if number == 6:
        return json.dumps(decoded(value), ensure_ascii=False)
    return decoded(value) if number == 9 else None


def decoded(text: bytes) -> str:
    """Return a text of the file; bytes that are not UTF-8 as \\xNN."""
    return text.decode("utf-8", "backslashreplace")


def whole(values: Values, *keys: str) -> int | None:
    """Return the first of some values that is a whole number of at most 63 bits."""
    for key in keys:
        text = values.get(key, "").strip('"')
        if text.removeprefix("-").isascii() and text.removeprefix("-").isdigit() and len(text) < 20:
            number = int(text)
            if abs(number) <= _LARGEST:
                return number
    return None


def external(values: Values) -> int | None:
    return whole(values, *_EXTERNAL)


def device(values: Values) -> str:
    return _first(values, _DEVICE)


def stream(values: Values) -> str:
    """The stream that an event ran on, not the lane that it is shown on."""
    return _first(values, _STREAM)


def shape(values: Values) -> str:
    """What an operator was called with; of a collective's kernel, what the collective was."""
    return _joined(values, _SHAPE) or _joined(values, _COLLECTIVE)


def config(values: Values) -> str:
    return _joined(values, _CONFIG)


def part(values: Values) -> str:
    """Which of a file's traces an event is of; empty in a file of one."""
    match = _PART.fullmatch(values.get(PART, ""))
    return match[1] if match else ""


def is_python(values: Values) -> bool:
    """Whether an event is the call of a Python function."""
    return any(key in values for key in _PYTHON)


def is_operators(values: Values) -> bool:
    """Whether an event has what PyTorch notes of operators and ranges."""
    return any(key in values for key in _OF_OPERATORS)


def _first(values: Mapping[str, str], keys: Iterable[str]) -> str:
    return next((values[key] for key in keys if key in values), "")


def _joined(values: Mapping[str, str], keys: Iterable[str]) -> str:
    parts = [values.get(key, "") for key in keys]
    return UNIT_SEPARATOR.join(parts) if any(parts) else ""
