"""Numbers and texts as the pages show them: three digits and a unit, names of kernels as they are.

The numbers' form is `analyzer.numbers`, so that page and command line agree.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable

from analyzer.numbers import UNKNOWN, change, count, duration, index, share, signed, size

__all__ = [
    "UNKNOWN",
    "change",
    "count",
    "digits",
    "duration",
    "exact",
    "index",
    "number",
    "plain",
    "prose",
    "share",
    "short",
    "signed",
    "size",
    "text",
    "unit",
]

_CODE = re.compile(r"(?<!`)`([^`]+)`(?!`)")
_MARKUP = re.compile(r"([\\`*_{}\[\]()<>#+\-.!|~:$^=&])")


def exact(ns: float | None) -> str:
    """All digits, for whoever hovers."""
    return "unknown" if ns is None else f"{ns:,.0f} ns"


def digits(value: float | None, n: int = 3) -> float | None:
    """Round to significant digits; None and NaN stay unknown."""
    if value is None or not math.isfinite(value):
        return None
    if value == 0:
        return 0.0
    places = n - 1 - math.floor(math.log10(abs(value)))
    return round(value, places)


def number(value: float | None) -> str:
    """A rounded number with thousands apart, as few decimals as it has."""
    return UNKNOWN if value is None else f"{value:,.10g}"


def text(value: object) -> str:
    """A value of a setting; unknown is a dash."""
    return UNKNOWN if value is None else str(value)


def unit(values: Iterable[float | None]) -> tuple[str, float]:
    """The unit in which these nanoseconds read well, and how many nanoseconds it has."""
    largest = max((abs(v) for v in values if v is not None), default=0.0)
    for limit, name, scale in ((2e3, "ns", 1.0), (2e6, "us", 1e3), (2e9, "ms", 1e6)):
        if largest < limit:
            return name, scale
    return "s", 1e9


def plain(text: str | None) -> str:
    """A foreign text (of a trace, say) within Markdown: every sign stands for itself."""
    if text is None:
        return UNKNOWN
    return _MARKUP.sub(r"\\\1", " ".join(str(text).split()))


def prose(text: str) -> str:
    """A message of ours within Markdown: `code` is code, whatever else it quotes is text."""
    parts = _CODE.split(" ".join(text.split()))
    return "".join(
        f"`{part}`" if i % 2 else _MARKUP.sub(r"\\\1", part) for i, part in enumerate(parts)
    )


def short(text: str | None, length: int = 60) -> str:
    """A foreign text cut in its middle, where kernels differ least."""
    if text is None:
        return UNKNOWN
    text = " ".join(str(text).split())
    if len(text) <= length:
        return text
    head = (length - 1) * 2 // 3
    return f"{text[:head]}…{text[head + 1 - length :]}"
