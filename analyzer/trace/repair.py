"""One event that is not plain JSON, or whose numbers are odd: read it with care, and say what was
mended.

Both scanners hand such events here, so a fault is handled once for all places. Mended: bytes that
are not UTF-8 (kept apart as `\\xff`), raw control characters (kept), unescaped backslashes (taken
literally), bare `inf`, `nan`, `N/A` (unknown, so null), a comma before a bracket. What is still no
JSON is dropped by the caller, counted and named with its place.
"""

from __future__ import annotations

import codecs
import json
import re
from decimal import ROUND_HALF_UP, Decimal, InvalidOperation
from typing import Any, cast

from analyzer.trace.columns import (
    HALVES,
    HAS_BYTES,
    HAS_CORRELATION,
    HAS_DUR,
    HAS_EXTERNAL,
    HAS_TS,
    UNIT_SEPARATOR,
    Scanner,
)

_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\],:]|[^\s{}\[\],:"]+|\s+|"', re.DOTALL)
_ESCAPE = re.compile(r'\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})|\\')
_NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?")
_LARGEST = 2**63 - 1
# An event may be shown on a lane that is no stream; an Intel GPU has queues.
STREAM_KEYS = ("original_stream", "stream", "sycl queue", "l0 queue")


class Number(str):
    """The text of a JSON number: no double has touched it."""

    __slots__ = ()


def _escape_byte(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeDecodeError):
        raise error
    bad = error.object[error.start : error.end]
    return "".join(f"\\\\x{byte:02x}" for byte in bad), error.end


codecs.register_error("hostbound_escape", _escape_byte)


def loads(text: bytes) -> tuple[Any, set[str]]:
    """Parse JSON, mending what can be mended.

    Returns:
        The value (numbers as `Number`) and the codes of what was mended.

    Raises:
        ValueError: It is no JSON even so.
    """
    mended: set[str] = set()
    try:
        decoded = text.decode("utf-8")
    except UnicodeDecodeError:
        decoded = text.decode("utf-8", "hostbound_escape")
        mended.add("bad_utf8")
    try:
        value = _parse(decoded, mended)
    except (ValueError, RecursionError):
        value = _parse(_mend(decoded, mended), mended)
    if re.search(r"[\x00-\x1f]", "".join(re.findall(r'"(?:[^"\\]|\\.)*"', decoded, re.DOTALL))):
        mended.add("control_characters")
    return value, mended


def _parse(text: str, mended: set[str]) -> Any:
    def constant(_: str) -> None:
        mended.add("nonfinite")

    try:
        return json.loads(
            text, strict=False, parse_int=Number, parse_float=Number, parse_constant=constant
        )
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def _mend(text: str, mended: set[str]) -> str:
    parts: list[str] = []
    for token in _TOKEN.findall(text):
        if token[0] == '"':
            if any(escape == "\\" for escape in _ESCAPE.findall(token)):
                token = '"' + token[1:-1].replace("\\", "\\\\") + '"'
                mended.add("backslashes")
        elif token[0] not in "{}[],: \t\r\n" and not (
            token in ("true", "false", "null") or _NUMBER.fullmatch(token)
        ):
            token = "null"
            mended.add("nonfinite")
        elif token in "}]":
            at = len(parts) - 1
            while at >= 0 and parts[at].isspace():
                at -= 1
            if at >= 0 and parts[at] == ",":
                del parts[at]
                mended.add("trailing_comma")
        parts.append(token)
    return "".join(parts)


def to_ns(value: Any) -> int | None:
    """Microseconds (number or text) as whole nanoseconds, half away from zero; None if neither."""
    if not isinstance(value, str):
        return None
    try:
        ns = (Decimal(value.strip()) * 1000).quantize(Decimal(1), rounding=ROUND_HALF_UP)
        return int(ns) if abs(ns) <= _LARGEST else None
    except (InvalidOperation, ValueError, OverflowError):
        return None


def to_int(value: Any) -> int | None:
    """A whole number of at most 63 bits (number or text); None if it is none."""
    if not isinstance(value, str):
        return None
    try:
        number = Decimal(value.strip())
        if number != number.to_integral_value() or abs(number) > _LARGEST:
            return None
        return int(number)
    except (InvalidOperation, ValueError, OverflowError):
        return None


def json_text(value: Any) -> str:
    """JSON text of a parsed value, numbers as they were."""
    if isinstance(value, Number):
        return value
    if isinstance(value, list):
        return "[" + ", ".join(json_text(item) for item in cast("list[Any]", value)) + "]"
    if isinstance(value, dict):
        pairs = cast("dict[str, Any]", value).items()
        return "{" + ", ".join(f"{json.dumps(k)}: {json_text(v)}" for k, v in pairs) + "}"
    return json.dumps(value, ensure_ascii=False)


def add_event(scanner: Scanner, event: dict[str, Any], keep_python: bool) -> set[str]:
    """Count one parsed event and append its row, as the scanners do; return codes of odd values."""
    odd: set[str] = set()

    def text_of(value: Any) -> str:
        if value is None:
            return ""
        return value if isinstance(value, str) else json_text(value)

    def intern(value: str) -> int:
        return scanner.intern(value.encode("utf-8", "backslashreplace"))

    ph, category = intern(text_of(event.get("ph"))), intern(text_of(event.get("cat")))
    scanner.count(ph, category)
    index = scanner.events
    scanner.events = index + 1
    flags = HALVES.get(text_of(event.get("ph")), 0)
    is_left_out = event.get("cat") == "python_function" and not keep_python
    if not flags and (event.get("ph") != "X" or is_left_out):
        return odd
    args_value = event.get("args")
    args = cast("dict[str, Any]", args_value) if isinstance(args_value, dict) else {}
    if args_value is not None and not isinstance(args_value, dict):
        odd.add("odd_value")

    def number(value: Any, flag: int, convert: Any) -> int:
        nonlocal flags
        if value is None:
            return 0
        result = convert(value)
        if result is None:
            odd.add("odd_value")
            return 0
        flags |= flag
        return result

    def token(value: Any) -> int:
        return -1 if value is None else intern(json_text(value))

    def joined(*keys: str) -> int:
        if not any(key in args for key in keys):
            return -1
        return intern(
            UNIT_SEPARATOR.join(json_text(args[key]) if key in args else "" for key in keys)
        )

    row = (
        number(event.get("ts"), HAS_TS, to_ns),
        number(event.get("dur"), HAS_DUR, to_ns),
        index,
        number(args.get("correlation"), HAS_CORRELATION, to_int),
        number(args.get("External id", args.get("external id")), HAS_EXTERNAL, to_int),
        number(args.get("bytes"), HAS_BYTES, to_int),
        category,
        intern(text_of(event.get("name"))),
        token(event.get("pid")),
        token(event.get("tid")),
        token(args.get("device")),
        token(next((args[key] for key in STREAM_KEYS if args.get(key) is not None), None)),
        joined("Input Dims", "Input type", "Input Strides", "Concrete Inputs"),
        joined("grid", "block", "shared memory", "registers per thread"),
        intern(args["kernel"])
        if isinstance(args.get("kernel"), str)
        else token(args.get("context")),
        flags,
    )
    scanner.add(row)
    return odd
