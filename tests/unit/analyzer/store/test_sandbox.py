"""SQL that a person types: what it may do, what it is told, how answers are written."""

from __future__ import annotations

import csv
import io
import json
import threading
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from analyzer.errors import AnalyzerError
from analyzer.store import open_store
from analyzer.store.sandbox import Cancelled, Format, run_sql, write_table
from tests.support.statements import RUNAWAY


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with two runs that have a name and nothing else."""
    path = tmp_path_factory.mktemp("sandbox") / "store.duckdb"
    with open_store(path).writing() as connection:
        connection.execute(
            "INSERT INTO runs (run_id, name, batch_size) VALUES ('a', 'one', 1), ('b', 'two', NULL)"
        )
    return path


def refusal(store: Path, sql: str, time_limit_s: float = 20.0) -> str:
    """The one line with which a statement is refused."""
    with pytest.raises(AnalyzerError) as raised:
        run_sql(store, sql, time_limit_s=time_limit_s)
    message = str(raised.value)
    assert "\n" not in message
    return message


def written(table: pa.Table, form: Format) -> str:
    stream = io.StringIO()
    write_table(table, form, stream)
    return stream.getvalue()


def test_a_select_is_answered(store: Path) -> None:
    table = run_sql(store, "SELECT name FROM runs ORDER BY name; -- the only one")
    assert table.to_pylist() == [{"name": "one"}, {"name": "two"}]


@pytest.mark.parametrize(
    "sql",
    [
        "FROM runs",
        "DESCRIBE runs",
        "SHOW TABLES",
        "SUMMARIZE runs",
        "EXPLAIN SELECT 1",
        "WITH x AS (SELECT 1 AS a) SELECT a FROM x",
        "VALUES (1)",
    ],
)
def test_every_way_to_read_is_allowed_and_limited(store: Path, sql: str) -> None:
    assert run_sql(store, sql, limit=1).num_rows == 1


@pytest.mark.parametrize(
    "sql",
    [
        "DELETE FROM runs",
        "INSERT INTO runs (run_id) VALUES ('c')",
        "CREATE TABLE t (a INTEGER)",
        "DROP VIEW links",
        "SET threads = 1",
        "SET enable_external_access = true",
        "COPY runs TO 'out.csv'",
        "ATTACH ':memory:' AS other",
        "INSTALL httpfs",
        "LOAD httpfs",
    ],
)
def test_what_does_not_read_is_refused(store: Path, sql: str) -> None:
    assert "not allowed" in refusal(store, sql)


def test_two_statements_are_refused(store: Path) -> None:
    assert "2 statements" in refusal(store, "SELECT 1; SELECT 2")


@pytest.mark.parametrize("sql", ["", "  ", "-- nothing", ";"])
def test_no_statement_is_refused(store: Path, sql: str) -> None:
    assert "empty" in refusal(store, sql)


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT * FROM read_text('{file}')",
        "SELECT * FROM read_csv('{file}')",
        "SELECT * FROM read_blob('{file}')",
        "SELECT * FROM '{file}'",
        "SELECT * FROM glob('{file}')",
    ],
)
def test_files_are_out_of_reach(store: Path, tmp_path: Path, sql: str) -> None:
    secret = tmp_path / "secret.csv"
    secret.write_text("token\n12345\n")
    assert "12345" not in refusal(store, sql.format(file=secret))


def test_python_objects_are_out_of_reach(store: Path) -> None:
    """DuckDB looks for a table's name among the caller's variables unless it is told not to."""
    hidden = pa.table({"token": [1]})
    assert "hidden" in refusal(store, "SELECT * FROM hidden")
    assert hidden.num_rows == 1


def test_a_runaway_statement_is_stopped(store: Path) -> None:
    began = time.monotonic()
    message = refusal(store, RUNAWAY, time_limit_s=0.3)

    assert "stopped after 0.3 s" in message
    assert time.monotonic() - began < 10


def test_a_statement_that_its_owner_cancels_is_stopped_and_says_so(store: Path) -> None:
    cancel = threading.Event()
    timer = threading.Timer(0.2, cancel.set)
    timer.start()
    began = time.monotonic()
    with pytest.raises(Cancelled, match=r"^the statement was cancelled after \d+\.\d s\.$"):
        run_sql(store, RUNAWAY, cancel=cancel)
    assert time.monotonic() - began < 10


def test_a_statement_cancelled_before_it_began_does_not_run(store: Path) -> None:
    cancel = threading.Event()
    cancel.set()
    with pytest.raises(Cancelled):
        run_sql(store, RUNAWAY, cancel=cancel)


def test_a_wrong_statement_is_wrong_even_when_it_could_be_cancelled(store: Path) -> None:
    with pytest.raises(AnalyzerError, match="runz") as raised:
        run_sql(store, "SELECT * FROM runz", cancel=threading.Event())
    assert not isinstance(raised.value, Cancelled)


def test_while_a_statement_runs_the_store_is_open_to_others_of_the_process(store: Path) -> None:
    cancel = threading.Event()
    ended: list[AnalyzerError] = []

    def run() -> None:
        try:
            run_sql(store, RUNAWAY, cancel=cancel)
        except AnalyzerError as error:
            ended.append(error)

    runner = threading.Thread(target=run)
    runner.start()
    try:
        with open_store(store).reading(patience_s=0.1) as connection:
            assert connection.execute("SELECT count(*) FROM runs").fetchall() == [(2,)]
            assert run_sql(store, "SELECT count(*) AS n FROM runs").to_pylist() == [{"n": 2}]
    finally:
        cancel.set()
        runner.join()
    assert isinstance(ended[0], Cancelled)


def test_the_memory_limit_holds(store: Path) -> None:
    with pytest.raises(AnalyzerError, match=r"(?i)memory"):
        run_sql(
            store,
            "SELECT string_agg(repeat('x', 1000) || range, '') FROM range(1000000)",
            memory_limit="50MB",
        )


def test_a_wrong_name_gets_the_hint_and_no_picture(store: Path) -> None:
    message = refusal(store, "SELECT * FROM runz")
    assert 'Did you mean "runs"' in message
    assert "LINE" not in message
    assert '"name"' in refusal(store, "SELECT nam FROM runs")


def test_a_missing_store_is_named(tmp_path: Path) -> None:
    assert "no store" in refusal(tmp_path / "none.duckdb", "SELECT 1")


def test_columns_of_one_name_are_told_apart(store: Path) -> None:
    table = run_sql(store, "SELECT a.name, b.name, a.name AS name_2 FROM runs a, runs b")
    assert len(set(table.column_names)) == 3


def test_the_text_table_is_aligned_and_shows_null_as_a_dash(store: Path) -> None:
    table = run_sql(store, "SELECT name, batch_size, name = 'one' AS first FROM runs ORDER BY name")
    assert written(table, "table") == (
        "name  batch_size  first\n"
        "----  ----------  -----\n"
        "one            1  true\n"
        "two            -  false\n"
        "(2 rows)\n"
    )


def test_control_characters_do_not_reach_the_terminal(store: Path) -> None:
    text = written(run_sql(store, "SELECT chr(27) || '[2J' || chr(10) AS name"), "table")
    assert "\x1b" not in text
    assert "\\x1b[2J\\n" in text


def test_a_sum_is_a_whole_number_in_json_and_csv(store: Path) -> None:
    table = run_sql(
        store, "SELECT sum(batch_size) AS s, [1, NULL] AS l, NULL AS n, '\"' AS q FROM runs"
    )
    assert json.loads(written(table, "json")) == [{"s": 1, "l": [1, None], "n": None, "q": '"'}]
    assert list(csv.reader(io.StringIO(written(table, "csv")))) == [
        ["s", "l", "n", "q"],
        ["1", "[1,null]", "", '"'],
    ]


def test_integers_beyond_64_bits_and_nan_stay_valid_json(store: Path) -> None:
    table = run_sql(
        store, "SELECT 170141183460469231731687303715884105727 AS big, 'nan'::DOUBLE AS x"
    )
    assert json.loads(written(table, "json")) == [
        {"big": "170141183460469231731687303715884105727", "x": None}
    ]


def test_an_empty_answer_is_an_empty_list(store: Path) -> None:
    table = run_sql(store, "SELECT name FROM runs WHERE false")
    assert json.loads(written(table, "json")) == []
    assert written(table, "csv") == "name\n"
    assert "(0 rows)" in written(table, "table")


def test_parquet_comes_back_as_it_was(store: Path) -> None:
    table = run_sql(store, "SELECT * FROM runs ORDER BY run_id")
    stream = io.BytesIO()
    write_table(table, "parquet", stream)
    assert pq.read_table(io.BytesIO(stream.getvalue())).to_pylist() == table.to_pylist()


def test_parquet_is_not_sent_to_a_terminal(store: Path) -> None:
    class Terminal(io.BytesIO):
        def isatty(self) -> bool:
            return True

    with pytest.raises(AnalyzerError, match="send it to a file"):
        write_table(run_sql(store, "SELECT 1 AS a"), "parquet", Terminal())
