"""The texts of the SQL files that come with the packages."""

from __future__ import annotations

import re
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


@cache
def column_help() -> dict[tuple[str, str], str]:
    """What `schemas/sql/tables.sql` says beside a column, by table and column."""
    found: dict[tuple[str, str], str] = {}
    table = ""
    for line in schema_sql("tables").splitlines():
        if made := re.match(r"CREATE TABLE IF NOT EXISTS (\w+)", line):
            table = made[1]
        elif said := re.match(r"  (\w+) [A-Z]+(?:\[\])?,? +-- (.+)", line):
            found[table, said[1]] = said[2]
    return found
