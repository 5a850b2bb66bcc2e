"""`analyzer verify`: a sound store has no problem, and each kind of damage is found."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from analyzer.errors import AnalyzerError
from analyzer.ingest import ingest
from analyzer.store import open_store
from analyzer.store.verify import CHECKS, FILES_CHECK, MOST_MESSAGES, Problem, verify
from analyzer.store.write import RUN_TABLES

EAGER = "gpt2-prefill-bs1-s512"
SAMPLES = [EAGER, "gpt2-prefill-bs1-s512-compile", "gpt2-prefill-bs1-s512-graph"]


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory, samples_dir: Path) -> Path:
    path = tmp_path_factory.mktemp("verify") / "store.duckdb"
    results = ingest([samples_dir / name for name in SAMPLES], path, jobs=1)
    assert {result.state for result in results} == {"stored"}
    return path


@pytest.fixture
def copy(sound: Path, tmp_path: Path) -> Path:
    """A store to damage."""
    return Path(shutil.copy(sound, tmp_path / "store.duckdb"))


def damage(store: Path, *statements: str) -> list[Problem]:
    """Change a store behind the analyzer's back; returns what verify says then."""
    with open_store(store).writing() as connection:
        for statement in statements:
            connection.execute(statement)
    return verify(store)


def test_a_sound_store_has_no_problem(sound: Path) -> None:
    assert verify(sound) == []


def test_an_empty_store_is_sound(tmp_path: Path) -> None:
    with open_store(tmp_path / "s.duckdb").writing():
        pass
    assert verify(tmp_path / "s.duckdb") == []


def test_what_is_odd_in_a_trace_is_no_damage(tmp_path: Path) -> None:
    """Orphans, a lost clock, an event without duration, a launch outside ops: kept, and sound."""
    events = [
        {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 0, "dur": 90},
        {"ph": "X", "cat": "cpu_op", "name": "aten::lost", "pid": 1, "tid": 1, "ts": 5, "dur": -4},
        {"ph": "X", "cat": "cpu_op", "name": "aten::open", "pid": 1, "tid": 1, "ts": 6},
        call("cudaLaunchKernel", 1, 10, 5),
        call("cudaLaunchKernel", 2, 95, 5),
        call("cudaLaunchKernel", 9, 101, 5),
        kernel("early", 1, 8, 4),
        kernel("plain", 2, 110, 4),
        kernel("orphan", 3, 112, 8),
        kernel("lost", 9, 10**15, 4),
    ]
    source = tmp_path / "odd.json"
    source.write_text(json.dumps({"traceEvents": events}))
    (result,) = ingest(source, tmp_path / "s.duckdb")
    assert result.error is None
    assert verify(tmp_path / "s.duckdb") == []


COLLECTIVE = (
    "INSERT INTO collectives (run_id, trace_id, step_id, device_event_id, wait_ns, transfer_ns, "
    "dur_ns) SELECT run_id, trace_id, step_id, device_event_id,"
)
FROM_EVENT = "FROM device_events WHERE device_event_id = 3"
# One statement of damage, the check that must find it, and a word of its message.
DAMAGE = [
    ("UPDATE ledger SET ns = ns + 1 WHERE account = 'python'", "ledger_wall", "add up to"),
    ("DELETE FROM ledger WHERE account = 'launch'", "ledger_wall", "add up to"),
    ("DELETE FROM ledger WHERE is_main", "ledger_wall", "no ledger"),
    ("UPDATE ledger SET is_main = false", "ledger_wall", "no ledger"),
    ("INSERT INTO ledger FROM ledger", "ledger_wall", "add up to"),
    ("UPDATE steps SET end_ns = end_ns + 1", "ledger_wall", "its wall time"),
    ("UPDATE ledger SET exposed_ns = exposed_ns + 1", "ledger_exposed", "device was idle"),
    ("UPDATE totals SET device_idle_ns = NULL", "ledger_exposed", "unknown"),
    ("UPDATE totals SET ft_ns = ft_ns + 1", "launch_sums", "ft_ns"),
    ("UPDATE totals SET ct_ns = NULL", "launch_sums", "ct_ns"),
    ("UPDATE totals SET kt_ns = kt_ns - 1", "launch_sums", "kt_ns"),
    ("UPDATE totals SET orchestration_ns = 5", "launch_sums", "orchestration_ns"),
    ("UPDATE totals SET tklqt_ns = 0", "launch_sums", "tklqt_ns"),
    ("UPDATE steps SET elapsed_ns = elapsed_ns + 1", "event_sums", "elapsed_ns"),
    ("UPDATE launches SET dct_ns = dct_ns + 1", "launch_sums", "ct_ns"),
    ("UPDATE launches SET dkt_ns = NULL", "launch_sums", "kt_ns"),
    ("UPDATE launches SET t_dispatch_ns = NULL", "launch_sums", "launches_without_op"),
    ("UPDATE launches SET is_graph = NOT is_graph", "launch_sums", "graph_launches"),
    ("UPDATE totals SET kernels = kernels + 1", "event_sums", "kernels"),
    ("UPDATE totals SET memsets = NULL", "event_sums", "memsets"),
    ("UPDATE totals SET device_busy_ns = device_busy_ns - 1", "event_sums", "device_busy_ns"),
    ("UPDATE device_events SET dur_ns = dur_ns + 1", "event_sums", "device_active_ns"),
    ("UPDATE device_events SET kind = 'memcpy' WHERE kind = 'memset'", "event_sums", "memcpys"),
    ("UPDATE device_events SET call_id = NULL", "event_sums", "orphan_device_events"),
    ("UPDATE calls SET device_events = 0", "event_sums", "launches_without_device_event"),
    ("UPDATE ops SET bad_time = true WHERE op_id = 3", "event_sums", "bad_time_events"),
    ("UPDATE totals SET wall_ns = wall_ns + 1", "event_sums", "idle and busy"),
    ("UPDATE totals SET kernels = 1 WHERE trace_id IS NULL", "run_sums", "of the run is 1"),
    ("UPDATE totals SET hdbi = 0.5", "run_sums", "HDBI"),
    ("UPDATE totals SET hdbi = NULL", "run_sums", "HDBI"),
    ("UPDATE device_events SET call_id = call_id + 100000", "ids", "device_events.call_id"),
    ("UPDATE device_events SET op_id = -1 WHERE op_id IS NOT NULL", "ids", "device_events.op_id"),
    ("UPDATE device_events SET kernel_id = 99999", "ids", "device_events.kernel_id"),
    ("DELETE FROM kernels", "ids", "kernels"),
    ("DELETE FROM names WHERE name_id = 1", "ids", "names"),
    ("DELETE FROM shapes", "ids", "ops.shape_id"),
    ("DELETE FROM threads", "ids", "threads"),
    ("DELETE FROM steps WHERE step_index = 1", "ids", "steps"),
    ("DELETE FROM ops WHERE op_id < 50", "ids", "ops"),
    ("DELETE FROM calls", "ids", "launches.call_id"),
    ("DELETE FROM hosts", "ids", "runs.host_id"),
    ("INSERT INTO runs FROM runs", "duplicates", "more than once"),
    ("INSERT INTO hosts FROM hosts", "duplicates", "hosts"),
    ("INSERT INTO device_events FROM device_events", "duplicates", "device_events"),
    ("INSERT INTO names FROM names", "duplicates", "names"),
    ("INSERT INTO totals FROM totals", "duplicates", "totals"),
    ("UPDATE calls SET call_id = 0", "duplicates", "calls"),
    ("DELETE FROM runs", "rows", "belong to no run"),
    ("DELETE FROM totals", "rows", "no row in totals"),
    ("DELETE FROM totals WHERE trace_id IS NULL", "rows", "no totals of its own"),
    ("UPDATE runs SET content_sha256 = 'f' || content_sha256", "rows", "content hash"),
    ("UPDATE device_events SET correlation_id = correlation_id + 1", "link_fields", "correlation"),
    ("UPDATE device_events SET step_id = NULL", "link_fields", "another step"),
    ("UPDATE device_events SET op_id = NULL", "link_fields", "another op"),
    ("UPDATE calls SET start_ns = start_ns - 10000000000", "link_fields", "outside the op"),
    ("UPDATE calls SET start_ns = start_ns - 10000000000", "link_fields", "outside the step"),
    ("UPDATE launches SET kernels = 7", "link_fields", "number of kernels"),
    ("UPDATE launches SET t_exec_ns = 7", "link_fields", "kernel time"),
    ("UPDATE launches SET t_launch_ns = t_launch_ns + 1", "link_fields", "T_launch"),
    ("DELETE FROM launches", "link_fields", "no row in launches"),
    ("UPDATE traces SET events = events + 1", "event_counts", "in all"),
    ("DELETE FROM event_counts WHERE category = 'kernel'", "event_counts", "kernels of 0"),
    (f"{COLLECTIVE} 5, dur_ns - 5, dur_ns {FROM_EVENT}", "rank_waits", "are charged for it"),
    (f"{COLLECTIVE} 0, dur_ns - 1, dur_ns {FROM_EVENT}", "rank_waits", "transferred"),
]  # fmt: skip


@pytest.mark.parametrize(("statement", "check", "word"), DAMAGE)
def test_damage_is_found(copy: Path, statement: str, check: str, word: str) -> None:
    problems = damage(copy, statement)
    assert [p for p in problems if p.check == check and word in p.message], problems[:5]
    assert all("\n" not in problem.message for problem in problems)


def test_every_check_has_its_damage() -> None:
    assert {check for _, check, _ in DAMAGE} == set(CHECKS)


@pytest.mark.parametrize("table", [table for table in RUN_TABLES if table != "runs"])
def test_a_row_of_no_run_is_found_in_every_table(copy: Path, table: str) -> None:
    problems = damage(copy, f"INSERT INTO {table} (run_id) VALUES ('gone')")
    assert Problem("gone", "rows", f"1 rows in {table} belong to no run of the store") in problems


def test_a_problem_names_its_run_and_only_that(copy: Path) -> None:
    with open_store(copy).reading() as connection:
        sql = "SELECT run_id FROM runs WHERE name = ?"
        run_id = connection.execute(sql, [EAGER]).fetchall()[0][0]
    problems = damage(copy, f"UPDATE totals SET kernels = 0 WHERE run_id = '{run_id}'")

    assert {problem.run_id for problem in problems} == {run_id}
    assert verify(copy, run_id) == problems
    assert verify(copy, "another") == []


def test_many_problems_of_a_kind_are_counted_not_listed(copy: Path) -> None:
    problems = damage(
        copy,
        "INSERT INTO totals BY NAME SELECT totals.* REPLACE (1000 + i AS step_id, 9 AS kernels) "
        "FROM totals, range(50) AS r(i) WHERE trace_id IS NOT NULL AND step_id IS NULL",
    )
    messages = [p.message for p in problems if p.check == "event_sums"]
    assert len(messages) == len(SAMPLES) * (MOST_MESSAGES + 1)
    assert any(message.startswith("and ") for message in messages)


def test_a_changed_file_is_found_and_a_missing_one_is_not(
    tmp_path: Path, samples_dir: Path
) -> None:
    run_dir = tmp_path / "run"
    shutil.copytree(samples_dir / EAGER, run_dir)
    store = tmp_path / "s.duckdb"
    ingest(run_dir, store)
    assert verify(store) == []

    (run_dir / "manifest.json").write_text("{}")
    (problem,) = verify(store)
    assert problem.check == FILES_CHECK
    assert "manifest.json is not the file that was loaded" in problem.message

    shutil.rmtree(run_dir)
    assert verify(store) == []


def test_a_changed_trace_file_is_found(tmp_path: Path) -> None:
    source = tmp_path / "trace.json"
    source.write_text(json.dumps({"traceEvents": [kernel("k", 1, 1, 1)]}))
    ingest(source, tmp_path / "s.duckdb")
    source.write_text("{}")
    assert [problem.check for problem in verify(tmp_path / "s.duckdb")] == [FILES_CHECK]


def test_a_store_without_a_table_is_refused_in_one_line(copy: Path) -> None:
    with pytest.raises(AnalyzerError, match="lacks a table") as raised:
        damage(copy, "DROP TABLE latency CASCADE")
    assert "\n" not in str(raised.value)


def call(name: str, correlation: int, ts: int, dur: int) -> dict[str, object]:
    """One API call of a trace, times in us."""
    return {"ph": "X", "cat": "cuda_runtime", "name": name, "pid": 1, "tid": 1, "ts": ts,
            "dur": dur, "args": {"correlation": correlation}}  # fmt: skip


def kernel(name: str, correlation: int, ts: int, dur: int) -> dict[str, object]:
    """One kernel of a trace, times in us."""
    return {"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": 7, "ts": ts, "dur": dur,
            "args": {"device": 0, "stream": 7, "correlation": correlation}}  # fmt: skip
