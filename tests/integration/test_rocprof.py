"""Results of rocprofv3, as databases and as JSON, have the counts, links and busy times read from
them by hand, and nothing of what they hold about users and hosts.

The expected figures of the recorded file stand in the README beside it.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from analyzer.cli import main
from analyzer.ingest import ingest
from analyzer.store import open_store
from analyzer.store.verify import verify
from analyzer.trace import formats
from analyzer.trace.reader import ReadOptions
from analyzer.trace.stream import TraceError
from tests.support.recordings import ask, check_for_secrets
from tests.support.rocprof_files import SECRET, RocprofBuilder, small_run

FORMS = ("3.0.2", "4.1.0", "json")


def written(made: RocprofBuilder, form: str, folder: Path) -> Path:
    if form == "json":
        return made.write_json(folder / "results.json")
    return made.write(folder / "results.db", form)


@pytest.fixture(scope="module")
def recorded(shared_dir: Path) -> Path:
    return shared_dir / "traces" / "next" / "rocprof" / "rocprofv3-dispatch-only.json.gz"


def test_a_recording_of_dispatches_alone_has_its_counts_and_no_figure_of_the_host(
    recorded: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = tmp_path / "s.duckdb"
    (run,) = ingest(recorded, store, jobs=1)
    assert (run.state, run.kernels) == ("stored", 43_915)
    queues = "SELECT count(*) n FROM device_events GROUP BY device, stream ORDER BY n DESC"
    assert [n for (n,) in ask(store, queues)] == [38_761, 3_034, 1_309, 500, 311]
    assert ask(store, "SELECT DISTINCT device FROM device_events") == [("0",)]
    span = "SELECT max(start_ns + dur_ns) - min(start_ns) FROM device_events"
    assert ask(store, span) == [(15_122_023_494,)]
    figures = "device_busy_ns, hdbi, hdbi_busy, orchestration_ns, tklqt_ns"
    assert ask(store, f"SELECT {figures} FROM totals WHERE trace_id IS NULL") == [
        (4_233_112_334, None, None, None, None)
    ]
    assert "no_calls" in [finding.code for finding in run.findings]
    assert ask(store, "SELECT gpu FROM runs") == [("AMD Instinct MI350X",)]
    assert not verify(open_store(store))
    assert main(["report", "latest", "--db", str(store)]) == 0
    assert "HDBI is unknown: the trace holds no launch call" in capsys.readouterr().out


@pytest.mark.parametrize("form", FORMS)
def test_kernels_and_copies_belong_to_their_calls_and_operators(form: str, tmp_path: Path) -> None:
    store = tmp_path / "s.duckdb"
    ingest(written(small_run(), form, tmp_path), store, jobs=1)
    links = (
        "SELECT links.kernel, links.op, names.name FROM links LEFT JOIN calls USING (call_id) "
        "LEFT JOIN names USING (name_id) ORDER BY links.start_ns LIMIT 4"
    )
    assert ask(store, links) == [
        ("before", None, None),
        ("gemm", "aten::linear", "hipLaunchKernel"),
        # The HSA call that the dispatch names lies within the HIP call.
        ("relu", "aten::linear", "hipLaunchKernel"),
        ("Memcpy HtoD", None, "hipMemcpyAsync"),
    ]
    assert ask(store, "SELECT sum(bytes) FROM device_events") == [(8192,)]
    assert not verify(open_store(store))


@pytest.mark.parametrize("form", FORMS)
def test_device_queue_and_configuration_are_those_of_the_record(form: str, tmp_path: Path) -> None:
    store = tmp_path / "s.duckdb"
    ingest(written(small_run(), form, tmp_path), store, jobs=1)
    on = "SELECT DISTINCT kind, device, stream FROM device_events ORDER BY kind"
    assert ask(store, on) == [("kernel", "2", "16"), ("memcpy", "2", "stream 0")]
    config = "SELECT DISTINCT grid, block, shared_memory, registers FROM kernels"
    # 512 by 2 work-items in groups of 64
    assert ask(store, config) == [("[8, 2, 1]", "[64, 1, 1]", 64, 24)]
    threads = "SELECT DISTINCT pid, tid FROM threads JOIN calls USING (thread_id)"
    assert ask(store, threads) == [("908", "908")]


@pytest.mark.parametrize("form", FORMS)
def test_markers_are_annotations_that_may_be_steps(form: str, tmp_path: Path) -> None:
    path, store = written(small_run(), form, tmp_path), tmp_path / "s.duckdb"
    assert main(["ingest", str(path), "--db", str(store), "--step-annotation", "decode*"]) < 2
    assert ask(store, "SELECT name FROM steps ORDER BY start_ns") == [("decode 0",), ("decode 1",)]


@pytest.mark.parametrize("form", FORMS)
def test_nothing_secret_reaches_store_or_output(
    form: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = written(small_run(), form, tmp_path)
    assert SECRET.encode() in path.read_bytes()
    check_for_secrets(path, SECRET, tmp_path / "work", capfd)


@pytest.mark.parametrize("form", FORMS)
def test_a_copy_to_the_host_is_of_the_device_that_it_came_from(form: str, tmp_path: Path) -> None:
    made = RocprofBuilder().add_call("hipMemcpy", 10, 9, 1).add_copy(20, 5, 1, 64, back=True)
    ingest(written(made, form, tmp_path), tmp_path / "s.duckdb", jobs=1)
    sql = "SELECT name, device FROM device_events JOIN names USING (name_id)"
    assert ask(tmp_path / "s.duckdb", sql) == [("Memcpy DtoH", "2")]


def test_the_databases_of_a_job_are_traces_of_one_run(tmp_path: Path) -> None:
    job = tmp_path / "job"
    for host, pid in (("a", 1), ("a", 2), (SECRET, 3)):
        small_run(pid).write(job / host / f"{pid}_results.db")
    (run,) = ingest(job, tmp_path / "s.duckdb", jobs=1)
    assert (run.name, run.kernels) == ("job", 15)
    assert ask(tmp_path / "s.duckdb", "SELECT DISTINCT file FROM traces") == [("job",)]
    pids = "SELECT DISTINCT pid FROM threads JOIN calls USING (thread_id) ORDER BY pid"
    assert ask(tmp_path / "s.duckdb", pids) == [("1",), ("2",), ("3",)]
    (again,) = ingest(job, tmp_path / "s.duckdb", jobs=1)
    assert (again.state, again.run_id) == ("already stored", run.run_id)


def test_databases_of_other_times_in_one_folder_are_runs_of_their_own(tmp_path: Path) -> None:
    for pid in (1, 2):
        small_run(pid, init=pid * 10**10).write(tmp_path / f"{pid}_results.db")
    runs = ingest(tmp_path, tmp_path / "s.duckdb", jobs=1)
    assert [run.name for run in runs] == ["1_results", "2_results"]


def test_a_merged_database_keeps_the_links_of_its_processes_apart(tmp_path: Path) -> None:
    path = tmp_path / "merged.db"
    with sqlite3.connect(path) as connection:
        for pid in (1, 2):
            small_run(pid).write_to(connection)
    connection.close()
    (run,) = ingest(path, tmp_path / "s.duckdb", jobs=1)
    assert run.kernels == 10
    sql = "SELECT trace_id, count(call_id) FROM device_events GROUP BY trace_id ORDER BY trace_id"
    assert ask(tmp_path / "s.duckdb", sql) == [(0, 6), (1, 6)]


def test_json_of_several_processes_is_a_trace_each(tmp_path: Path) -> None:
    path = small_run(1).write_json(tmp_path / "r.json", small_run(2))
    (run,) = ingest(path, tmp_path / "s.duckdb", jobs=1)
    assert (run.kernels, len(ask(tmp_path / "s.duckdb", "SELECT 1 FROM traces"))) == (10, 2)


@pytest.mark.parametrize("form", FORMS)
def test_what_is_too_large_is_refused_and_progress_told(form: str, tmp_path: Path) -> None:
    path = written(small_run(), form, tmp_path)
    with pytest.raises(TraceError, match="more than 3 events"):
        formats.read(path, ReadOptions(most_events=3))
    with pytest.raises(TraceError, match="more than 9 bytes"):
        formats.read(path, ReadOptions(most_bytes=9))
    seen: list[int] = []
    formats.read(path, ReadOptions(progress=seen.append))
    assert seen
    assert seen == sorted(seen)
    assert seen[-1] <= path.stat().st_size


@pytest.mark.parametrize(
    ("form", "content"),
    [("json", b'{"rocprofiler-sdk-tool": [{"buffer_records": {"hip'), ("db", b"")],
)
def test_what_is_damaged_or_empty_is_one_line_and_exit_code_2(
    form: str, content: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / f"r.{form}"
    if content:
        path.write_bytes(content)
    else:
        made = RocprofBuilder().add_kernel("k", 1, 1, 1).write(path)
        with sqlite3.connect(made) as connection:
            connection.execute(f'DELETE FROM "rocpd_kernel_dispatch_0199_{908}"')
        connection.close()
    assert main(["ingest", str(path), "--db", str(tmp_path / "s.duckdb")]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert not (tmp_path / "s.duckdb").exists()


def test_a_process_whose_device_is_unknown_stands_beside_one_with_a_device(tmp_path: Path) -> None:
    path = tmp_path / "merged.db"
    with sqlite3.connect(path) as connection:
        for pid in (1, 2):
            small_run(pid).write_to(connection)
        connection.execute("UPDATE rocpd_info_agent_0199_1 SET type = 'NIC'")
    connection.close()
    ingest(path, tmp_path / "s.duckdb", jobs=1)
    sql = "SELECT DISTINCT trace_id, device FROM device_events ORDER BY trace_id"
    assert ask(tmp_path / "s.duckdb", sql) == [(0, None), (1, "2")]


def test_kernels_without_times_leave_the_calls(tmp_path: Path) -> None:
    path = small_run().write(tmp_path / "r.db")
    with sqlite3.connect(path) as connection:
        connection.execute('UPDATE "rocpd_kernel_dispatch_0199_908" SET "end" = NULL')
    connection.close()
    (run,) = ingest(path, tmp_path / "s.duckdb", jobs=1)
    assert "no_time" in [finding.code for finding in run.findings]
    assert ask(tmp_path / "s.duckdb", "SELECT DISTINCT kind FROM device_events") == [("memcpy",)]
