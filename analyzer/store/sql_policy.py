"""What SQL that a person typed may touch: one SELECT, on the tables of the store.

DuckDB itself refuses files, settings, extensions and ATTACH to a sandboxed connection. What it does
not know of is refused here, by the parts of the statement as DuckDB's own parser gives them.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from typing import Any, cast

import duckdb
import msgspec

from analyzer.errors import AnalyzerError

Connection = duckdb.DuckDBPyConnection
Part = dict[str, Any]

_READING = ("SELECT", "EXPLAIN")
# Functions in FROM that make rows of their arguments; others look at files, settings or databases.
_MAKING_ROWS = frozenset(("unnest", "range", "generate_series", "repeat", "repeat_row"))

_LAKE_CATALOGS = frozenset(("", "lake", "system", "temp"))

_SHARED_SCHEMAS = frozenset(("", "main", "store", "information_schema"))
_SHARED_CATALOGS = frozenset(("", "store"))
_SHARED_NO_TABLES = ("duckdb_", "pg_", "pragma_", "sqlite_")
_SHARED_NO_FUNCTIONS = frozenset(
    (
        "getenv",
        "getvariable",
        "current_setting",
        "current_database",
        "current_query",
        "json_execute_serialized_sql",
        "which_secret",
        "nextval",
        "currval",
        "write_log",
        "txid_current",
        "add_parquet_key",
    )
)
_SHARED_NO_PREFIXES = (
    *("read_", "duckdb_", "pragma_", "pg_"),
    *("force_", "enable_", "disable_", "json_execute"),
)


class Reach(Enum):
    """What is there to be reached beside the tables, and so has to be refused.

    Attributes:
        TABLES: Nothing: a file of the one who asks, in a sandbox of DuckDB's.
        LAKE: PostgreSQL and the data's folder, by functions of DuckDB's extensions.
        SHARED: Settings, catalog and environment of a server, asked by an untrusted client.
    """

    TABLES = "tables"
    LAKE = "lake"
    SHARED = "shared"


def check(connection: Connection, sql: str, *reach: Reach) -> None:
    """Refuse what is no single SELECT (also EXPLAIN, ...) or reaches beyond the store's tables.

    Args:
        reach: What is there to be reached; see `Reach`.

    Raises:
        AnalyzerError: The statement is refused; the message names the part.
        duckdb.Error: It cannot be parsed.
    """
    _check_kind(connection, sql)
    for kind in reach:
        refused = _REFUSALS.get(kind)
        if refused is None:
            continue
        for part in _parts(connection, sql):
            if what := refused(part):
                raise AnalyzerError(
                    f"{what} is not allowed here: SQL reads the store's tables only."
                )


def quoted(text: str) -> str:
    """A text as a literal of SQL."""
    return "'" + text.replace("'", "''") + "'"


def _check_kind(connection: Connection, sql: str) -> None:
    statements = connection.extract_statements(sql)
    if not statements:
        raise AnalyzerError(
            'the SQL is empty; give one SELECT, e.g. "SELECT * FROM run_totals". '
            "docs/schema.md lists the tables."
        )
    kinds = [statement.type.name for statement in statements]
    refused = [kind for kind in kinds if kind not in _READING]
    if refused:
        raise AnalyzerError(
            f"a {refused[0]} statement is not allowed here: the store is open read-only and "
            "answers one SELECT (also WITH, EXPLAIN, DESCRIBE, SHOW, SUMMARIZE)."
        )
    if len(statements) > 1:
        raise AnalyzerError(
            f"the SQL holds {len(statements)} statements; give one, and run the command again for "
            "the next."
        )


def _parts(connection: Connection, sql: str) -> Iterator[Part]:
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


def _table_function(part: Part) -> str | None:
    name = str(part["function"].get("function_name")).lower()
    return None if name in _MAKING_ROWS else f"the table function {name}"


def _beyond_lake(part: Part) -> str | None:
    """What reaches PostgreSQL or a file; settings cannot take these functions away."""
    kind = part.get("type")
    if kind == "TABLE_FUNCTION":
        return _table_function(part)
    if kind == "BASE_TABLE":
        catalog = str(part.get("catalog_name", "")).lower()
        schema, table = str(part.get("schema_name", "")), str(part.get("table_name", ""))
        if catalog not in _LAKE_CATALOGS or schema.lower().startswith("__"):
            return f"the database {catalog or schema}"
        if "/" in table or "." in table:
            return f"the file {table}"
    return None


def _beyond_tables(part: Part) -> str | None:
    """What reads settings, catalog or environment of the process that answers."""
    kind = part.get("type")
    if kind == "TABLE_FUNCTION":
        return _table_function(part)
    if kind == "BASE_TABLE":
        schema, catalog = (str(part.get(k, "")).lower() for k in ("schema_name", "catalog_name"))
        table = str(part.get("table_name", ""))
        if (
            schema not in _SHARED_SCHEMAS
            or catalog not in _SHARED_CATALOGS
            or table.startswith(_SHARED_NO_TABLES)
        ):
            return f"the table {'.'.join(filter(None, (catalog, schema, table)))}"
        return None
    name = str(part.get("function_name", "")).lower()
    if name in _SHARED_NO_FUNCTIONS or name.startswith(_SHARED_NO_PREFIXES):
        return f"the function {name}"
    return None


_REFUSALS = {Reach.LAKE: _beyond_lake, Reach.SHARED: _beyond_tables}
