"""A run's tables as Parquet or CSV, for other tools."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

from analyzer.render.aside import aside
from analyzer.store import Connection
from analyzer.store.write import RUN_TABLES

_COPY_OPTIONS = {
    "parquet": "FORMAT parquet, COMPRESSION zstd",
    "csv": "FORMAT csv, HEADER",
}


def write_tables(
    connection: Connection, run_id: str, form: Literal["parquet", "csv"], out: Path
) -> list[Path]:
    """Write a file a table into the folder `out`; returns the files.

    Raises:
        AnalyzerError: `out` exists or cannot be written.
    """
    names = [f"{table}.{form}" for table in (*RUN_TABLES, "hosts")]
    with aside(out) as folder:
        folder.mkdir()
        for table in (*RUN_TABLES, "hosts"):
            column = "host_id" if table == "hosts" else "run_id"
            value = _quoted(run_id)
            if table == "hosts":
                value = f"(SELECT host_id FROM runs WHERE run_id = {value})"
            target = _quoted(str(folder / f"{table}.{form}"))
            # COPY takes no parameters; the texts are quoted.
            connection.execute(
                f"COPY (SELECT * FROM {table} WHERE {column} = {value}) TO {target} "
                f"({_COPY_OPTIONS[form]})"
            )
        os.rename(folder, out)
    return [out / name for name in names]


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
