"""A lake whose Parquet is in an S3-compatible store: same rows, same answers, same promises."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from analyzer import cli
from analyzer.errors import AnalyzerError
from analyzer.ingest import Ingested, ingest
from analyzer.store import open_store, sandbox
from analyzer.store.verify import verify
from analyzer.store.write import RUN_TABLES
from fleet.copies import copies
from fleet.services import ObjectStore


def rows(db: Path, table: str) -> list[tuple]:
    leave = " EXCLUDE (ingested_at)" if table == "runs" else ""
    with open_store(db).reading() as connection:
        return connection.execute(f"SELECT *{leave} FROM {table} ORDER BY ALL").fetchall()


def test_a_lake_in_s3_holds_a_files_rows_also_after_a_replace_and_upkeep(
    s3_lake: Path, samples_dir: Path, tmp_path: Path, object_store: ObjectStore
) -> None:
    sources = [samples_dir / name for name in ("gpt2-bs1-s512", "gpt2-prefill-bs1-s512-graph")]
    file = tmp_path / "s.duckdb"
    ingest(sources, file)
    assert [r.error for r in ingest(sources, s3_lake, jobs=2)] == [None, None]
    assert [r.state for r in ingest(sources, s3_lake, jobs=2)] == ["already stored"] * 2
    assert [r.state for r in ingest(sources, s3_lake, jobs=2, replace_runs=True)] == [
        "replaced",
        "replaced",
    ]
    done = open_store(s3_lake).maintain(keep_days=0)
    assert done["files deleted"] > 0
    for table in (*RUN_TABLES, "hosts", "links", "launch_costs"):
        assert rows(s3_lake, table) == rows(file, table), table
    assert verify(s3_lake) == []


def test_sql_of_a_person_answers_and_reaches_no_object(
    s3_lake: Path, samples_dir: Path, object_store: ObjectStore, capsys
) -> None:
    ingest(samples_dir / "gpt2-prefill-bs1-s512-graph", s3_lake)
    assert cli.main(["sql", "SELECT count(*) AS n FROM ops", "--db", str(s3_lake)]) == 0
    assert int(capsys.readouterr().out.splitlines()[2]) > 0
    for sql in (
        f"SELECT * FROM read_parquet('s3://{object_store.bucket}/lake/**')",
        f"SELECT * FROM 's3://{object_store.bucket}/x.parquet'",
        "SELECT * FROM duckdb_secrets()",
    ):
        with pytest.raises(AnalyzerError, match="not allowed"):
            sandbox.run_sql(s3_lake, sql)


def test_wrong_keys_are_one_line(
    s3_lake: Path, samples_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    monkeypatch.setattr("analyzer.ingest.load.LOCK_PATIENCE_S", 1.0)
    (result,) = ingest(samples_dir / "gpt2-bs1-s512", s3_lake)
    assert result.state == "failed"
    assert "\n" not in (result.error or "")
    assert "403" in (result.error or "")
    with open_store(s3_lake).reading() as connection:
        assert connection.execute("SELECT count(*) FROM runs").fetchall() == [(0,)]


def test_an_object_store_that_is_away_for_a_while_costs_time_and_nothing_else(
    s3_lake: Path, samples_dir: Path, tmp_path: Path, object_store: ObjectStore
) -> None:
    traces = copies(
        samples_dir / "gpt2-prefill-bs1-s512-compile" / "trace.json.gz", tmp_path / "traces", 6
    )
    with open_store(s3_lake).writing():
        pass
    results: list[Ingested] = []
    work = threading.Thread(target=lambda: results.extend(ingest(traces, s3_lake, jobs=1)))
    work.start()
    while work.is_alive() and len(rows(s3_lake, "runs")) < 2:
        time.sleep(0.1)
    object_store.kill()
    time.sleep(2)
    was_at_work = work.is_alive()
    object_store.start()
    work.join()
    assert was_at_work
    assert [result.error for result in results] == [None] * 6
    assert len(rows(s3_lake, "runs")) == 6
    assert verify(s3_lake) == []
