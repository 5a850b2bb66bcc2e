"""Writes a run's rows: all of them in one transaction, or none.

What a run had before is deleted in the same transaction, so loading it again changes nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

import duckdb
import pyarrow as pa

from analyzer.store.store import Connection

# Tables whose rows belong to one run. `hosts` is shared and only grows.
RUN_TABLES = (
    "runs",
    "files",
    "traces",
    "event_counts",
    "trace_quality",
    "checks",
    "names",
    "shapes",
    "threads",
    "steps",
    "ops",
    "calls",
    "kernels",
    "device_events",
    "launches",
    "ledger",
    "totals",
    "floors",
    "replay_kernels",
    "matches",
    "latency",
    "step_latency",
    "python_functions",
    "ranks",
    "collectives",
    "waits",
)


def write_run(connection: Connection, run_id: str, tables: Mapping[str, pa.Table]) -> str:
    """Replace a run's rows in one transaction; returns "stored" or "replaced"."""
    connection.execute("BEGIN TRANSACTION")
    try:
        before = connection.execute(
            "SELECT count(*) FROM runs WHERE run_id = ?", [run_id]
        ).fetchall()[0][0]
        if before:
            delete_run(connection, run_id)
        for table, rows in tables.items():
            connection.register("incoming", rows)
            columns = ", ".join(rows.column_names)
            unless = " WHERE host_id NOT IN (SELECT host_id FROM hosts)" if table == "hosts" else ""
            connection.execute(
                f"INSERT INTO {table} ({columns}) SELECT {columns} FROM incoming{unless}"
            )
            connection.unregister("incoming")
        connection.execute("COMMIT")
    except BaseException:
        with suppress(duckdb.Error):  # a failed commit has ended the transaction itself
            connection.execute("ROLLBACK")
        raise
    return "replaced" if before else "stored"


def delete_run(connection: Connection, run_id: str) -> None:
    """Delete a run's rows; the caller holds the transaction."""
    for table in RUN_TABLES:
        connection.execute(f"DELETE FROM {table} WHERE run_id = ?", [run_id])
