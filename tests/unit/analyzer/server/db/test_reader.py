"""What is asked through the driver is what SQLAlchemy would have answered."""

from __future__ import annotations

import threading
from pathlib import Path

from sqlalchemy import bindparam, select

from analyzer.server.db.database import Database, open_sqlite
from analyzer.server.db.tables import insert_new, jobs, uploads

OF_TEAM = (
    select(jobs)
    .where(jobs.c.team == bindparam("team"), jobs.c.state == "done")
    .order_by(jobs.c.seq.desc())
    .limit(1)
)


def add(database: Database, number: int) -> None:
    with database.transaction() as connection:
        row = {"team": "perf", "sha256": f"{number}", "metadata": {"n": number, "é": None}}
        connection.execute(
            jobs.insert(), {**row, "id": f"{number}", "state": "done", "queued_at": 1}
        )


def test_rows_are_those_of_sqlalchemy_and_are_read_anew_each_time(tmp_path: Path) -> None:
    database = open_sqlite(tmp_path / "server.sqlite")
    for number in range(3):
        add(database, number)
        (row,) = database.rows(OF_TEAM, team="perf")
        with database.engines.reading.connect() as connection:
            (same,) = connection.execute(OF_TEAM, {"team": "perf"}).all()
        assert tuple(row) == tuple(same)
        assert row._asdict() == same._asdict()
        assert (row.metadata, row.run_ids, row.error) == ({"n": number, "é": None}, [], None)
    assert database.rows(OF_TEAM, team="other") == []


def test_within_a_transaction_one_reads_what_it_has_written(tmp_path: Path) -> None:
    database = open_sqlite(tmp_path / "server.sqlite")
    wanted = select(uploads.c.id).where(uploads.c.team == bindparam("team"))
    row = {"sha256": "a", "size": 1, "metadata": {}, "state": "incomplete", "created_at": 1.0}
    seen: list[int] = []
    with database.transaction() as connection:
        assert insert_new(connection, uploads, id="1", team="perf", **row)
        assert not insert_new(connection, uploads, id="2", team="perf", **row)
        assert len(database.rows(wanted, team="perf")) == 1
        other = threading.Thread(
            target=lambda: seen.append(len(database.rows(wanted, team="perf")))
        )
        other.start()
        other.join()
    assert seen == [0]
    assert len(database.rows(wanted, team="perf")) == 1
