"""Recorded exports of Nsight Systems have the counts, links and busy times read from them by hand,
and nothing of what they hold about users and hosts.

The expected figures stand in the README beside the recordings.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from analyzer.cli import main
from analyzer.errors import AnalyzerError
from analyzer.ingest import ingest
from analyzer.reports.prediction import predict
from analyzer.store import open_store
from analyzer.store.verify import verify
from tests.support.nsys_files import SECRET, NsysBuilder, graph_run
from tests.support.recordings import ask, check_for_secrets

H100, FSDP = "h100-2gpu-1s", "2gpu-fsdp-alltoall-before"
TINY, FEW, SAXPY = "tiny-2026.1", "synthetic-few-columns", "schema-2.9-saxpy-doubled-calls"
FILES = (H100, FSDP, TINY, FEW, SAXPY)

# Kernels of each process, kernels that link to a call, calls; of the few-column file counted by us.
COUNTS = {
    H100: ([1721, 1721], 1632, 5796),
    FSDP: ([1993, 2017], 3986, 7466),
    TINY: ([2], 2, 9),
    FEW: ([400], 400, 400),
    SAXPY: ([5], 5, 57),
}
# By device: union of its events, span from first start to last end, events.
BUSY = {
    H100: {"0": (962_890_247, 969_447_605, 2184), "1": (962_810_705, 969_258_578, 2184)},
    FSDP: {"0": (273_817_787, 299_848_812, 2636), "1": (267_275_916, 298_661_551, 2663)},
    TINY: {"0": (5_761, 22_453_059, 3)},
    SAXPY: {"0": (373_273_080, 1_097_327_843, 20)},
}
UNDER_A_RANGE = {H100: 1632, FSDP: 3986}


@pytest.fixture(scope="module")
def exports(shared_dir: Path) -> Path:
    return shared_dir / "traces" / "next" / "nsys"


@pytest.fixture(scope="module")
def stores(exports: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The store of each recording, alone in it."""
    folder = tmp_path_factory.mktemp("nsys")
    found: dict[str, Path] = {}
    for name in FILES:
        found[name] = folder / f"{name}.duckdb"
        (result,) = ingest(exports / f"{name}.sqlite", found[name], jobs=1)
        assert result.state == "stored", result.error
    return found


@pytest.mark.parametrize("name", FILES)
def test_counts_and_links_are_those_of_the_recording(name: str, stores: dict[str, Path]) -> None:
    kernels = ask(
        stores[name],
        "SELECT count(*), count(call_id) FROM device_events WHERE kind = 'kernel' "
        "GROUP BY trace_id",
    )
    (calls,) = ask(stores[name], "SELECT count(*) FROM calls")[0]
    counts = sorted(count for count, _ in kernels), sum(linked for _, linked in kernels), calls
    assert counts == COUNTS[name]


@pytest.mark.parametrize("name", BUSY)
def test_busy_time_span_and_events_of_each_device_are_those_of_the_recording(
    name: str, stores: dict[str, Path]
) -> None:
    spans = ask(
        stores[name],
        "SELECT trace_id, device, max(start_ns + dur_ns) - min(start_ns), count(*) "
        "FROM device_events GROUP BY ALL",
    )
    busy = dict(
        ask(
            stores[name],
            "SELECT trace_id, device_busy_ns FROM totals "
            "WHERE step_id IS NULL AND trace_id IS NOT NULL",
        )
    )
    assert {device: (busy[t], span, n) for t, device, span, n in spans} == BUSY[name]


@pytest.mark.parametrize("name", UNDER_A_RANGE)
def test_every_linked_kernel_lies_under_its_operator(name: str, stores: dict[str, Path]) -> None:
    sql = "SELECT count(op_id), count(call_id) FROM device_events WHERE kind = 'kernel'"
    assert ask(stores[name], sql) == [(UNDER_A_RANGE[name], UNDER_A_RANGE[name])]


def test_launches_before_a_windowed_capture_are_orphans_and_no_error(
    stores: dict[str, Path],
) -> None:
    sql = "SELECT count(*) FROM device_events WHERE kind = 'kernel' AND call_id IS NULL"
    assert ask(stores[H100], sql) == [(1810,)]
    codes = ask(stores[H100], "SELECT DISTINCT code FROM trace_quality")
    assert ("orphan_device_events",) in codes


def test_two_processes_are_two_traces_of_one_run_without_a_rank(stores: dict[str, Path]) -> None:
    traces = ask(stores[FSDP], "SELECT trace_id, document, rank FROM traces ORDER BY ALL")
    assert traces == [(0, 0, None), (1, 1, None)]
    across = (
        "SELECT count(*) FROM device_events JOIN calls USING (run_id, call_id) "
        "WHERE device_events.trace_id <> calls.trace_id"
    )
    assert ask(stores[FSDP], across) == [(0,)]


def test_mpi_tells_the_rank(stores: dict[str, Path]) -> None:
    assert ask(stores[SAXPY], "SELECT rank FROM traces") == [(0,)]


def test_the_gpu_of_a_report_is_the_runs(stores: dict[str, Path]) -> None:
    assert ask(stores[TINY], "SELECT gpu FROM runs") == [("NVIDIA GeForce RTX 3080",)]


@pytest.mark.parametrize("name", FILES)
def test_the_store_agrees_with_itself(name: str, stores: dict[str, Path]) -> None:
    assert not verify(open_store(stores[name]))


@pytest.mark.parametrize("name", FILES)
def test_nothing_secret_reaches_store_or_output(
    name: str, exports: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert SECRET.encode() in (exports / f"{name}.sqlite").read_bytes()
    check_for_secrets(exports / f"{name}.sqlite", SECRET, tmp_path, capfd)


@pytest.mark.parametrize("mode", ["node", "graph"])
def test_nothing_secret_of_a_graph_recording_reaches_store_or_output(
    mode: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = graph_run(mode).add_secrets().write(tmp_path / "report.sqlite")
    check_for_secrets(path, SECRET, tmp_path, capfd)


def test_a_recording_in_graph_mode_leaves_kernel_figures_empty(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = tmp_path / "s.duckdb"
    ingest(graph_run("graph").write(tmp_path / "report.sqlite"), store, jobs=1)
    figures = "kernels, device_active_ns, hdbi, device_busy_ns, graph_launches"
    totals = ask(store, f"SELECT DISTINCT {figures} FROM totals")
    assert totals == [(None, None, None, 22_000, 2)]
    assert ask(store, "SELECT DISTINCT kernels, t_exec_ns, t_launch_ns FROM launches") == [
        (None, None, 6_000)
    ]
    assert not verify(open_store(store))
    assert main(["report", "latest", "--db", str(store)]) == 0
    assert "--cuda-graph-trace=node" in capsys.readouterr().out


def test_replays_without_kernels_are_not_predicted_and_the_refusal_names_the_remedy(
    tmp_path: Path,
) -> None:
    store = tmp_path / "s.duckdb"
    (run,) = ingest(graph_run("graph").write(tmp_path / "report.sqlite"), store, jobs=1)
    with (
        open_store(store).reading() as connection,
        pytest.raises(AnalyzerError, match="--cuda-graph-trace=node"),
    ):
        predict(connection, run.run_id or "", ["graphs"])


def test_a_recording_in_node_mode_gives_every_replayed_kernel_its_op(tmp_path: Path) -> None:
    store = tmp_path / "s.duckdb"
    ingest(graph_run("node").write(tmp_path / "report.sqlite"), store, jobs=1)
    sql = "SELECT kernel, op, op_from_capture FROM links ORDER BY start_ns"
    assert ask(store, sql) == [("gemm", "aten::addmm", True), ("relu", "aten::relu", True)] * 2
    assert not verify(open_store(store))


def test_a_folder_of_parquet_files_is_a_run(tmp_path: Path) -> None:
    folder = graph_run("node").write_parquet(tmp_path / "report_pqtdir")
    (alone,) = ingest(folder, tmp_path / "s.duckdb", jobs=1)
    assert (alone.state, alone.name, alone.kernels) == ("stored", "report_pqtdir", 4)
    (again,) = ingest(tmp_path, tmp_path / "s.duckdb", jobs=1)
    assert (again.state, again.run_id) == ("already stored", alone.run_id)


@pytest.mark.parametrize("content", ["report", "database"])
def test_what_is_no_export_is_one_line_and_exit_code_2(
    content: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "x.nsys-rep"
    if content == "report":
        path.write_bytes(b"\x00\x07" * 600)
    else:
        NsysBuilder().add("users", name=SECRET).write(path)
    assert main(["ingest", str(path), "--db", str(tmp_path / "s.duckdb")]) == 2
    said = capsys.readouterr()
    assert said.err.count("\n") == 1
    assert "nsys export --type sqlite" in said.err
    assert not (tmp_path / "s.duckdb").exists()


def test_marks_of_an_engine_in_nvtx_ranges_are_steps_with_their_counts(tmp_path: Path) -> None:
    """TensorRT-LLM marks its steps in NVTX, which only Nsight Systems records."""
    built = NsysBuilder()
    texts = ["[Executor] _forward_step 7: 1 ctx reqs, 96 ctx tokens, 0 gen reqs"]
    texts += [f"[Executor] _forward_step {i}: 0 ctx reqs, 0 ctx tokens, 4 gen reqs" for i in (8, 9)]
    for number, text in enumerate(texts):
        begin = 100_000 * number
        built.add_range(text, begin, 60_000)
        built.add_range("_sample_async", begin + 40_000, 10_000)
        built.add_launch("gemm", begin + 10_000, number + 1)
    store = tmp_path / "s.duckdb"
    (result,) = ingest(built.write(tmp_path / "r.sqlite"), store, jobs=1)
    assert result.state == "stored", result.error
    steps = ask(
        store,
        "SELECT engine, phase, ctx_reqs, ctx_tokens, gen_reqs, period_ns, between_ns "
        "FROM steps ORDER BY start_ns",
    )
    assert ask(store, "SELECT step_source FROM traces") == [("tensorrt-llm",)]
    assert steps == [
        ("tensorrt-llm", "prefill", 1, 96, 0, 100_000, 40_000),
        ("tensorrt-llm", "decode", 0, 0, 4, 100_000, 40_000),
        ("tensorrt-llm", "decode", 0, 0, 4, None, None),
    ]


def test_marks_of_sglang_in_registered_strings_are_steps(tmp_path: Path) -> None:
    built = NsysBuilder()
    for number in range(3):
        built.add_range(None, 100_000 * number, 60_000, registered="step[DECODE bs=2]")
        built.add_launch("gemm", 100_000 * number + 10_000, number + 1)
    store = tmp_path / "s.duckdb"
    ingest(built.write(tmp_path / "r.sqlite"), store, jobs=1)
    assert ask(store, "SELECT engine, phase, batch FROM steps") == [("sglang", "decode", 2)] * 3
