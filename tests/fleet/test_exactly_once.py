"""However often work is begun again, and by whom: each run is in the lake once, whole."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import duckdb
import pytest

from analyzer.errors import AnalyzerError, Unreachable
from analyzer.ingest import ingest
from analyzer.store import open_store
from analyzer.store.lake_claim import claim
from analyzer.store.verify import verify
from analyzer.store.write import RUN_TABLES
from conftest import missing
from fleet.copies import copies
from fleet.services import ROOT, Absent, Postgres, ray_cluster

# Processes start and are killed: on a busy machine that takes its time.
pytestmark = pytest.mark.timeout(900)

INGEST = """
import sys
from analyzer.ingest import ingest
from schemas.errors import HostboundError
print("ready", flush=True)
try:
    results = ingest(sys.argv[2:], sys.argv[1], jobs=1, replace_runs=True)
except HostboundError as error:
    print(error, file=sys.stderr)
    raise SystemExit(2)
for result in results:
    print(result.error or "", file=sys.stderr)
raise SystemExit(any(r.state == "failed" for r in results))
"""


def start(db: Path, *paths: Path, prefix: Sequence[str] = ()) -> subprocess.Popen[str]:
    """An ingest of its own process that has come up to its work."""
    process = subprocess.Popen(
        [*prefix, sys.executable, "-c", INGEST, str(db), *map(str, paths)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert process.stdout is not None
    process.stdout.readline()
    return process


def counts(db: Path) -> dict[str, dict[str, int]]:
    """Rows by run, of each table that has rows."""
    with open_store(db).reading() as connection:
        return {
            table: dict(found)
            for table in RUN_TABLES
            if (
                found := connection.execute(
                    f"SELECT run_id, count(*) FROM {table} GROUP BY 1"
                ).fetchall()
            )
        }


@pytest.fixture(scope="module")
def sample(samples_dir: Path) -> Path:
    return samples_dir / "gpt2-prefill-bs1-s512-compile"


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory, sample: Path) -> list[Path]:
    """Sixteen runs that differ in nothing but their id."""
    return copies(sample / "trace.json.gz", tmp_path_factory.mktemp("traces") / "16", 16)


def assert_each_once(db: Path, traces: Sequence[Path], tmp_path: Path) -> None:
    """All runs are there, each with exactly the rows that a file store has of one."""
    file = tmp_path / "expected.duckdb"
    ingest(traces[0], file)
    expected = {table: next(iter(found.values())) for table, found in counts(file).items()}
    found = counts(db)
    assert len(found["runs"]) == len(traces)
    for table, rows in expected.items():
        assert set(found[table].values()) == {rows}, table
        assert len(found[table]) == len(traces), table
    assert verify(db) == []


def test_ray_loads_each_run_once_although_workers_are_killed(
    lake: Path, traces: list[Path], tmp_path: Path
) -> None:
    """Two nodes; each worker process owns its runs' transactions."""
    try:
        said = ray_cluster(Path(__file__).with_name("ray_load.py"), traces[0].parent, lake, 3)
    except Absent as absent:
        missing(str(absent))
        raise
    answer = json.loads(said.strip().splitlines()[-1])
    assert answer["errors"] == []
    assert answer["killed"] == 3
    assert_each_once(lake, traces, tmp_path)


def test_ray_prepares_and_the_driver_writes_where_the_store_is_a_file(
    traces: list[Path], tmp_path: Path
) -> None:
    store = tmp_path / "s.duckdb"
    try:
        said = ray_cluster(Path(__file__).with_name("ray_load.py"), traces[0].parent, store, 1)
    except Absent as absent:
        missing(str(absent))
        raise
    answer = json.loads(said.strip().splitlines()[-1])
    assert (answer["errors"], answer["killed"]) == ([], 1)
    assert_each_once(store, traces, tmp_path)


def test_a_writer_killed_at_any_moment_leaves_all_of_a_run_or_nothing(
    lake: Path, traces: list[Path], tmp_path: Path
) -> None:
    """And the next one, which begins at once, makes it whole."""
    ingest(traces[0], lake)
    began = time.monotonic()
    process = start(lake, traces[1])
    process.communicate()
    took = time.monotonic() - began
    assert process.returncode == 0
    expected = {table: set(found.values()) for table, found in counts(lake).items()}
    assert all(len(values) == 1 for values in expected.values())
    dice = random.Random(11)
    for number in range(8):
        process = start(lake, traces[2 + number % 2])
        time.sleep(dice.uniform(0.05, 1.0) * took)
        process.send_signal(signal.SIGKILL)
        again = start(lake, traces[2 + number % 2])
        process.communicate()
        _, said = again.communicate(timeout=800)
        assert again.returncode == 0, said
        assert {table: set(found.values()) for table, found in counts(lake).items()} == expected
    assert_each_once(lake, traces[:4], tmp_path)


def test_many_processes_that_load_the_same_runs_at_once_into_a_new_lake_store_each_once(
    lake: Path, traces: list[Path], sample: Path, samples_dir: Path, tmp_path: Path
) -> None:
    """The tables are made by one of them, a host of several runs is added by one of them."""
    one_host = [sample, samples_dir / "gpt2-prefill-bs1-s512"]
    processes = [start(lake, *one_host, traces[0]) for _ in range(3)]
    for process in processes:
        _, said = process.communicate(timeout=800)
        assert process.returncode == 0, said
    with open_store(lake).reading() as connection:
        assert connection.execute("SELECT count(*) FROM runs").fetchall() == [(3,)]
        hosts = connection.execute("SELECT count(*), count(DISTINCT host_id) FROM hosts").fetchall()
        assert hosts[0][0] == hosts[0][1] > 0
        assert connection.execute("SELECT count(*) FROM store_info").fetchall() == [(1,)]
    assert verify(lake) == []


def test_an_outage_while_somebody_reads_is_said_as_such(
    lake: Path, traces: list[Path], postgres: Postgres
) -> None:
    ingest([traces[0]], lake)
    sql = "SELECT count(*) FROM runs"
    for mode in ("immediate", "fast"):

        def read_while_it_goes(mode: str = mode) -> None:
            with open_store(lake).reading() as connection:
                assert connection.execute(sql).fetchall() == [(1,)]
                postgres.stop(mode)
                connection.execute(sql).fetchall()

        try:
            with pytest.raises(Unreachable, match="did not answer"):
                read_while_it_goes()
        finally:
            postgres.start()
        with open_store(lake).reading() as connection:
            assert connection.execute(sql).fetchall() == [(1,)]
            with pytest.raises(duckdb.Error, match="Binder"):
                connection.execute("SELECT nothing FROM runs")


@pytest.mark.parametrize(
    ("said", "raised"),
    [
        (
            duckdb.BinderException(
                "Binder Error: Failed to query most recent snapshot for DuckLake: Failed to prepare"
                ' query "SELECT max(snapshot_id)\nFROM x": server closed the connection'
            ),
            Unreachable,
        ),
        (
            duckdb.InvalidInputException(
                "Invalid Input Error: Attempting to fetch from an unsuccessful query result\n"
                "Error: TransactionContext Error: Current transaction is aborted (please ROLLBACK)"
            ),
            Unreachable,
        ),
        (duckdb.BinderException("Referenced column nothing not found"), duckdb.BinderException),
    ],
)
def test_an_outage_that_ducklake_calls_a_mistake_in_the_statement_is_an_outage(
    lake: Path, said: Exception, raised: type[Exception]
) -> None:
    """As seen where PostgreSQL was restarted while a statement was bound, or fetched from."""

    def ask() -> None:
        with open_store(lake).reading():
            raise said

    with open_store(lake).writing():
        pass
    with pytest.raises(raised):
        ask()


def test_postgresql_that_is_restarted_in_the_midst_costs_time_and_nothing_else(
    lake: Path, traces: list[Path], tmp_path: Path, postgres: Postgres
) -> None:
    with open_store(lake).writing():
        pass
    process = start(lake, *traces)
    outages = 0
    reader_errors: list[BaseException] = []
    finished = threading.Event()

    def read() -> None:
        """A reader that stays: it must see whole runs only, and outlive the outages."""
        while not finished.is_set():
            try:
                with open_store(lake).reading() as connection:
                    sql = "SELECT (SELECT count(*) FROM runs), (SELECT count(*) FROM traces)"
                    ((runs, of_runs),) = connection.execute(sql).fetchall()
                    assert runs == of_runs
            except AnalyzerError:  # said in one line; the next look succeeds
                pass
            except BaseException as error:
                reader_errors.append(error)
                return
            time.sleep(0.1)

    reader = threading.Thread(target=read)
    reader.start()
    for mode, after in (("immediate", 1), ("fast", 4)):
        while process.poll() is None and len(counts(lake).get("runs", ())) < after:
            time.sleep(0.1)
        time.sleep(0.5)  # somewhere within the work on the next run
        if process.poll() is None:
            postgres.stop(mode)
            time.sleep(1.0)
            postgres.start()
            outages += 1
    _, said = process.communicate(timeout=800)
    finished.set()
    reader.join()
    assert outages == 2
    assert process.returncode == 0, said
    assert reader_errors == []
    assert_each_once(lake, traces, tmp_path)


def test_a_full_disk_is_one_line_and_the_lake_as_before(
    lake: Path, traces: list[Path], tmp_path: Path
) -> None:
    """The data folder is a file system of 32 KiB; PostgreSQL's own disk is another."""
    data = tmp_path / "data"
    data.mkdir()
    text = lake.read_text().splitlines()
    lake.write_text("\n".join([f'data = "{data}"' if "data =" in t else t for t in text]))
    with open_store(lake).writing():
        pass
    command = f'mount -t tmpfs -o size=32k none {data} && exec "$@"'
    prefix = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--mount", "-r"]
    prefix += ["sh", "-c", command, "sh"]
    if subprocess.run([*prefix, "true"], check=False).returncode:
        missing("no file system can be mounted here; run as root, or allow user namespaces")
    began = time.monotonic()
    process = start(lake, traces[0], prefix=prefix)
    _, said = process.communicate(timeout=800)
    assert process.returncode == 1
    assert len(said.strip().splitlines()) == 1
    assert "space" in said
    assert time.monotonic() - began < 60
    with open_store(lake).reading() as connection:
        for table in RUN_TABLES:
            assert connection.execute(f"SELECT count(*) FROM {table}").fetchall() == [(0,)]
    ingest(traces[0], lake)
    assert_each_once(lake, traces[:1], tmp_path)


def test_a_claim_that_another_process_holds_is_waited_for_and_then_said(
    lake: Path, postgres: Postgres
) -> None:
    with open_store(lake).writing():
        pass
    with claim(lake, "run x"), claim(lake, "run y"):
        began = time.monotonic()
        with (
            pytest.raises(AnalyzerError, match="another process writes run x") as caught,
            claim(lake, "run x", patience_s=0.5),
        ):
            pass
        assert 0.4 < time.monotonic() - began < 20
        assert "\n" not in str(caught.value)
    with claim(lake, "run x", patience_s=5):
        pass


def test_a_writer_waits_for_a_commit_that_outlives_the_process_that_sent_it(
    lake: Path, postgres: Postgres
) -> None:
    """Played by a session of the dead writer's name that is still at work."""
    with open_store(lake).writing():
        pass
    zombie = threading.Thread(
        target=postgres.psql,
        args=("SET application_name = 'hostbound run x'; SELECT pg_sleep(2)",),
    )
    began = time.monotonic()
    zombie.start()
    time.sleep(0.5)
    with (
        pytest.raises(AnalyzerError, match="another process writes"),
        claim(lake, "run x", patience_s=0.2),
    ):
        pass
    with claim(lake, "run x"):
        assert time.monotonic() - began > 2
    zombie.join()
