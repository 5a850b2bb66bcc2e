"""What a trace cannot support is named, bounded or not judged; what it can is left alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from analyzer import queries
from analyzer.cli import main
from analyzer.errors import AnalyzerError
from analyzer.ingest import ingest
from analyzer.reports.prediction import predict
from analyzer.reports.records import Evidence, RunReport
from analyzer.reports.report import report
from analyzer.store.verify import verify
from tests.support import planted_faults
from tests.support.planted_faults import FAULTS, Fault, sample_document, write_fault
from tests.support.tracebuilder import TraceBuilder

FIGURES = Path(__file__).with_name("figures")


def loaded(path: Path, store: Path, **options: Any) -> RunReport:
    """The report of a file."""
    (result,) = ingest(path, store, jobs=1, **options)
    assert result.state == "stored", result.error
    assert result.run_id
    with queries.connect(store) as connection:
        return report(connection, result.run_id)


def touched(found: Evidence) -> set[str]:
    return {check.name for check in found.checks if check.verdict == "touched"}


# -- faults are named


@pytest.fixture(params=FAULTS, ids=lambda fault: fault.name)
def fault(request: pytest.FixtureRequest) -> Fault:
    return request.param


def test_a_planted_fault_is_named_with_its_effect_and_its_remedy(
    fault: Fault, tmp_path: Path
) -> None:
    value = loaded(write_fault(fault, tmp_path), tmp_path / "s.duckdb")
    assert verify(tmp_path / "s.duckdb") == []
    (check,) = [check for check in value.evidence.checks if check.name == fault.check]
    assert check.verdict == "touched"
    assert fault.says in check.found
    assert fault.remedy in (check.remedy or "")
    figures, how = fault.touches
    assert figures in getattr(check, how)
    assert check.effect
    assert value.evidence.sentence
    assert check.found in value.evidence.sentence
    assert value.predictions is None


def test_a_planted_fault_touches_nothing_that_it_leaves_whole(fault: Fault, tmp_path: Path) -> None:
    """Each is told from the others, but for events that were lost with a broken text."""
    value = loaded(write_fault(fault, tmp_path), tmp_path / "s.duckdb")
    beside = {"events-unreadable": {"dropped_events"}, "cut-at-60-percent": set(CHECKS)}
    assert touched(value.evidence) - beside.get(fault.name, set()) <= {fault.check}


CHECKS = [
    "graph_launches",
    "dropped_events",
    "opaque_graphs",
    "late_bursts",
    "clocks",
    "profiler_cost",
    "truncated",
    "cut_steps",
    "outside_steps",
    "other_processes",
    "contexts",
    "duplicates",
    "several_traces",
]


def test_every_check_has_a_planted_fault() -> None:
    assert {fault.check for fault in FAULTS} == set(CHECKS)


def test_the_samples_as_they_are_touch_nothing(samples_dir: Path, tmp_path: Path) -> None:
    ingest(sorted(p.parent for p in samples_dir.glob("*/manifest.json")), tmp_path / "s", jobs=1)
    with queries.connect(tmp_path / "s") as connection:
        runs = queries.listed_runs(connection)
        assert len(runs) == 7
        for run in runs:
            checks = queries.checks(connection, run.run_id)
            assert {check.name for check in checks} == set(CHECKS)
            assert [c for c in checks if c.verdict == "touched"] == [], run.name


# -- no false alarm on whole traces, or one that is right

RIGHT_ALARMS = {
    # Launched work waits while the device stands idle for 12 ms: it waits for other streams or
    # devices, which the trace does not show. That idle time is not this host's.
    "a100-cuda-graphs-six-streams": {"late_bursts"},
    # Its step of 13 s goes on for that long after the recording's end of 0.36 s.
    "a100-triton-driver-launch": {"cut_steps"},
    # Steps between the first kernel and the others were cut out (README of the traces).
    "mi300-sglang-decode-graph-replay": {"late_bursts"},
    "mi300-sglang-extend-qwen3-8b": {"late_bursts"},
    # Calls of one thread overlap by up to two seconds, which no thread can do.
    "mtia-inference": {"clocks"},
    # Events were thinned out (README of the traces): kernels wait for what was removed.
    "sampled-of-128": {"late_bursts"},
    # Windows that ended while launched work was still queued.
    "2gpu-fsdp-alltoall-before": {"dropped_events"},
    "h100-2gpu-1s": {"dropped_events"},
}


def whole_traces(shared_dir: Path) -> list[Path]:
    traces = shared_dir / "traces"
    formats = ("kineto-multirank", "serving", "nsys", "rocprof", "xplane")
    folders = ("", "h200", "ranks", *(f"next/{name}" for name in formats))
    return [
        path
        for folder in folders
        for path in sorted((traces / folder).iterdir())
        if path.name.endswith((".json.gz", ".sqlite", ".pb")) and ".et." not in path.name
    ]


def test_on_whole_traces_there_is_no_false_alarm(shared_dir: Path, tmp_path: Path) -> None:
    store = tmp_path / "s.duckdb"
    results = ingest(whole_traces(shared_dir), store, jobs=1)
    assert {result.error for result in results if result.state == "failed"} == set()
    alarms: dict[str, set[str]] = {}
    with queries.connect(store) as connection:
        for result in results:
            names = {
                check.name
                for check in queries.checks(connection, result.run_id or "")
                if check.verdict == "touched"
            }
            if names:
                alarms[result.name or ""] = names
    assert alarms == RIGHT_ALARMS


# -- faults that samples do not show


def test_what_the_profiler_says_that_it_lost_is_believed(tmp_path: Path) -> None:
    document = dict(GOOD[planted_faults.EAGER])
    document["WARNING"] = ["Exceeded max GPU buffer count (32 > 31) - terminating tracing"]
    (tmp_path / "t.json").write_bytes(orjson.dumps(document))
    value = loaded(tmp_path / "t.json", tmp_path / "s.duckdb")
    (check,) = [check for check in value.evidence.checks if check.name == "dropped_events"]
    assert (check.verdict, check.count) == ("touched", 1)
    assert "the profiler says that it lost events" in check.found


def test_two_processes_on_a_device_of_one_id_may_share_it(tmp_path: Path) -> None:
    trace = TraceBuilder()
    for pid, first in ((80, 1), (81, 100)):
        for i in range(3):
            trace.add_launch("gemm", 100 * i + 10, 5, first + i)
            trace.events[-2]["pid"] = pid
    value = loaded(trace.write(tmp_path / "t.json"), tmp_path / "s.duckdb")
    (check,) = [check for check in value.evidence.checks if check.name == "other_processes"]
    assert (check.verdict, check.count) == ("unknown", 6)
    assert value.evidence.sentence is None


def test_a_slice_of_a_gpu_is_said_and_touches_nothing(tmp_path: Path) -> None:
    document = dict(GOOD[planted_faults.EAGER])
    document["deviceProperties"] = [{"id": 0, "name": "NVIDIA H200 MIG 1g.18gb"}]
    (tmp_path / "t.json").write_bytes(orjson.dumps(document))
    value = loaded(tmp_path / "t.json", tmp_path / "s.duckdb")
    (check,) = [check for check in value.evidence.checks if check.name == "contexts"]
    assert (check.verdict, check.count) == ("ok", 1)
    assert "MIG" in check.found


def test_pieces_of_a_model_are_graphs_of_their_own(tmp_path: Path) -> None:
    """The last piece has less than the pieces before it: nothing proves that it lost any."""
    trace = TraceBuilder()
    for i, kernels in enumerate(("abc", "abc", "abc", "ab")):
        trace.add_call("cudaGraphLaunch", 100 * i, 10, i + 1)
        for n, name in enumerate(kernels):
            trace.add_kernel(name, 100 * i + 20 + 10 * n, 5, i + 1)
    value = loaded(trace.write(tmp_path / "t.json"), tmp_path / "s.duckdb")
    (check,) = [check for check in value.evidence.checks if check.name == "dropped_events"]
    assert (check.verdict, check.count) == ("unknown", 1)


# -- what follows


def test_a_bound_is_said_with_its_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    value = loaded(write_fault(FAULTS[0], tmp_path), tmp_path / "s.duckdb")
    reason = "2 of 3 graph launches have no device events"
    assert value.verdict.reading == "not judged"
    assert value.verdict.hdbi is None
    assert value.measured.hdbi is value.totals.hdbi is None
    assert "GPU waits for at most" in value.verdict.sentence
    assert value.verdict.sentence.endswith(f"{reason}.")
    assert main(["report", "latest", "--db", str(tmp_path / "s.duckdb")]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert text.index(f"Evidence: {reason}") < text.index("HDBI is not judged")
    assert "GPU idle at most" in text


def test_nothing_is_said_where_nothing_is_touched(
    samples_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    value = loaded(samples_dir / planted_faults.EAGER, tmp_path / "s.duckdb")
    assert value.evidence.sentence is None
    assert value.evidence.bounds == {}
    assert value.measured.hdbi is not None
    main(["report", "latest", "--db", str(tmp_path / "s.duckdb")])
    assert "Evidence" not in capsys.readouterr().out


def test_predictions_from_a_touched_run_are_refused_in_a_line(tmp_path: Path, capsys) -> None:
    value = loaded(write_fault(FAULTS[0], tmp_path), tmp_path / "s.duckdb")
    with (
        queries.connect(tmp_path / "s.duckdb") as connection,
        pytest.raises(AnalyzerError, match="2 of 3 graph launches"),
    ):
        predict(connection, value.run.run_id)
    assert main(["predict", "latest", "--db", str(tmp_path / "s.duckdb")]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_the_list_of_runs_has_no_index_of_a_touched_run(tmp_path: Path) -> None:
    loaded(write_fault(FAULTS[0], tmp_path), tmp_path / "s.duckdb")
    with queries.connect(tmp_path / "s.duckdb") as connection:
        (run,) = queries.listed_runs(connection)
    assert run.hdbi is None
    assert run.launches


@pytest.mark.parametrize("damaged", ["cut", "lost"])
def test_a_gate_does_not_pass_on_damage(damaged: str, tmp_path: Path, capsys) -> None:
    """A trace cut at 60 % is not faster, one without 35 of its 60 kernels is not the same."""
    store = str(tmp_path / "s.duckdb")
    for name in ("full", damaged):
        (result,) = ingest(FIGURES / f"gate-{name}.json", Path(store), jobs=1)
        assert result.state == "stored"
    names = ["gate-full", f"gate-{damaged}"]
    for condition in ("device_active_ns > +5%", "orchestration_ns > +5%", "elapsed_ns > +5%"):
        capsys.readouterr()
        assert main(["compare", *names, "--db", store, "--fail-if", condition, "--json"]) == 3
        said = capsys.readouterr()
        (gate,) = json.loads(said.out)["gates"]
        assert (gate["failed"], bool(gate["not_judged"])) == (False, True)
        assert "is not judged" in said.err
    assert main(["compare", *names, "--db", store]) == 3
    said = capsys.readouterr().out
    assert "is not judged against gate-full" in said
    assert "times faster" not in said
    assert "same as" not in said


def test_a_gate_on_a_sound_figure_is_judged(tmp_path: Path, capsys) -> None:
    """Lost kernels do not touch the host's wall time; a condition that holds is still a failure."""
    store = tmp_path / "s.duckdb"
    (tmp_path / "full.json").write_bytes(orjson.dumps(GOOD[planted_faults.EAGER]))
    (lost,) = [fault for fault in FAULTS if fault.name == "kernels-dropped"]
    paths = [tmp_path / "full.json", write_fault(lost, tmp_path)]
    ingest(paths, store, step_annotation=["step#*"], jobs=1)
    names = ["full", lost.name, "--db", str(store)]
    assert main(["compare", *names, "--fail-if", "wall_ns > +5%"]) == 0
    assert main(["compare", *names, "--fail-if", "wall_ns > 0", "--fail-if", "kernels < 9"]) == 1


def test_doctor_reads_a_file_without_a_store(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    path = write_fault(FAULTS[0], tmp_path)
    assert main(["doctor", str(path), "--json"]) == 1
    of_file = json.loads(capsys.readouterr().out)
    assert of_file["run_id"] is None
    assert [p for p in tmp_path.iterdir() if p != path] == []
    loaded(path, tmp_path / "s.duckdb")
    assert main(["doctor", "latest", "--db", "s.duckdb", "--json"]) == 1
    of_run = json.loads(capsys.readouterr().out)
    assert of_run["evidence"] == of_file["evidence"]
    assert main(["doctor", "latest", "--db", "s.duckdb"]) == 1
    text = " ".join(capsys.readouterr().out.split())
    for part in ("graph_launches: 2 of 3", "effect: Device time", "remedy: Start the profiler"):
        assert part in text


def test_doctor_of_a_sound_run_ends_well(samples_dir: Path, capsys) -> None:
    assert main(["doctor", str(samples_dir / planted_faults.EAGER)]) == 0
    assert "no figure is touched" in capsys.readouterr().out


# -- losing events never makes a figure look surer

GOOD = {
    planted_faults.EAGER: sample_document(planted_faults.EAGER),
    planted_faults.GRAPH: sample_document(planted_faults.GRAPH),
}


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """The true figures of the good traces."""
    found: dict[str, dict[str, Any]] = {}
    for name, document in GOOD.items():
        folder = tmp_path_factory.mktemp("good")
        (folder / "good.json").write_bytes(orjson.dumps(document))
        value = loaded(folder / "good.json", folder / "s.duckdb")
        assert value.evidence.bounds == {}
        found[name] = figures_of(value)
    return found


GROUPS = {
    "device_time": ("kernels", "memcpys", "memsets", "device_active_ns", "device_busy_ns"),
    "device_idle": ("device_idle_ns",),
    "hdbi": ("hdbi", "hdbi_busy"),
    "launch_time": ("tklqt_ns",),
    "launches": ("launches", "graph_launches"),
    "host_cost": ("t_py_ns", "t_dispatch_ns", "ft_ns", "ct_ns", "kt_ns", "orchestration_ns"),
    "host_time": ("wall_ns",),
}


def figures_of(value: RunReport) -> dict[str, Any]:
    return {name: getattr(value.totals, name) for names in GROUPS.values() for name in names}


@settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(data=st.data())
def test_without_some_device_events_each_figure_is_within_its_bounds_or_not_judged(
    data: st.DataObject, sound: dict[str, dict[str, Any]], tmp_path_factory
) -> None:
    name = data.draw(st.sampled_from(sorted(GOOD)))
    document = dict(GOOD[name])
    events = planted_faults.device_events(document)
    first = data.draw(st.integers(0, len(events) - 1))
    count = data.draw(st.integers(1, len(events)))
    every = data.draw(st.sampled_from((1, 2, 7, 50)))
    planted_faults.without(document, events[first : first + count : every])
    folder = tmp_path_factory.mktemp("lost")
    (folder / "lost.json").write_bytes(orjson.dumps(document))
    value = loaded(folder / "lost.json", folder / "s.duckdb")
    bounds: dict[str, set[str]] = {}
    for check in value.evidence.checks:  # an unknown check states its bounds too
        for kind in ("at_least", "at_most", "not_judged"):
            if check.verdict != "ok":
                for group in getattr(check, kind):
                    bounds.setdefault(group, set()).add(kind)
    for group, names in GROUPS.items():
        kinds = bounds.get(group, set())
        for figure in names:
            true, shown = sound[name][figure], getattr(value.totals, figure)
            if "not_judged" in kinds or shown is None or true is None:
                continue
            if "at_least" in kinds:
                assert shown <= true, (figure, kinds)
            elif "at_most" in kinds:
                assert shown >= true, (figure, kinds)
            else:
                assert shown == true, (figure, bounds)
