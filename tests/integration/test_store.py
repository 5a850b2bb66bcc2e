"""A store survives kills, two writers, a full disk, repeats; and what is no store is refused."""

from __future__ import annotations

import json
import random
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import duckdb
import pytest

from analyzer.errors import AnalyzerError
from analyzer.ingest import ingest
from analyzer.store import open_store
from analyzer.store.write import RUN_TABLES
from schemas.errors import HostboundError
from schemas.manifest import Manifest, TraceFile
from schemas.run_directory import file_sha256
from tests.support.tracebuilder import TraceBuilder, worked_example

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
print([r.state for r in results])
raise SystemExit(any(r.state == "failed" for r in results))
"""


def start(store: Path, *paths: Path, **options: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", INGEST, str(store), *map(str, paths)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).resolve().parents[2],
        **options,  # type: ignore[call-overload]
    )


def contents(store: Path) -> dict[str, dict[str, int]]:
    """Rows of each table by run."""
    with duckdb.connect(str(store), read_only=True) as connection:
        return {
            table: dict(
                connection.execute(f"SELECT run_id, count(*) FROM {table} GROUP BY 1").fetchall()
            )
            for table in RUN_TABLES
        }


@pytest.fixture(scope="module")
def large(samples_dir: Path) -> Path:
    return samples_dir / "gpt2-prefill-bs1-s512"


@pytest.fixture
def small(tmp_path: Path) -> Path:
    return worked_example().write(tmp_path / "small.json")


@pytest.mark.slow
def test_an_ingest_killed_at_any_moment_leaves_the_store_as_before_or_complete(
    tmp_path: Path, small: Path, large: Path
) -> None:
    store = tmp_path / "s.duckdb"
    ingest(small, store)
    before = contents(store)
    began = time.monotonic()
    process = start(store, large)
    assert process.stdout is not None
    process.stdout.readline()
    ready = time.monotonic()
    process.communicate()
    assert process.returncode == 0
    took = time.monotonic() - ready
    assert ready > began
    after = contents(store)
    assert len(after["runs"]) == 2
    dice = random.Random(7)
    seen = set()
    for number in range(12):
        # From the second round on a run is replaced: before and after are the same rows.
        if number % 2 == 0:
            store.unlink()
            Path(f"{store}.wal").unlink(missing_ok=True)
            ingest(small, store)
        process = start(store, large)
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(dice.uniform(0.1, 1.0) * took)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        with open_store(store).writing():
            pass
        now = contents(store)
        assert now in (before, after)
        seen.add(len(now["runs"]))
    ingest(large, store, replace_runs=True)
    assert contents(store) == after


@pytest.mark.slow
def test_an_ingest_killed_while_it_makes_the_store_leaves_none_or_a_sound_one(
    tmp_path: Path, small: Path
) -> None:
    dice = random.Random(8)
    for number in range(6):
        store = tmp_path / f"new{number}.duckdb"
        process = start(store, small)
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(dice.uniform(0.0, 0.5))
        process.send_signal(signal.SIGKILL)
        process.communicate()
        ingest(small, store, jobs=1)
        assert len(contents(store)["runs"]) == 1


@pytest.mark.slow
def test_two_ingests_at_once_into_one_new_store_both_succeed(
    tmp_path: Path, small: Path, large: Path
) -> None:
    store = tmp_path / "s.duckdb"
    processes = [start(store, small), start(store, large)]
    for process in processes:
        _, said = process.communicate(timeout=60)
        assert process.returncode == 0, said
    assert len(contents(store)["runs"]) == 2


@pytest.mark.slow
def test_a_full_disk_is_one_line_and_loses_nothing(tmp_path: Path, small: Path) -> None:
    store = tmp_path / "s.duckdb"
    ingest(small, store)
    before = contents(store)
    limit = store.stat().st_size + 4096
    dice = random.Random(6)
    built = TraceBuilder()
    for number in range(20_000):  # times that do not compress
        at = number * 50 + dice.random() * 9
        built.add_launch("gemm", at, dice.random() * 30, number + 1)
    large = built.write(tmp_path / "large.json")

    def little_space() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    process = start(store, large, preexec_fn=little_space)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 2, said
    assert len(said.strip().splitlines()) == 1, said
    assert "could not be written" in said
    assert contents(store) == before
    ingest(large, store)
    assert len(contents(store)["runs"]) == 2


def test_no_room_for_a_new_store_is_one_line(tmp_path: Path, small: Path) -> None:
    def no_space() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))

    process = start(tmp_path / "s.duckdb", small, preexec_fn=no_space)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 2, said
    assert len(said.strip().splitlines()) == 1, said
    assert not (tmp_path / "s.duckdb").exists()


def test_the_same_content_is_the_same_run(tmp_path: Path, small: Path) -> None:
    store = tmp_path / "s.duckdb"
    (first,) = ingest(small, store)
    before = contents(store)
    copy = tmp_path / "copy.json"
    copy.write_bytes(small.read_bytes())
    states = [ingest(path, store)[0].state for path in (small, copy)]
    assert (first.state, states) == ("stored", ["already stored"] * 2)
    assert contents(store) == before


def test_replace_loads_again_and_keeps_other_runs(tmp_path: Path, small: Path) -> None:
    store = tmp_path / "s.duckdb"
    other = TraceBuilder().add_op("aten::mm", 0, 5).write(tmp_path / "other.json")
    ingest([small, other], store, jobs=1)
    (again,) = ingest(small, store, replace_runs=True, step_annotation=["step#*"])
    assert again.state == "replaced"
    with open_store(store).reading() as connection:
        rows = connection.execute("SELECT name, step_annotation FROM runs ORDER BY 1").fetchall()
    assert rows == [("other", ""), ("small", "step#*")]


def test_other_steps_of_a_stored_run_need_replace(tmp_path: Path, small: Path) -> None:
    store = tmp_path / "s.duckdb"
    ingest(small, store)
    (result,) = ingest(small, store, step_annotation=["step#*"])
    assert result.state == "failed"
    assert "--replace" in (result.error or "")


def test_a_source_that_cannot_be_read_stops_no_other(tmp_path: Path, small: Path) -> None:
    bad = tmp_path / "bad.json"
    bad.write_text("nothing")
    results = ingest([bad, small], tmp_path / "s.duckdb", jobs=2)
    assert [r.state for r in results] == ["failed", "stored"]


def one_line(error: BaseException) -> str:
    text = str(error)
    assert text
    assert "\n" not in text
    return text


def test_a_newer_store_is_refused(tmp_path: Path, small: Path) -> None:
    store = tmp_path / "s.duckdb"
    ingest(small, store)
    with duckdb.connect(str(store)) as connection:
        connection.execute("UPDATE store_info SET schema_version = 99")
    for replace in (False, True):
        with pytest.raises(AnalyzerError, match="upgrade hostbound") as caught:
            ingest(small, store, replace_runs=replace)
        one_line(caught.value)


def test_an_older_store_is_refused_and_stays_as_it_is(tmp_path: Path, small: Path) -> None:
    store = tmp_path / "s.duckdb"
    ingest(small, store)
    with duckdb.connect(str(store)) as connection:
        connection.execute("UPDATE store_info SET schema_version = 1")
    for replace in (False, True):
        with pytest.raises(AnalyzerError, match="load its runs into a new store") as caught:
            ingest(small, store, replace_runs=replace)
        one_line(caught.value)


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (b"SQLite format 3\x00" + bytes(84), "an SQLite database"),
        (b"\x1f\x8b\x08\x00" + bytes(60), "a gzip file, as traces are"),
        (b'{"traceEvents": []}', "a JSON text, as traces are"),
        (b"Some notes of mine", "a file of another kind"),
    ],
)
def test_a_file_of_another_kind_is_no_store_and_stays_as_it_is(
    tmp_path: Path, small: Path, content: bytes, kind: str
) -> None:
    file = tmp_path / "other.duckdb"
    file.write_bytes(content)
    for ask in (lambda: ingest(small, file), lambda: open_store(file).reading().__enter__()):
        with pytest.raises(AnalyzerError, match=f"{kind}, no DuckDB file") as caught:
            ask()
        one_line(caught.value)
    assert file.read_bytes() == content


@pytest.mark.parametrize("data", [b"no database at all\n" * 500, b"", b"x", b"\x00" * 20_000])
def test_a_file_that_is_no_store_is_refused_and_kept(tmp_path: Path, small, data) -> None:
    store = tmp_path / "s.duckdb"
    store.write_bytes(data)
    with pytest.raises(HostboundError) as caught:
        ingest(small, store)
    assert str(store) in one_line(caught.value)
    assert store.read_bytes() == data


def test_another_duckdb_file_is_refused(tmp_path: Path, small: Path) -> None:
    store = tmp_path / "s.duckdb"
    with duckdb.connect(str(store)) as connection:
        connection.execute("CREATE TABLE t (x INTEGER)")
    with pytest.raises(AnalyzerError, match="no Hostbound store"):
        ingest(small, store)


def test_a_damaged_store_is_refused_in_one_line(tmp_path: Path, small: Path) -> None:
    """Bytes overwritten anywhere: an error of ours, or an untouched part and a sound answer."""
    store = tmp_path / "s.duckdb"
    ingest(small, store)
    data = store.read_bytes()
    dice = random.Random(9)
    for _ in range(12):
        at = dice.randrange(len(data) - 5000)
        store.write_bytes(
            data[:at] + bytes(dice.randrange(256) for _ in range(4096)) + data[at + 4096 :]
        )
        try:
            ingest(small, store, jobs=1)
        except HostboundError as error:
            one_line(error)


def test_a_store_cut_short_is_refused_in_one_line(tmp_path: Path, small: Path) -> None:
    store = tmp_path / "s.duckdb"
    ingest(small, store)
    data = store.read_bytes()
    for size in (10, 4096, 12_288, len(data) // 2):
        store.write_bytes(data[:size])
        try:
            ingest(small, store, jobs=1)
        except HostboundError as error:
            one_line(error)


def test_a_missing_folder_and_a_missing_source_are_said(tmp_path: Path, small: Path) -> None:
    with pytest.raises(AnalyzerError, match="is no folder"):
        ingest(small, tmp_path / "nowhere" / "s.duckdb")
    with pytest.raises(AnalyzerError, match="does not exist"):
        ingest(tmp_path / "nowhere.json", tmp_path / "s.duckdb")
    (tmp_path / "empty").mkdir()
    with pytest.raises(AnalyzerError, match="holds no run directory"):
        ingest(tmp_path / "empty", tmp_path / "s.duckdb")
    with (
        pytest.raises(AnalyzerError, match="no store"),
        open_store(tmp_path / "none.duckdb").reading(),
    ):
        pass


# ---- a whole run directory ----------------------------------------------------------------------


def run_directory(folder: Path) -> Path:
    """The worked example as the collector would leave it: replay, floor and latency measured."""
    folder.mkdir()
    built = worked_example()
    for event in built.events:
        if event["cat"] == "kernel":
            event["args"] |= {"grid": [1, 1, 1], "block": [32, 1, 1], "shared memory": 0}
        if event["cat"] == "cpu_op":
            event["args"] |= {"Input Dims": [[2]], "Input type": ["float"]}
    built.write(folder / "trace.json.gz")
    kernel = {"position": 0, "grid": [1, 1, 1], "block": [32, 1, 1], "shared_memory": 0, "count": 3}
    kernel |= {"launch_api": "cudaLaunchKernel", "exec_ns": [300_000]}
    texts = {"overload": "", "input_dims": "[[2]]", "input_types": '["float"]'}
    ops = [
        {"op": "aten::addmm", **texts, "reason": None, "samples": 3}
        | {
            "kernels": [
                kernel
                | {"name": "nvjet_x", "dispatch_ns": [150_000, 160_000, 170_000]}
                | {"launch_ns": [50_000, 45_000, 60_000]}
            ]
        },
        {"op": "aten::relu", **texts, "reason": "no schema", "samples": 0, "kernels": []},
    ]
    (folder / "kernel_replay.json").write_text(json.dumps({"definition": "d", "ops": ops}))
    floors = [
        {"launch_api": api, "definition": "api_start_to_kernel_start", "samples_ns": samples}
        for api, samples in (
            ("cudaLaunchKernel", [39_000, 40_000, 41_000]),
            ("cuLaunchKernelEx", [29_000, 30_000, 31_000]),
        )
    ]
    (folder / "null_kernel.json").write_text(json.dumps({"definitions": {}, "floors": floors}))
    latency = {
        "warmup": 1,
        "requests": [
            {"ttft_ns": 900, "itl_ns": [10, 20], "total_ns": 930},
            {"ttft_ns": 800, "itl_ns": [], "total_ns": 800},
        ],
    }
    latency |= {"steps": {"prefill": [900, 800], "decode": [10, 20]}}
    (folder / "latency.json").write_text(json.dumps(latency))
    manifest = Manifest(
        run_id="ab12",
        name="worked",
        created_at="2026-01-01T00:00:00Z",
        mode="eager",
        traces=[TraceFile("trace.json.gz")],
        step_annotation=["step#*"],
        files={f.name: file_sha256(f) for f in sorted(folder.iterdir())},
    )
    (folder / "manifest.json").write_text(manifest.to_json())
    return folder


def test_a_run_directory_brings_floor_replay_and_latency(tmp_path: Path) -> None:
    store = tmp_path / "s.duckdb"
    (result,) = ingest(run_directory(tmp_path / "run"), store, jobs=1)
    assert (result.state, result.name) == ("stored", "worked")
    with open_store(store).reading() as connection:

        def ask(sql: str) -> list[tuple]:
            return connection.execute(sql).fetchall()

        assert ask("SELECT mode, recording_id, source FROM runs") == [
            ("eager", "ab12", "run_directory")
        ]
        assert ask("SELECT launch_floor_ns, floor_source, kt_ns FROM totals WHERE step_id = 0") == [
            (40_000, "null_kernel", 70_000)
        ]
        assert ask("SELECT launch_api, n, p50_ns FROM floors ORDER BY 1") == [
            ("cuLaunchKernelEx", 3, 30_000),
            ("cudaLaunchKernel", 3, 40_000),
        ]
        assert ask(
            "SELECT clean_name, tier, same_configuration, reason FROM matches "
            "JOIN kernels USING (run_id, kernel_id) ORDER BY 1 DESC"
        ) == [("nvjet_x", "exact", True, None), ("elementwise_x", "unmatched", None, "no schema")]
        assert ask(
            "SELECT match_tier, replay_dispatch_ns, replay_launch_ns, dkt_ns, dkt_fw_ns "
            "FROM launches ORDER BY call_id"
        ) == [("exact", 160_000, 50_000, 30_000, 20_000), ("unmatched", None, None, 40_000, None)]
        # The unmatched launch: between its floor and what the trace shows.
        assert ask(
            "SELECT kt_fw_ns, kt_fw_low_ns, kt_fw_high_ns FROM totals WHERE step_id = 0"
        ) == [(None, 20_000, 100_000)]
        assert ask("SELECT ttft_ns, tpot_ns, total_ns FROM latency ORDER BY request") == [
            (900, 15, 930),
            (800, None, 800),
        ]
        assert len(ask("SELECT * FROM step_latency")) == 2


def test_a_file_that_changed_since_the_recording_is_refused(tmp_path: Path) -> None:
    folder = run_directory(tmp_path / "run")
    with (folder / "null_kernel.json").open("a") as stream:
        stream.write(" ")
    (result,) = ingest(folder, tmp_path / "s.duckdb", jobs=1)
    assert result.state == "failed"
    assert "not the file that was recorded" in (result.error or "")


@pytest.mark.parametrize("file", ["trace.json.gz", "latency.json"])
def test_a_file_that_the_manifest_lists_must_be_there(tmp_path: Path, file: str) -> None:
    folder = run_directory(tmp_path / "run")
    (folder / file).unlink()
    (result,) = ingest(folder, tmp_path / "s.duckdb", jobs=1)
    assert result.state == "failed"
    assert file in (result.error or "")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "no JSON"),
        ("[]", "no JSON object"),
        ("{}", "no schema_version"),
        ('{"schema_version": 99}', "upgrade hostbound"),
        ('{"schema_version": 1}', "incomplete"),
        ('{"schema_version": "1"}', "no schema_version"),
    ],
)
def test_a_bad_manifest_is_refused_in_one_line(tmp_path: Path, text: str, words: str) -> None:
    folder = run_directory(tmp_path / "run")
    (folder / "manifest.json").write_text(text)
    (result,) = ingest(folder, tmp_path / "s.duckdb", jobs=1)
    assert result.state == "failed"
    assert words in (result.error or "")
    assert "\n" not in (result.error or "")


@pytest.mark.parametrize("file", ["kernel_replay.json", "null_kernel.json", "latency.json"])
@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "null",
        '{"ops": 3, "floors": 3, "requests": 3}',
        '{"ops": [3], "floors": [3], "requests": [3]}',
        '{"ops": [{"kernels": [3]}], "floors": [{}], "requests": [{"itl_ns": "x"}]}',
        '{"ops": [{"kernels": [{"name": 5, "dispatch_ns": ["x"]}]}], "steps": 5,'
        ' "floors": [{"samples_ns": ["x"], "launch_api": 1, "definition": 2}]}',
    ],
)
def test_a_damaged_file_of_the_collector_never_crashes(tmp_path: Path, file, text) -> None:
    """With a manifest that lists no hashes, so that the content is looked at."""
    folder = run_directory(tmp_path / "run")
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["files"] = {}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    (folder / file).write_text(text)
    (result,) = ingest(folder, tmp_path / "s.duckdb", jobs=1)
    if result.state == "failed":
        assert file in (result.error or "")
        assert "\n" not in (result.error or "")


def test_a_folder_of_runs_loads_them_all(tmp_path: Path, small: Path) -> None:
    run_directory(tmp_path / "run")
    results = ingest(tmp_path, tmp_path / "s.duckdb", jobs=2)
    assert sorted((r.name, r.state) for r in results) == [("small", "stored"), ("worked", "stored")]
