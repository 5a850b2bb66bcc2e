"""What SQL that a person typed may touch: one SELECT, on the tables of the store.

DuckDB itself refuses files, settings, extensions and ATTACH to a sandboxed connection. What it does
not know of is refused here, by the parts of the statement as DuckDB's own parser gives them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
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

_STORES = ("store", "lake")  # what a store is attached as
_LISTINGS = frozenset(("information_schema.tables", "information_schema.columns"))
# What SHOW alone lists; beside these it is given a table.
_SHOWN = frozenset(('"tables"', "__show_tables_expanded"))
# Of a store, and of DuckDB itself, which a name may mean as well.
_KNOWN_TABLES = """
SELECT lower(table_name), database_name = ANY($stores) AND schema_name = 'main' AND NOT internal
FROM duckdb_tables()
UNION ALL
SELECT lower(view_name), database_name = ANY($stores) AND schema_name = 'main' AND NOT internal
FROM duckdb_views()
"""
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
    refusals: dict[Reach, Callable[[], Callable[[Part], str | None]]] = {
        Reach.LAKE: lambda: _beyond_lake,
        Reach.SHARED: lambda: _Tables(connection, _parts(connection, sql)).beyond,
    }
    for kind in reach:
        if kind not in refusals:
            continue
        refused = refusals[kind]()
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


class _Tables:
    """The tables that a statement of an untrusted client may name: those of the store, and what the
    statement itself defines. A name is allowed by what it means, not by how it is spelt.
    """

    def __init__(self, connection: Connection, parts: Iterator[Part]) -> None:
        known = connection.execute(_KNOWN_TABLES, {"stores": list(_STORES)}).fetchall()
        self._own = {name for name, is_own in known if is_own}
        others = {name for name, _ in known} - self._own
        # Where a WITH is out of sight, its name would mean the table of DuckDB.
        self._defined = {name for part in parts for name in _defined(part)} - others

    def beyond(self, part: Part) -> str | None:
        """What reads settings, catalog or environment of the process that answers."""
        kind = part.get("type")
        if kind == "TABLE_FUNCTION":
            return _table_function(part)
        if kind == "BASE_TABLE" or (
            kind == "SHOW_REF" and part["table_name"] and part["table_name"] not in _SHOWN
        ):
            path = [
                str(part.get(key, "")).lower()
                for key in ("catalog_name", "schema_name", "table_name")
            ]
            name = ".".join(filter(None, path))
            return None if self._is_allowed(name) else f"the table {name}"
        name = str(part.get("function_name", "")).lower()
        if name in _SHARED_NO_FUNCTIONS or name.startswith(_SHARED_NO_PREFIXES):
            return f"the function {name}"
        return None

    def _is_allowed(self, name: str) -> bool:
        if name in self._defined or name in _LISTINGS:
            return True
        place, _, table = name.rpartition(".")
        homes = ("", "main", *_STORES, *(f"{store}.main" for store in _STORES))
        return place in homes and table in self._own


def _defined(part: Part) -> Iterator[str]:
    """Names that a part defines by WITH."""
    for entry in part.get("cte_map", {}).get("map", ()):
        yield str(entry["key"]).lower()
