"""The backup and the restore of docs/operations.md, done."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from analyzer.errors import AnalyzerError
from analyzer.ingest import ingest
from analyzer.server.check import check
from analyzer.store import open_store
from analyzer.store.verify import verify
from analyzer.store.write import RUN_TABLES
from fleet.services import Postgres
from support.team_server import TeamServer, trace_bytes

EARLY = ("gpt2-prefill-bs1-s512", "gpt2-prefill-bs1-s512-graph")


def contents(db: Path) -> dict[str, list[tuple]]:
    with open_store(db).reading() as connection:
        return {
            table: connection.execute(f"SELECT * FROM {table} ORDER BY ALL").fetchall()
            for table in (*RUN_TABLES, "hosts")
        }


def test_a_lake_comes_back_in_another_place_as_it_was_at_the_dump(
    tmp_path: Path, postgres: Postgres, samples_dir: Path
) -> None:
    """Catalog first, data after it: what is loaded between is left out, nothing is missed."""
    lake = tmp_path / "lake.toml"
    lake.write_text(f'catalog = "{postgres.catalog}"\ndata = "data"\nschema = "kept"\n')
    ingest([samples_dir / name for name in EARLY], lake, jobs=1)
    before = contents(lake)

    connect = ("-h", postgres.folder, "-U", "hostbound")
    dump = postgres.folder / "lake.dump"
    postgres.run("pg_dump", *connect, "-d", "postgres", "-n", "kept", "-Fc", "-f", dump)
    ingest(samples_dir / "gpt2-bs1-s512", lake)  # while the data are copied
    shutil.copytree(tmp_path / "data", tmp_path / "elsewhere")

    postgres.run("createdb", *connect, "restored")
    postgres.run("pg_restore", *connect, "-d", "restored", "--exit-on-error", dump)
    moved = tmp_path / "moved.toml"
    catalog = postgres.catalog.replace("dbname=postgres", "dbname=restored")
    moved.write_text(f'catalog = "{catalog}"\ndata = "elsewhere"\nschema = "kept"\n')
    with pytest.raises(AnalyzerError, match="DATA_PATH"):  # it is told that the data moved
        contents(moved)
    postgres.run(
        *("psql", *connect, "-d", "restored", "-c"),
        f"UPDATE kept.ducklake_metadata SET value = '{tmp_path / 'elsewhere'}/' "
        "WHERE key = 'data_path'",
    )
    shutil.rmtree(tmp_path / "data")
    assert contents(moved) == before
    assert verify(moved) == []
    (result,) = ingest(samples_dir / "gpt2-bs1-s512", moved)
    assert result.state == "stored"
    assert verify(moved) == []
    # Parquet of the run that the dump did not know is an orphan, which upkeep removes in time.
    open_store(moved).maintain(keep_days=0)
    assert verify(moved) == []


def test_tokens_jobs_and_originals_come_back_with_the_lake(
    tmp_path: Path, postgres: Postgres
) -> None:
    lake = tmp_path / "team.toml"
    lake.write_text(f'catalog = "{postgres.catalog}"\ndata = "data"\nschema = "team"\n')
    server = TeamServer(tmp_path / "here", "--db", str(lake)).start()
    content, later = trace_bytes(3, seed=1), trace_bytes(3, seed=2)
    connect = ("-h", postgres.folder, "-U", "hostbound")
    dump = postgres.folder / "team.dump"
    with server.client() as client:
        token = client.post("/api/v1/tokens", json={"scopes": ["admin"]}).json()["token"]
    with server.client(token) as client:
        job = client.upload(content)
        schemas = ("-n", "team", "-n", "team_server")
        postgres.run("pg_dump", *connect, "-d", "postgres", *schemas, "-Fc", "-f", dump)
        assert client.upload(later)["state"] == "done"  # before the originals are copied
    server.stop()
    for name in ("data", "data.originals"):
        shutil.copytree(tmp_path / name, tmp_path / "copy" / name)

    postgres.run("createdb", *connect, "team")
    postgres.run("pg_restore", *connect, "-d", "team", "--exit-on-error", dump)
    moved = tmp_path / "copy" / "team.toml"
    catalog = postgres.catalog.replace("dbname=postgres", "dbname=team")
    moved.write_text(f'catalog = "{catalog}"\ndata = "data"\nschema = "team"\n')
    postgres.run(
        *("psql", *connect, "-d", "team", "-c"),
        f"UPDATE team.ducklake_metadata SET value = '{tmp_path / 'copy' / 'data'}/' "
        "WHERE key = 'data_path'",
    )
    server = TeamServer(tmp_path / "there", "--db", str(moved)).start()
    try:
        with server.client(token) as client:
            assert client.get(f"/api/v1/jobs/{job['id']}").json() == job
            assert client.announce(content).json()["status"] == "stored"
            # The dump did not know this one: it is taken in from its original.
            assert client.job_of(later)["state"] == "done"
            assert len(client.run_ids()) == 2
        with server.client() as client:
            assert client.get("/api/v1/runs").status_code == 401
    finally:
        server.stop()
    assert check(tmp_path / "copy" / "team.toml.data") == []


def test_a_file_store_comes_back_from_a_copy(tmp_path: Path, samples_dir: Path) -> None:
    store = tmp_path / "s.duckdb"
    ingest(samples_dir / EARLY[0], store, keep_originals=True)
    before = contents(store)
    (tmp_path / "backup").mkdir()
    for part in tmp_path.glob("s.duckdb*"):
        copy = shutil.copytree if part.is_dir() else shutil.copy2
        copy(part, tmp_path / "backup" / part.name)
    ingest(samples_dir / EARLY[1], store)
    restored = tmp_path / "backup" / "s.duckdb"
    assert contents(restored) == before
    assert verify(restored) == []
