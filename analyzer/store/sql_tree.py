"""What a SELECT that a person typed is made of, for those who refuse parts of it.

DuckDB's own parser says so; each place that answers SQL has its own list of what it refuses.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import msgspec

from analyzer.errors import AnalyzerError

# Functions in FROM that make rows of their arguments; others look at files, settings or databases.
MAKING_ROWS = frozenset(("unnest", "range", "generate_series", "repeat", "repeat_row"))

Part = dict[str, Any]


def parts(connection: Any, sql: str) -> Iterator[Part]:
    """Every part of a statement: tables, functions, expressions, as DuckDB's JSON has them.

    Raises:
        AnalyzerError: It is no SELECT, nor what DuckDB makes one of (DESCRIBE, SHOW, SUMMARIZE).
    """
    text = connection.execute("SELECT json_serialize_sql(?)", [sql]).fetchall()[0][0]
    tree: Part = msgspec.json.decode(text)
    if tree["error"]:
        raise AnalyzerError(
            "one SELECT (also WITH, DESCRIBE, SHOW, SUMMARIZE) is answered here: "
            f"{tree.get('error_message') or 'this is none'}"
        )
    pending: list[Any] = [tree["statements"]]
    while pending:
        one = pending.pop()
        if isinstance(one, list):
            pending += cast("list[Any]", one)
        elif isinstance(one, dict):
            part = cast("Part", one)
            yield part
            pending += part.values()
