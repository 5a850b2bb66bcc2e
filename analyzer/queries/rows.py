"""Runs a SELECT and gives its answer back: a polars frame for many rows, dicts for few."""

from __future__ import annotations

from typing import Any, cast

import polars as pl

from analyzer.store import Connection


def frame(
    connection: Connection, sql: str, parameters: dict[str, Any] | None = None
) -> pl.DataFrame:
    """The rows of a SELECT, as a polars frame."""
    relation = connection.sql(sql, params=parameters)
    # polars names Arrow's generic classes without the type of their scalars.
    table = pl.from_arrow(relation.to_arrow_table())  # pyright: ignore[reportUnknownMemberType]
    return cast("pl.DataFrame", table)


def select_rows(
    connection: Connection, sql: str, parameters: dict[str, Any] | None = None
) -> list[dict[str, Any]]:
    """The rows of a SELECT, each a dict by column."""
    result = connection.execute(sql, parameters)
    names = [column[0] for column in result.description or []]
    return [dict(zip(names, row, strict=True)) for row in result.fetchall()]
