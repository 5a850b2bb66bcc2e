"""Numbers for people: three significant digits and a unit. Unknown is a dash, never 0."""

from __future__ import annotations

UNKNOWN = "-"


def duration(ns: float | None) -> str:
    """Nanoseconds as ns, us, ms or s."""
    if ns is None:
        return UNKNOWN
    size = abs(ns)
    for limit, unit, scale in ((1e3, "ns", 1), (1e6, "us", 1e3), (1e9, "ms", 1e6)):
        if size < limit * 0.9995:
            return f"{_three(ns / scale)} {unit}"
    return f"{_three(ns / 1e9)} s"


def signed(ns: float | None) -> str:
    """A difference of durations, with its sign."""
    if ns is None:
        return UNKNOWN
    return ("+" if ns > 0 else "") + duration(ns)


def _three(value: float) -> str:
    size = abs(value)
    if size >= 99.95 or value == int(value):
        return f"{value:.0f}"
    return f"{value:.1f}" if size >= 9.995 else f"{value:.2f}"


def share(value: float | None) -> str:
    """A part of one as percent."""
    if value is None:
        return UNKNOWN
    percent = value * 100
    return f"{percent:.0f} %" if abs(percent) >= 9.95 or percent == 0 else f"{percent:.1f} %"


def change(before: float | None, after: float | None) -> str:
    """The relative change in percent, with its sign."""
    if before is None or after is None or before == 0:
        return UNKNOWN
    return f"{(after / before - 1) * 100:+.1f} %"


def count(value: float | None) -> str:
    """A count with thousands apart."""
    return UNKNOWN if value is None else f"{value:,.0f}"


def index(value: float | None) -> str:
    """HDBI and the like."""
    return UNKNOWN if value is None else f"{value:.3f}"


def bounded(kind: str, text: str) -> str:
    """A figure's text with the sign of the bound that it is; a dash if it is not judged."""
    if text == UNKNOWN or not kind:
        return text
    return {"at least": f">= {text}", "at most": f"<= {text}"}.get(kind, UNKNOWN)


def size(value: int | None) -> str:
    """Bytes for people."""
    if value is None:
        return UNKNOWN
    amount = float(value)
    for unit in ("B", "kB", "MB", "GB"):
        if amount < 1000:
            return f"{_three(amount)} {unit}"
        amount /= 1000
    return f"{_three(amount)} TB"
