"""A run out of the store: its tables, its trace with our attribution, or its originals.

Written whole or not at all; nothing that exists is replaced.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

from analyzer.errors import AnalyzerError
from analyzer.queries.rows import select_tuples
from analyzer.render.aside import aside
from analyzer.render.table_files import write_tables
from analyzer.render.traces.files import write_traces
from analyzer.store import open_store, originals

Format = Literal["parquet", "csv", "chrome", "perfetto", "original"]


def export(db: Path, run_id: str, form: Format, out: Path) -> list[Path]:
    """Write a run.

    Args:
        run_id: The whole id.
        form: "parquet" or "csv": one file a table; "chrome" or "perfetto": a gzipped trace of that
            format; "original": the files that it was loaded from, if they were kept.
        out: A folder for tables, a file for a trace. It must not exist. Several traces on one clock
            (processes of a report, ranks) stand in one file; others (repetitions) have one each:
            `x.json.gz`, `x-2.json.gz`, ...

    Returns:
        The files, in the order written.

    Raises:
        AnalyzerError: The run is not in the store, the target exists or cannot be written.
    """
    with open_store(db).reading() as connection:
        where = {"run_id": run_id}
        if not select_tuples(connection, "SELECT 1 FROM runs WHERE run_id = $run_id", where):
            raise AnalyzerError(f"there is no run {run_id!r} in {db}; `analyzer runs` lists them.")
        if form == "chrome" or form == "perfetto":
            return write_traces(connection, run_id, form, out)
        if form == "original":
            sql = "SELECT file, role, sha256 FROM files WHERE run_id = $run_id ORDER BY ALL"
            files = select_tuples(connection, sql, where)
            with aside(out) as folder:
                folder.mkdir()
                written = originals.give_back(open_store(db).originals, files, folder)
                os.rename(folder, out)
            return [out / file.name for file in written]
        return write_tables(connection, run_id, form, out)
