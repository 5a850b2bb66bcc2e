"""What tests of recorded traces share, whatever their format."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb
import pytest

from analyzer.cli import main


def ask(store: Path, sql: str) -> list[tuple[Any, ...]]:
    with duckdb.connect(str(store), read_only=True) as connection:
        return connection.execute(sql).fetchall()


def check_for_secrets(
    path: Path, planted: str, folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Load, show and export a recording; look for a planted text in all that comes out."""
    store, out = folder / "s.duckdb", folder / "out"
    out.mkdir(parents=True)
    commands = (
        ["ingest", str(path)],
        ["ingest", str(path), "--json", "--replace"],
        ["show", "latest"],
        ["report", "latest"],
        ["report", "latest", "--json"],
        ["runs", "--json"],
        ["export", "latest", "--format", "csv", "--out", str(out / "tables")],
        ["export", "latest", "--format", "chrome", "--out", str(out / "trace.json")],
    )
    for command in commands:
        assert main([*command, "--db", str(store)]) != 2, command
    with duckdb.connect(str(store), read_only=True) as connection:
        connection.execute(f"EXPORT DATABASE '{out / 'database'}' (FORMAT csv)")
    said = capfd.readouterr()
    assert planted not in said.out + said.err
    for file in [store, *(file for file in out.rglob("*") if file.is_file())]:
        assert planted.encode() not in file.read_bytes(), file
