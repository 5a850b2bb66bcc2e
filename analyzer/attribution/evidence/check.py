"""A check of a trace's evidence: its verdict, the figures it touches, its effect and remedy.

A figure that a check touches is a bound where a bound holds, else it is not judged. Figures are
named in groups (`FIGURES`); `reports/evidence.py` says which fields of a report each group is.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

# Name of a group of figures to what it is, in words.
FIGURES = {
    "device_time": "device time and kernel counts",
    "device_idle": "GPU idle and exposed time",
    "hdbi": "HDBI",
    "launch_time": "T_launch and TKLQT",
    "launches": "launch counts",
    "host_cost": "T_Orchestration and its parts",
    "step_time": "elapsed time of steps",
    "host_time": "host time of steps and the ledger",
}

Figures = tuple[str, ...]


@dataclass(frozen=True)
class Check:
    """One row of the table `checks`.

    Attributes:
        name: One of `checks.KINDS`.
        verdict: "ok" | "touched" (a figure is not what it seems) | "unknown" (the trace cannot
            tell).
        count, total: What was found, of how many; total None where there is no whole.
        share: Of time or of events, as `found` says; None without a whole.
        found: What was found, in a clause.
        at_least, at_most: Figures that are a lower, an upper bound.
        not_judged: Figures of which not even a bound holds.
        effect, remedy: A sentence each; None where nothing was found.
    """

    name: str
    verdict: str
    count: int
    total: int | None
    share: float | None
    found: str
    at_least: Figures
    at_most: Figures
    not_judged: Figures
    effect: str | None
    remedy: str | None


@dataclass(frozen=True)
class Seen:
    """What a check saw in a trace, before it has its name and remedy.

    Attributes:
        note: What to know where no figure is touched, or beside the figures that are.
    """

    count: int
    total: int | None
    found: str
    at_least: Figures = ()
    at_most: Figures = ()
    not_judged: Figures = ()
    share: float | None = None
    is_unknown: bool = False
    note: str | None = None
    remedy: str | None = None


def verdict(name: str, seen: Seen, remedy: str) -> Check:
    """The check of a name, from what it saw; `remedy` where it saw no cause with one of its own."""
    touches = bool(seen.at_least or seen.at_most or seen.not_judged)
    share = seen.share
    if share is None and seen.total:
        share = seen.count / seen.total
    return Check(
        name=name,
        verdict="unknown" if seen.is_unknown else "touched" if touches else "ok",
        count=seen.count,
        total=seen.total,
        share=share,
        found=seen.found,
        at_least=seen.at_least,
        at_most=seen.at_most,
        not_judged=seen.not_judged,
        effect=effect(seen) if seen.count or seen.is_unknown else None,
        remedy=(seen.remedy or remedy) if seen.count or seen.is_unknown else None,
    )


def effect(seen: Seen) -> str:
    """What follows for the figures, as a sentence."""
    parts = [
        f"{_words(figures)} {'are' if ' and ' in _words(figures) else 'is'} {means}"
        for figures, means in (
            (seen.at_least, "at least what is shown"),
            (seen.at_most, "at most what is shown"),
            (seen.not_judged, "not judged"),
        )
        if figures
    ]
    told = "; ".join(parts)
    told = f"if events were lost, {told}" if told and seen.is_unknown and not seen.note else told
    told = f"{told[:1].upper()}{told[1:]}." if told else ""
    return " ".join(part for part in (told, seen.note) if part) or "No figure is touched."


def _words(figures: Iterable[str]) -> str:
    words = [FIGURES[name] for name in figures]
    return ", ".join(words[:-1]) + f" and {words[-1]}" if len(words) > 1 else words[0]


def counted(n: int, one: str, many: str | None = None) -> str:
    """ "1 launch", "1,200 launches"."""
    return f"{n:,} {one if n == 1 else many or one + 's'}"
