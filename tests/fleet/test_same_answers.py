"""A lake and a file hold the same rows and give the same answers."""

from __future__ import annotations

import datetime
import gzip
import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from analyzer import cli, queries
from analyzer.errors import AnalyzerError
from analyzer.ingest import ingest
from analyzer.render.export import export
from analyzer.render.report import print_report
from analyzer.reports.report import report
from analyzer.store import open_store, sandbox
from analyzer.store.verify import verify
from analyzer.store.write import RUN_TABLES

VIEWS = ("run_totals", "step_totals", "op_events", "links", "launch_costs", "kernel_summary")
# Of the moment and place of the load.
PASSING = {"runs": ("ingested_at",)}


def rows(db: Path, table: str) -> list[tuple[Any, ...]]:
    """All rows of a table, in one order, without what differs from load to load."""
    leave = ", ".join(PASSING.get(table, ()))
    columns = f"* EXCLUDE ({leave})" if leave else "*"
    with open_store(db).reading() as connection:
        return connection.execute(f"SELECT {columns} FROM {table} ORDER BY ALL").fetchall()


@pytest.fixture(scope="module")
def loaded(
    tmp_path_factory: pytest.TempPathFactory, samples_dir: Path, postgres
) -> tuple[Path, Path]:
    """The sample runs in a file and in a lake."""
    folder = tmp_path_factory.mktemp("same")
    file, lake = folder / "s.duckdb", folder / "lake.toml"
    lake.write_text(f'catalog = "{postgres.catalog}"\ndata = "data"\nschema = "same"\n')
    for db in (file, lake):
        results = ingest(samples_dir, db, jobs=2)
        assert {result.state for result in results} == {"stored"}
    return file, lake


NOT_IN_SAMPLES = (
    *("matches", "python_functions", "replay_kernels", "floors"),
    *("ranks", "collectives", "waits", "rank_waits"),
)


@pytest.mark.parametrize("table", [*RUN_TABLES, "hosts", *VIEWS])
def test_every_table_and_view_holds_the_same_rows(loaded: tuple[Path, Path], table: str) -> None:
    file, lake = loaded
    expected = rows(file, table)
    assert rows(lake, table) == expected
    assert expected or table in NOT_IN_SAMPLES


def test_every_report_reads_the_same(loaded: tuple[Path, Path]) -> None:
    texts = []
    for db in loaded:
        out = io.StringIO()
        with queries.connect(db) as connection:
            for (run_id,) in connection.execute("SELECT run_id FROM runs ORDER BY 1").fetchall():
                print_report(report(connection, run_id), Console(file=out, width=200))
        texts.append(out.getvalue())
    assert texts[0] == texts[1]
    assert len(texts[0]) > 5000


def test_every_command_that_reads_says_the_same(loaded: tuple[Path, Path], capsys) -> None:
    commands = (
        ["show", "gpt2-bs1-s512", "--json"],
        ["compare", "gpt2-bs1-s512", "gpt2-bs8-s512", "--json"],
        ["report", "gpt2-prefill-bs1-s512-graph"],
        [
            "sql",
            "SELECT name, family, sum(device_ns) FROM kernel_summary JOIN runs USING (run_id) "
            "GROUP BY ALL ORDER BY ALL",
        ],
        ["sql", "SELECT column_name, column_type FROM (DESCRIBE launches)"],
    )
    for command in commands:
        said = []
        for db in loaded:
            assert cli.main([*command, "--db", str(db)]) == 0
            said.append(capsys.readouterr().out)
        if "--json" in command:
            said = [json.loads(text) for text in said]
            for value in said:
                value.get("run", {}).pop("ingested_at", None)
        assert said[0] == said[1], command


def test_an_exported_trace_is_the_same(loaded: tuple[Path, Path], tmp_path: Path) -> None:
    with queries.connect(loaded[0]) as connection:
        run_id = queries.find_run(connection, "gpt2-bs1-s512")
    written = []
    for number, db in enumerate(loaded):
        files = export(db, run_id, "chrome", tmp_path / f"{number}.json.gz")
        written.append([gzip.decompress(file.read_bytes()) for file in files])
    assert written[0] == written[1]
    assert len(written[0][0]) > 10_000


def test_exported_tables_are_the_same(loaded: tuple[Path, Path], tmp_path: Path) -> None:
    with queries.connect(loaded[0]) as connection:
        run_id = queries.find_run(connection, "gpt2-bs1-s512")
    for number, db in enumerate(loaded):
        export(db, run_id, "csv", tmp_path / f"{number}")
    for file in (tmp_path / "0").iterdir():
        if file.name != "runs.csv":
            lines = [
                sorted((tmp_path / f"{n}" / file.name).read_text().splitlines()) for n in (0, 1)
            ]
            assert lines[0] == lines[1], file.name


def test_a_lake_verifies_and_so_does_it_after_upkeep(loaded: tuple[Path, Path]) -> None:
    _, lake = loaded
    before = {table: rows(lake, table) for table in RUN_TABLES}
    stamp = open_store(lake).stamp()
    assert verify(lake) == []
    done = open_store(lake).maintain(keep_days=0)
    assert done["files merged"] > 0
    assert verify(lake) == []
    assert {table: rows(lake, table) for table in RUN_TABLES} == before
    assert open_store(lake).stamp() != stamp


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT * FROM postgres_query('__ducklake_metadata_lake', 'SELECT 1')",
        "SELECT (SELECT count(*) FROM postgres_scan('host=/tmp', 'public', 'x'))",
        "WITH x AS (SELECT * FROM query('SELECT 1')) SELECT * FROM x",
        "SELECT * FROM __ducklake_metadata_lake.same.ducklake_data_file",
        "SELECT * FROM read_text('/etc/hostname')",
        "SELECT * FROM '/etc/hostname'",
        "EXPLAIN ANALYZE SELECT * FROM postgres_query('__ducklake_metadata_lake', 'SELECT 1')",
        "DESCRIBE SELECT * FROM ducklake_snapshots('lake')",
        "DELETE FROM runs",
        "ATTACH 'postgres:host=/tmp' AS p",
        "CALL postgres_execute('__ducklake_metadata_lake', 'DROP SCHEMA same CASCADE')",
    ],
)
def test_sql_of_a_person_reaches_no_further_than_the_tables(
    loaded: tuple[Path, Path], sql: str
) -> None:
    with pytest.raises(AnalyzerError) as caught:
        sandbox.run_sql(loaded[1], sql)
    assert "\n" not in str(caught.value)


def test_sql_of_a_person_answers_in_a_lake(loaded: tuple[Path, Path]) -> None:
    table = sandbox.run_sql(
        loaded[1], "SELECT unnest([1, 2]) AS i, (SELECT count(*) FROM runs) AS n ORDER BY i"
    )
    assert table.to_pylist() == [{"i": 1, "n": 7}, {"i": 2, "n": 7}]


def test_the_stamp_of_a_lake_changes_with_each_load_and_only_then(
    lake: Path, samples_dir: Path
) -> None:
    assert not open_store(lake).exists()
    assert open_store(lake).stamp() == ()
    ingest(samples_dir / "gpt2-prefill-bs1-s512-graph", lake)
    first = open_store(lake).stamp()
    assert first
    assert open_store(lake).exists()
    ingest(samples_dir / "gpt2-prefill-bs1-s512-graph", lake)  # stored already
    assert open_store(lake).stamp() == first
    ingest(samples_dir / "gpt2-bs1-s512", lake)
    assert open_store(lake).stamp() != first


def test_times_of_a_run_are_kept(loaded: tuple[Path, Path]) -> None:
    with open_store(loaded[1]).reading() as connection:
        times = connection.execute("SELECT ingested_at FROM runs").fetchall()
    for (text,) in times:
        assert datetime.datetime.fromisoformat(text).year >= 2025
