"""A run out of the store: whole, exact, and readable by us and others."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from analyzer.errors import AnalyzerError
from analyzer.ingest import ingest
from analyzer.render.export import Format, export
from analyzer.render.traces.chrome import microseconds
from analyzer.store import open_store
from analyzer.store.write import RUN_TABLES

TRACE_FORMS: tuple[Format, ...] = ("chrome", "perfetto")
SAMPLES = ["gpt2-prefill-bs1-s512", "gpt2-prefill-bs1-s512-compile", "gpt2-prefill-bs1-s512-graph"]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory, samples_dir: Path) -> Path:
    path = tmp_path_factory.mktemp("export") / "store.duckdb"
    results = ingest([samples_dir / name for name in SAMPLES], path, jobs=1)
    assert {result.state for result in results} == {"stored"}
    return path


def ask(store: Path, sql: str, *parameters: Any) -> list[tuple[Any, ...]]:
    with open_store(store).reading() as connection:
        return connection.execute(sql, list(parameters)).fetchall()


def run_of(store: Path, name: str) -> str:
    return ask(store, "SELECT run_id FROM runs WHERE name = ?", name)[0][0]


def load(path: Path) -> dict[str, Any]:
    with gzip.open(path, "rt", encoding="utf-8") as stream:
        return json.load(stream)


LINKS = """
SELECT kind, kernel, device, stream, links.start_ns, dur_ns, call, call_start_ns, call_dur_ns,
  op, op_from_capture, graph_index, step.name
FROM links LEFT JOIN steps AS step USING (run_id, step_id)
WHERE run_id = ? ORDER BY ALL
"""
COSTS = """
SELECT call, call_start_ns, kernel, family, op, launch_costs.kernels, t_py_ns, t_dispatch_ns,
  t_dispatch_inner_ns, t_launch_ns, is_clean, t_exec_ns, dct_ns, dft_ns, dkt_ns
FROM launch_costs WHERE run_id = ? ORDER BY ALL
"""


@pytest.mark.parametrize("form", TRACE_FORMS)
@pytest.mark.parametrize("name", SAMPLES)
def test_an_exported_trace_loads_again_with_the_same_figures(
    store: Path, tmp_path: Path, name: str, form: Format
) -> None:
    run_id = run_of(store, name)
    (path,) = export(store, run_id, form, tmp_path / "again.gz")
    again = tmp_path / "again.duckdb"
    globs = ask(store, "SELECT step_annotation FROM runs WHERE run_id = ?", run_id)[0][0]
    (result,) = ingest(path, again, step_annotation=globs.split(",") if globs else [])
    assert result.error is None
    assert result.run_id is not None

    for sql in (LINKS, COSTS):
        before, after = ask(store, sql, run_id), ask(again, sql, result.run_id)
        assert len(before) > 0
        assert after == before
    totals = "SELECT * EXCLUDE (run_id) FROM totals WHERE run_id = ? ORDER BY step_id"
    assert ask(again, totals, result.run_id) == ask(store, totals, run_id)


def test_the_trace_says_what_we_found(store: Path, tmp_path: Path) -> None:
    (path,) = export(store, run_of(store, SAMPLES[0]), "chrome", tmp_path / "x.json.gz")
    events = load(path)["traceEvents"]
    launch = next(e for e in events if e["name"] == "cudaLaunchKernel" and "args" in e)
    kernel = next(e for e in events if e.get("cat") == "kernel")
    op = next(e for e in events if e.get("cat") == "cpu_op" and "step" in e["args"]["hostbound"])

    assert set(launch["args"]["hostbound"]) >= {
        "account", "op", "step", "t_py_ns", "t_dispatch_ns", "t_launch_ns", "dft_ns", "dct_ns",
    }  # fmt: skip
    assert set(kernel["args"]["hostbound"]) >= {"op", "family", "launch_call", "step"}
    assert op["args"]["hostbound"]["step"].startswith("step#")
    step = next(e for e in events if e.get("cat") == "user_annotation")
    accounts = step["args"]["hostbound"]["ledger"]
    assert sum(account["ns"] for account in accounts.values()) == round(step["dur"] * 1000)


def test_every_row_of_the_viewer_has_a_name_and_an_arrow_has_two_ends(
    store: Path, tmp_path: Path
) -> None:
    (path,) = export(store, run_of(store, SAMPLES[2]), "chrome", tmp_path / "x.json.gz")
    events = load(path)["traceEvents"]
    named = {(e["pid"], e["tid"]) for e in events if e["ph"] == "M" and e["name"] == "thread_name"}
    slices = [e for e in events if e["ph"] == "X"]
    starts = {e["id"]: e for e in events if e["ph"] == "s"}
    ends = {e["id"]: e for e in events if e["ph"] == "f"}
    begins = {(e["pid"], e["tid"], e["ts"]) for e in slices}

    assert {(e["pid"], e["tid"]) for e in slices} == named
    processes = {e["pid"] for e in events if e["name"] == "process_name"}
    assert processes == {pid for pid, _ in named}
    assert set(starts) == set(ends)
    assert len(ends) == sum(e["cat"] in ("kernel", "gpu_memset", "gpu_memcpy") for e in slices)
    assert all((e["pid"], e["tid"], e["ts"]) in begins for e in (*starts.values(), *ends.values()))


def test_slices_of_one_device_row_do_not_overlap(tmp_path: Path) -> None:
    """A viewer drops slices that cross; a kernel launched early runs beside the one before it."""
    trace = [
        kernel("a", 1, 10, 10),
        kernel("b", 2, 15, 10),
        kernel("c", 3, 30, 5),
    ]
    events, _ = round_trip(tmp_path, trace)
    rows = {e["name"]: e["tid"] for e in events if e.get("cat") == "kernel"}

    assert rows["a"] == rows["c"] == 7
    assert rows["b"] != 7
    assert "stream 7, overlapping 1" in [
        e["args"]["name"] for e in events if e["name"] == "thread_name"
    ]


def test_epoch_times_keep_their_last_digit(tmp_path: Path) -> None:
    """A double has a step of 250 ns there; the text must not pass through one."""
    text = '{"traceEvents":[' + ",".join(
        f'{{"ph":"X","cat":"kernel","name":"k","pid":0,"tid":7,"ts":1790857026123456.{i:03d},'
        f'"dur":0.00{i},"args":{{"device":0,"stream":7,"correlation":{i + 1}}}}}'
        for i in range(3)
    ) + "]}"  # fmt: skip
    source = tmp_path / "source.json"
    source.write_text(text)
    store = tmp_path / "s.duckdb"
    (result,) = ingest(source, store)
    assert result.run_id is not None
    (path,) = export(store, result.run_id, "chrome", tmp_path / "out.json.gz")
    content = gzip.decompress(path.read_bytes()).decode()

    for i in range(3):
        assert f'"ts":1790857026123456.{i:03d},"dur":0.00{i},' in content


@pytest.mark.parametrize(
    ("ns", "text"),
    [(0, "0.000"), (7, "0.007"), (-1_001, "-1.001"), (10**18 + 1, "1" + "0" * 15 + ".001")],
)
def test_microseconds_are_written_digit_by_digit(ns: int, text: str) -> None:
    assert microseconds(ns) == text


def test_odd_names_and_ids_survive(tmp_path: Path) -> None:
    name = 'a"b\\c\n\t<é\u2028'
    trace = [
        {"ph": "X", "cat": "cpu_op", "name": name, "pid": "Host", "tid": -5, "ts": 1, "dur": 20},
        {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": "Host", "tid": -5,
         "ts": 2, "dur": 3, "args": {"correlation": 4}},
        kernel(name, 4, 10, 5, stream="stream 7"),
        kernel("x", 5, 20, 5, stream="7"),
    ]  # fmt: skip
    events, again = round_trip(tmp_path, trace)
    slices = [e for e in events if e["ph"] == "X"]

    assert all(isinstance(e["pid"], int) and isinstance(e["tid"], int) for e in slices)
    assert [e["name"] for e in slices].count(name) == 2
    assert ask(again, "SELECT op, kernel, stream FROM links ORDER BY start_ns") == [
        (name, name, "stream 7"),
        (None, "x", "7"),
    ]


def test_a_run_of_two_traces_gives_two_files(tmp_path: Path) -> None:
    source = tmp_path / "ranks.json.gz"
    documents = [json.dumps({"traceEvents": [kernel("k", 1, 10, 5)]}).encode() for _ in range(2)]
    source.write_bytes(b"".join(gzip.compress(document) for document in documents))
    store = tmp_path / "s.duckdb"
    (result,) = ingest(source, store)
    assert result.run_id is not None

    paths = export(store, result.run_id, "chrome", tmp_path / "out.trace.json.gz")
    assert [path.name for path in paths] == ["out.trace.json.gz", "out-2.trace.json.gz"]
    assert all(len(load(path)["traceEvents"]) > 0 for path in paths)


def test_tables_come_out_whole(store: Path, tmp_path: Path) -> None:
    run_id = run_of(store, SAMPLES[0])
    files = {path.stem: path for path in export(store, run_id, "parquet", tmp_path / "out")}

    assert set(files) == {*RUN_TABLES, "hosts"}
    assert {path.name for path in (tmp_path / "out").iterdir()} == {f"{t}.parquet" for t in files}
    for table in RUN_TABLES:
        (row,) = ask(store, f"SELECT count(*) FROM {table} WHERE run_id = ?", run_id)
        assert pq.read_table(files[table]).num_rows == row[0]
    assert pq.read_table(files["hosts"]).num_rows == 1
    assert pq.read_table(files["runs"])["name"].to_pylist() == [SAMPLES[0]]


def test_csv_has_a_header_and_all_rows(store: Path, tmp_path: Path) -> None:
    export(store, run_of(store, SAMPLES[0]), "csv", tmp_path / "out")
    lines = (tmp_path / "out" / "steps.csv").read_text().splitlines()
    assert lines[0].startswith("run_id,step_id,")
    assert len(lines) == 4


@pytest.mark.parametrize("form", ["parquet", "csv", *TRACE_FORMS])
def test_what_exists_is_not_replaced(store: Path, tmp_path: Path, form: Format) -> None:
    target = tmp_path / "out"
    target.write_text("mine")
    with pytest.raises(AnalyzerError, match="exists already"):
        export(store, run_of(store, SAMPLES[0]), form, target)
    assert target.read_text() == "mine"
    assert list(tmp_path.iterdir()) == [target]


@pytest.mark.parametrize("form", ["parquet", *TRACE_FORMS])
def test_a_failed_export_leaves_nothing(
    store: Path, tmp_path: Path, form: Format, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("analyzer.render.traces.files.os.rename", refuse)
    with pytest.raises(AnalyzerError, match="No space left on device"):
        export(store, run_of(store, SAMPLES[0]), form, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_not_there_is_named(store: Path, tmp_path: Path) -> None:
    with pytest.raises(AnalyzerError, match="is no folder"):
        export(store, run_of(store, SAMPLES[0]), "csv", tmp_path / "none" / "out")


def test_an_unknown_run_is_named(store: Path, tmp_path: Path) -> None:
    with pytest.raises(AnalyzerError, match="no run 'nothing'"):
        export(store, "nothing", "csv", tmp_path / "out")


def kernel(name: str, correlation: int, ts: int, dur: int, stream: Any = 7) -> dict[str, Any]:
    """One kernel of a trace, times in us."""
    args = {"device": 0, "stream": stream, "correlation": correlation, "grid": [1, 1, 1]}
    return {"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": stream,
            "ts": ts, "dur": dur, "args": args}  # fmt: skip


def round_trip(tmp_path: Path, events: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], Path]:
    """Load a trace, export it, load that; returns the exported events and the second store."""
    source = tmp_path / "source.json"
    source.write_text(json.dumps({"traceEvents": events}))
    (result,) = ingest(source, tmp_path / "first.duckdb")
    assert result.run_id is not None
    (path,) = export(tmp_path / "first.duckdb", result.run_id, "chrome", tmp_path / "out.json.gz")
    (again,) = ingest(path, tmp_path / "second.duckdb")
    assert again.error is None
    return load(path)["traceEvents"], tmp_path / "second.duckdb"
