"""Is a store sound? What constraints would promise, and that the figures add up.

Each check of rows is a query in `analyzer/sql/verify/`: it returns (run_id, message) for what is
wrong and nothing for a sound store. No constraint is relied on: a store may have none.
Files are compared where they are still found. Changes nothing.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb

from analyzer.errors import AnalyzerError, first_line
from analyzer.store import open_store
from analyzer.store.sql_text import named_sql
from analyzer.store.store import Connection, Store
from schemas.run_directory import file_sha256

# In this order: what is missing or doubled explains sums that follow.
CHECKS = (
    "rows",
    "duplicates",
    "ids",
    "event_counts",
    "link_fields",
    "ledger_wall",
    "ledger_exposed",
    "launch_sums",
    "event_sums",
    "run_sums",
    "rank_waits",
)
FILES_CHECK = "files"
MOST_MESSAGES = 20


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong.

    Attributes:
        run_id: The run it is in; None for the store as a whole.
        check: One of CHECKS, or "files".
        message: One line: what was found, where.
    """

    run_id: str | None
    check: str
    message: str


def verify(db: Store | Path | str, run_id: str | None = None) -> list[Problem]:
    """Check a store, or one run of it.

    Returns:
        What is wrong, in the order of the checks, at most MOST_MESSAGES a check and run and a line
        that counts the rest; empty for a sound store.

    Raises:
        AnalyzerError: The store cannot be opened, or is damaged so far that it cannot be read.
    """
    store = open_store(db)
    problems: list[Problem] = []
    with store.reading() as connection:
        for check in CHECKS:
            try:
                rows = connection.execute(named_sql(f"verify/{check}")).fetchall()
            except duckdb.CatalogException as error:
                raise AnalyzerError(
                    f"{store.path} lacks a table or column ({first_line(error)[:-1]}); make a new "
                    "store and load the runs again."
                ) from error
            problems += [Problem(run, check, message) for run, message in rows]
        problems += _changed_files(connection, store.originals)
    if run_id is not None:
        problems = [problem for problem in problems if problem.run_id == run_id]
    return _shortened(problems)


def _changed_files(connection: Connection, kept: Path) -> list[Problem]:
    rows: list[tuple[Any, ...]] = connection.execute(
        "SELECT runs.run_id, runs.source, runs.path, files.file, files.role, files.sha256 "
        "FROM runs JOIN files USING (run_id) ORDER BY ALL"
    ).fetchall()
    problems: list[Problem] = []
    for run_id, source, path, file, role, sha256 in rows:
        for here in (_place(Path(path), source, file, role), kept / str(sha256)):
            if here is None or not here.is_file():
                continue
            try:
                actual = file_sha256(here)
            except OSError:  # as good as missing
                continue
            if actual != sha256:
                problems.append(
                    Problem(
                        run_id,
                        FILES_CHECK,
                        f"{here} is not the file that was loaded: its SHA-256 is {actual[:12]}..., "
                        f"the store says {str(sha256)[:12]}...",
                    )
                )
    return problems


def _place(path: Path, source: str, file: str, role: str) -> Path | None:
    """Where a file was read from; None where the store does not tell (a capture that was named)."""
    if source in ("run_directory", "ranks"):
        return path / file
    return path if role == "trace" and path.name == file else None


def _shortened(problems: list[Problem]) -> list[Problem]:
    kept: list[Problem] = []
    counts = Counter((problem.run_id, problem.check) for problem in problems)
    seen: Counter[tuple[str | None, str]] = Counter()
    for problem in problems:
        key = (problem.run_id, problem.check)
        seen[key] += 1
        if seen[key] <= MOST_MESSAGES:
            kept.append(problem)
        elif seen[key] == MOST_MESSAGES + 1:
            rest = counts[key] - MOST_MESSAGES
            kept.append(Problem(problem.run_id, problem.check, f"and {rest} more of this kind"))
    return kept
