"""The texts of the SQL files that come with the packages."""

from __future__ import annotations

from functools import cache
from importlib import resources


@cache
def schema_sql(name: str) -> str:
    """Text of `schemas/sql/NAME.sql`: the store's tables and views."""
    return (resources.files("schemas") / "sql" / f"{name}.sql").read_text(encoding="utf-8")


@cache
def named_sql(name: str) -> str:
    """Text of `analyzer/sql/NAME.sql`: one question a file."""
    return (resources.files("analyzer") / "sql" / f"{name}.sql").read_text(encoding="utf-8")
