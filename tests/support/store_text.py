"""Rows of a store, and of the files that `export` writes, as text in one order."""

from __future__ import annotations

import csv
import gzip
import json
from pathlib import Path

import duckdb
import pyarrow.parquet as pq

# Columns that differ from one load, or folder, to the next, and what stands in their place.
_PASSING = {"ingested_at": "(time)", "analyzer_version": "(version)", "path": "(path)"}


def tables(store: Path, run_id: str) -> dict[str, str]:
    """Rows of a run in every table and view, ordered by all columns, as CSV."""
    found: dict[str, str] = {}
    listed = (
        "SELECT table_name, list(column_name ORDER BY column_index), "
        "list(data_type ORDER BY column_index) FROM duckdb_columns() "
        "WHERE NOT internal AND table_name != 'store_info' GROUP BY ALL ORDER BY 1"
    )
    target = store.with_name("rows.csv")
    with duckdb.connect(str(store), read_only=True) as connection:
        for table, columns, types in connection.execute(listed).fetchall():
            changed = [f"'{v}' AS {k}" for k, v in _PASSING.items() if k in columns]
            replaced = f" REPLACE ({', '.join(changed)})" if changed else ""
            where = f" WHERE run_id = '{run_id}'" if "run_id" in columns else ""
            connection.execute(
                f'COPY (SELECT *{replaced} FROM "{table}"{where} ORDER BY ALL) '
                f"TO '{target}' (FORMAT csv, HEADER, NULLSTR '\\N')"
            )
            text = target.read_text(encoding="utf-8")
            described = ", ".join(f"{c} {t}" for c, t in zip(columns, types, strict=True))
            found[f"store/{table}.csv"] = f"# {described}\n{text}"
            target.unlink()
    return found


def chrome(path: Path) -> str:
    return f"{path.name}\n{gzip.decompress(path.read_bytes()).decode()}\n"


def csv_rows(path: Path) -> bytes:
    if path.stem != "runs":
        return path.read_bytes()
    with path.open(encoding="utf-8", newline="") as stream:
        rows = [_as_ever(row) for row in csv.DictReader(stream)]
    return json.dumps(rows).encode()


def parquet_rows(path: Path) -> bytes:
    """Schema and rows: the file itself depends on the version of its writer."""
    table = pq.read_table(path)
    rows = table.to_pylist()
    if path.stem == "runs":
        rows = [_as_ever(row) for row in rows]
    described = [f"{field.name} {field.type}" for field in table.schema]
    return json.dumps([described, rows], default=str).encode()


def _as_ever(row: dict[str, str]) -> dict[str, str]:
    return row | {k: v for k, v in _PASSING.items() if k in row}
