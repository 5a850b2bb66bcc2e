"""An answer that fits an agent's context: at most 8 KB of JSON, the rest behind a cursor.

Names in a trace may be kilobytes long and say anything. They are cut, they are values of JSON and
nothing else, and the cut says how much is missing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import orjson

from analyzer.errors import AnalyzerError
from analyzer.render.json_text import builtins_of

MOST_BYTES = 8_000
LONGEST_TEXT = 240
_MOST_ITEMS = 64  # of a list that is no page of rows


@dataclass(frozen=True)
class Judged:
    """What a run's evidence says of the figures beside it."""

    judged: bool  # no figure rests on what the traces cannot support
    reasons: list[str]  # what was found, and which figures are a bound or not judged
    coverage: dict[str, int]  # device events, with launch, with op; launches


@dataclass(frozen=True)
class Answer:
    """What a tool gives back."""

    evidence: dict[str, Judged]  # by run
    answer: Any  # the record or the rows
    cursor: str | None = None  # ask again with it for what follows; None: that was all

    def text(self) -> str:
        """The answer as JSON of at most `MOST_BYTES`; rows that do not fit wait behind the cursor.

        Raises:
            AnalyzerError: A single record is larger.
        """
        text = orjson.dumps(shortened(builtins_of(self)), default=str)
        if len(text) > MOST_BYTES:
            raise AnalyzerError(
                f"this answer takes {len(text):,} bytes, more than {MOST_BYTES:,}; ask for less."
            )
        return text.decode()


def page(
    rows: Sequence[Any], cursor: str | None, evidence: dict[str, Judged], start: int | None = None
) -> Answer:
    """As many rows as fit, from the cursor on.

    Args:
        rows: All rows, or those from `start` on.
        start: Where `rows` begins, for callers that fetched from the cursor on.

    Raises:
        AnalyzerError: The cursor is none of ours.
    """
    first = offset(cursor)
    known = list(rows if start is not None else rows[first:])
    shown: list[Any] = []
    spent = len(orjson.dumps(shortened(builtins_of(evidence)))) + 120
    for row in known:
        value = shortened(builtins_of(row))
        spent += len(orjson.dumps(value, default=str)) + 1
        if spent > MOST_BYTES:
            break
        shown.append(value)
    rest = len(shown) < len(known)
    if rest and not shown:
        raise AnalyzerError(f"row {first} alone takes more than {MOST_BYTES:,} bytes.")
    return Answer(evidence, shown, str(first + len(shown)) if rest else None)


def offset(cursor: str | None) -> int:
    """The row at which a cursor stands.

    Raises:
        AnalyzerError: The cursor is none of ours.
    """
    if not cursor:
        return 0
    if not cursor.isascii() or not cursor.isdigit() or len(cursor) > 12:
        raise AnalyzerError(f"{cursor[:40]!r} is no cursor; give back the one of the last answer.")
    return int(cursor)


def shortened(value: Any) -> Any:
    """A value with long texts and long lists cut, each cut said."""
    if isinstance(value, str):
        more = len(value) - LONGEST_TEXT
        return value if more <= 0 else f"{value[:LONGEST_TEXT]}... ({more:,} more characters)"
    if isinstance(value, dict):
        entries = cast("dict[object, object]", value).items()
        return {str(key)[:LONGEST_TEXT]: shortened(entry) for key, entry in entries}
    if isinstance(value, (list, tuple)):
        items = cast("Sequence[object]", value)
        cut = [shortened(entry) for entry in items[:_MOST_ITEMS]]
        more = len(items) - _MOST_ITEMS
        return cut if more <= 0 else [*cut, f"... ({more:,} more)"]
    return value
