"""Recorded profiles of JAX have the counts, links and busy times read from them by hand, and
nothing of what they hold about hosts.

`jax/` holds two of ours (jax 0.11.2, one H200): a matmul and a tiny transformer, 20 steps, with
CUDA graphs as XLA makes them, and without. Their programs, host and options were taken out, and
texts planted in their place.
"""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from analyzer.cli import main
from analyzer.ingest import ingest
from analyzer.store import open_store
from analyzer.store.verify import verify
from tests.support.recordings import ask, check_for_secrets
from tests.support.xplane_files import SECRET, XplaneBuilder, small_profile

MI355, MI300 = "mi355-jax-te-attention", "mi300-jax-conv-legacy"
GRAPHS, KERNELS = "graphs", "kernels"
FILES = (MI355, MI300, GRAPHS, KERNELS)
OURS = Path(__file__).parent / "jax"

# Device events, those linked to a call, those with an HLO operation, calls.
COUNTS = {
    MI355: (150, 150, 150, 150),
    MI300: (78, 78, 25, 78),
    GRAPHS: (600, 600, 600, 40),
    KERNELS: (600, 600, 600, 600),
}
# By device: union of its events, span from first start to last end, events.
BUSY = {
    MI355: {"0": (12_133_127, 12_956_751, 150)},
    MI300: {"0": (889_028, 27_867_728, 53), "7": (3_586_493, 15_761_301, 25)},
    GRAPHS: {"0": (944_632, 8_961_376, 600)},
    KERNELS: {"0": (1_023_038, 8_162_486, 600)},
}


@pytest.fixture(scope="module")
def paths(shared_dir: Path) -> dict[str, Path]:
    theirs = shared_dir / "traces" / "next" / "xplane"
    return {name: theirs / f"{name}.xplane.pb" for name in (MI355, MI300)} | {
        name: OURS / name for name in (GRAPHS, KERNELS)
    }


@pytest.fixture(scope="module")
def stores(paths: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The store of each recording, alone in it."""
    folder = tmp_path_factory.mktemp("xplane")
    found = {name: folder / f"{name}.duckdb" for name in FILES}
    for name, store in found.items():
        (result,) = ingest(paths[name], store, jobs=1)
        assert result.state == "stored", result.error
    return found


@pytest.mark.parametrize("name", FILES)
def test_counts_links_and_operations_are_those_of_the_recording(
    name: str, stores: dict[str, Path]
) -> None:
    sql = "SELECT count(*), count(call_id) FROM device_events"
    of_hlo = "SELECT count(*) FROM links WHERE NOT contains(op, '::')"
    found = (
        *ask(stores[name], sql)[0],
        ask(stores[name], of_hlo)[0][0],
        ask(stores[name], "SELECT count(*) FROM calls")[0][0],
    )
    assert found == COUNTS[name]


@pytest.mark.parametrize("name", FILES)
def test_busy_time_span_and_events_of_each_device_are_those_of_the_recording(
    name: str, stores: dict[str, Path]
) -> None:
    spans = (
        "SELECT device, max(start_ns + dur_ns) - min(start_ns), count(*) "
        "FROM device_events GROUP BY device"
    )
    expected = {device: (span, n) for device, (_, span, n) in BUSY[name].items()}
    assert {device: (span, n) for device, span, n in ask(stores[name], spans)} == expected
    busy = "SELECT device_busy_ns FROM totals WHERE step_id IS NULL AND trace_id IS NOT NULL"
    assert ask(stores[name], busy) == [(sum(busy for busy, _, _ in BUSY[name].values()),)]


def test_a_profile_of_an_nvidia_gpu_has_steps_operations_and_a_balance(
    stores: dict[str, Path],
) -> None:
    assert ask(stores[KERNELS], "SELECT step_source, step_coverage FROM traces") == [
        ("profiler", 1.0)
    ]
    assert ask(stores[KERNELS], "SELECT min(name), count(*) FROM steps") == [("decode#0", 20)]
    balance = "SELECT count(hdbi), count(t_dispatch_ns) FROM totals WHERE step_id IS NOT NULL"
    assert ask(stores[KERNELS], balance) == [(20, 20)]
    assert ask(stores[KERNELS], "SELECT gpu FROM runs") == [("NVIDIA H200",)]


def test_kernels_of_graph_replays_have_the_operation_that_they_carry(
    stores: dict[str, Path],
) -> None:
    sql = "SELECT op, count(*) FROM links WHERE op_from_capture GROUP BY op"
    assert ask(stores[GRAPHS], sql) == [("command_buffer_1", 580)]
    graphs = "SELECT count(*), sum(kernels) FROM launches WHERE is_graph"
    assert ask(stores[GRAPHS], graphs) == [(20, 580)]


@pytest.mark.parametrize("name", FILES)
def test_the_store_agrees_with_itself(name: str, stores: dict[str, Path]) -> None:
    assert not verify(open_store(stores[name]))


def test_graphs_and_kernels_alone_are_compared(
    stores: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = tmp_path / "s.duckdb"
    runs = [ingest(OURS / name, store, name=name, jobs=1)[0] for name in (KERNELS, GRAPHS)]
    assert main(["compare", *(run.run_id or "" for run in runs), "--db", str(store)]) == 0
    assert "graphs" in capsys.readouterr().out


@pytest.mark.parametrize("name", [GRAPHS, KERNELS, "built"])
def test_nothing_secret_reaches_store_or_output(
    name: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = OURS / name
    if name == "built":
        path = tmp_path / "profile"
        small_profile().add_secrets().write(path / f"{SECRET}.xplane.pb")
    check_for_secrets(path, SECRET, tmp_path / "work", capfd)


def test_several_processes_of_a_session_are_traces_of_one_run(tmp_path: Path) -> None:
    session = tmp_path / "log" / "plugins" / "profile" / "2026_01_01"
    for host in "ab":
        write_at(session / f"{host}.xplane.pb", 1_000 + ord(host), 9_000)
    (run,) = ingest(tmp_path / "log", tmp_path / "s.duckdb", jobs=1)
    assert (run.name, run.kernels) == ("2026_01_01", 24)
    assert ask(tmp_path / "s.duckdb", "SELECT file, document FROM traces ORDER BY 2") == [
        ("2026_01_01", 0),
        ("2026_01_01", 1),
    ]


def test_profiles_of_other_times_in_one_folder_are_runs_of_their_own(tmp_path: Path) -> None:
    write_at(tmp_path / "a.xplane.pb", 1_000, 2_000)
    write_at(tmp_path / "b.xplane.pb", 3_000, 4_000)
    runs = ingest(tmp_path, tmp_path / "s.duckdb", jobs=1)
    assert [run.name for run in runs] == ["a", "b"]


def write_at(path: Path, start: int, end: int) -> None:
    made = small_profile().add_facts("Task Environment", profile_start_time=start)
    made.add_facts("Task Environment", profile_stop_time=end).write(path)


def test_a_profile_is_told_by_its_content_packed_or_not(tmp_path: Path) -> None:
    data = small_profile().data()
    (tmp_path / "a.txt").write_bytes(data)
    (tmp_path / "b.pb").write_bytes(gzip.compress(data))
    runs = [
        ingest(tmp_path / name, tmp_path / f"{name}.duckdb", jobs=1)[0]
        for name in ("a.txt", "b.pb")
    ]
    assert [run.kernels for run in runs] == [12, 12]


@pytest.mark.parametrize("kind", ["cut off", "packed and cut off", "empty of events"])
def test_a_damaged_profile_is_one_line_that_names_no_host(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = small_profile().data()
    if kind == "empty of events":
        data = XplaneBuilder().add_facts(core_count=4).data()
    elif kind == "cut off":
        data = data[:-7]
    else:
        data = gzip.compress(small_profile(steps=60).data())[:-900]
    path = tmp_path / "session" / f"{SECRET}.xplane.pb"
    path.parent.mkdir()
    path.write_bytes(data)
    assert main(["ingest", str(path.parent), "--db", str(tmp_path / "s.duckdb")]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert SECRET not in said
    assert not (tmp_path / "s.duckdb").exists()


def test_replays_that_stand_as_one_block_say_so(tmp_path: Path) -> None:
    made = XplaneBuilder().add_call("cuGraphLaunch (CudaGraph:5)", 10_000, 3_000, 1)
    line = (17, "Stream #17(CudaGraph)")
    made.add(
        "/device:GPU:0",
        line,
        "CudaGraphExec:5",
        15_000,
        9_000,
        correlation_id=1,
        cuda_graph_exec_id=5,
    )
    (run,) = ingest(made.write(tmp_path / "p.xplane.pb"), tmp_path / "s.duckdb", jobs=1)
    assert "opaque_graph_replays" in [finding.code for finding in run.findings]
    assert run.kernels is None
