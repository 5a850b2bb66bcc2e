"""Runs a SELECT and gives its answer back: a polars frame for many rows, records for few."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar, cast

import polars as pl

from analyzer.store import Connection

Parameters = Mapping[str, object]
_Record = TypeVar("_Record")


def frame(connection: Connection, sql: str, parameters: Parameters | None = None) -> pl.DataFrame:
    """The rows of a SELECT, as a polars frame."""
    relation = connection.sql(sql, params=dict(parameters) if parameters else None)
    # polars names Arrow's generic classes without the type of their scalars.
    table = pl.from_arrow(relation.to_arrow_table())  # pyright: ignore[reportUnknownMemberType]
    return cast("pl.DataFrame", table)


def select(
    connection: Connection,
    record: Callable[..., _Record],
    sql: str,
    parameters: Parameters | None = None,
) -> list[_Record]:
    """The rows of a SELECT as records, whose fields its columns name.

    Raises:
        TypeError: A column is no field, or a field without a default has no column.
    """
    result = connection.execute(sql, parameters)
    names = [column[0] for column in result.description or []]
    return [record(**dict(zip(names, row, strict=True))) for row in result.fetchall()]


def select_tuples(
    connection: Connection, sql: str, parameters: Parameters | None = None
) -> list[tuple[Any, ...]]:
    """The rows of a SELECT as tuples, whose types the SQL tells."""
    return connection.execute(sql, parameters).fetchall()
