"""Two runs whose hosts ran at different speeds: a comparison says so, a report shows it."""

from __future__ import annotations

import gzip
import io
import json
import shutil
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from analyzer import queries
from analyzer.ingest import ingest
from analyzer.render import comparison as comparison_text
from analyzer.render import report as report_text
from analyzer.render.tables import console
from analyzer.reports import comparison, host_speed, report
from analyzer.reports.comparison import gate
from analyzer.reports.records import Comparison, RunReport, SequenceMatch, Sequences
from schemas.run_directory import MANIFEST
from tests.support.records import run_with

MS = 1_000_000
Change = Callable[[dict[str, Any]], None]


@pytest.fixture(scope="module")
def make(tmp_path_factory: pytest.TempPathFactory, samples_dir: Path) -> Callable[..., Path]:
    """A recorded GPT-2 run (three traces of a prefill and four decode steps) with host speeds."""
    folder = tmp_path_factory.mktemp("runs")

    def made(
        name: str,
        traces_ms: float | None = 5.0,
        latency_ms: float = 5.0,
        inflation: float = 2.0,
        change: Change = lambda value: None,
    ) -> Path:
        target = folder / name
        shutil.copytree(samples_dir / "gpt2-bs1-s512", target)
        path = target / MANIFEST
        value = json.loads(path.read_bytes()) | {"name": name}
        if traces_ms is not None:
            value["host_speed"] = {
                "definition": "a loop",
                "latency_ns": [round(latency_ms * MS)],
                "floor_ns": [round(traces_ms * MS)] * 2,
            }
            for trace in value["traces"]:
                trace["host_speed_ns"] = [round(traces_ms * MS)] * 2
                trace["unprofiled_step_wall_ns"] = [
                    round(wall / inflation) for wall in trace["step_wall_ns"]
                ]
        change(value)
        path.write_text(json.dumps(value))
        return target

    return made


@pytest.fixture
def compared(tmp_path: Path) -> Callable[[Path, Path], Comparison]:
    def run(a: Path, b: Path) -> Comparison:
        results = ingest([a, b], tmp_path / "s.duckdb", jobs=1)
        with queries.connect(tmp_path / "s.duckdb") as store:
            return comparison.compare(store, [result.run_id for result in results])

    return run


def reported(path: Path, store: Path) -> RunReport:
    (result,) = ingest(path, store, jobs=1)
    with queries.connect(store) as connection:
        return report.report(connection, result.run_id)


def speed_lines(value: Comparison) -> list[str]:
    return [line for line in value.pairs[0].warnings if "the host ran" in line]


def printed(printer: Callable[[Any, Any], None], value: Comparison | RunReport) -> str:
    out = io.StringIO()
    printer(value, console(out))
    return " ".join(out.getvalue().split())


def test_a_slower_host_is_named_with_an_estimate_that_is_free_of_it(make, compared) -> None:
    value = compared(make("s1", 5.0, inflation=2.0), make("s2", 7.0, inflation=2.1))

    assert speed_lines(value) == [
        "the host ran 1.40 times slower during the traces of s2 than of s1: differences of "
        "profiled host times below that are not s2's doing. Estimate free of that: a profiled "
        "step over the un-profiled one just before it, prefill 2.00 and 2.10; decode 2.00 and 2.10"
    ]
    text = printed(comparison_text.print_comparison, value)
    assert "the host ran 1.40 times slower during the traces of s2" in text
    assert "host, fixed work 5 ms 7 ms +40.0 %" in text


def test_latency_that_was_taken_at_another_speed_is_named_too(make, compared) -> None:
    value = compared(make("l1", latency_ms=5.0), make("l2", latency_ms=2.5))

    assert speed_lines(value) == [
        "the host ran 2.00 times faster during the latency requests of l2 than of l1: differences "
        "of un-profiled step times below that are not l2's doing"
    ]


def test_speeds_within_three_percent_are_the_same(make, compared) -> None:
    assert speed_lines(compared(make("n1", 5.0), make("n2", 5.14))) == []


def variant(number: int, group: str = "a group") -> Change:
    """Makes a run a variant of a group; its steps are as they were recorded."""

    def change(value: dict[str, Any]) -> None:
        value["group"] = {"id": group, "variant": number, "variants": 2}

    return change


def slowed(target: Path, factors: list[float]) -> None:
    """Make every time of trace k longer by factor k."""
    manifest = json.loads((target / MANIFEST).read_bytes())
    for trace, factor in zip(manifest["traces"], factors, strict=True):
        path = target / trace["file"]
        value = json.loads(gzip.decompress(path.read_bytes()))
        for event in value["traceEvents"]:
            for key in ("ts", "dur"):
                if isinstance(event.get(key), (int, float)):
                    event[key] *= factor
        path.write_bytes(gzip.compress(json.dumps(value).encode(), 1))
        manifest["files"].pop(trace["file"], None)
    (target / MANIFEST).write_text(json.dumps(manifest))


def test_interleaved_runs_have_the_median_of_the_ratios_of_their_pairs(make, compared) -> None:
    """One pair is torn apart by the host: the medians differ by 1.65, the pairs' ratios bear it."""
    a = make("t1", change=variant(1))
    b = make("t2", inflation=1.6, change=variant(2))
    slowed(a, [1.0, 2.0, 3.0])
    slowed(b, [1.1, 6.6, 3.3])

    value = compared(a, b)

    turns = value.pairs[0].turns
    plain = compared(make("t3"), make("t4", 5.1)).pairs[0]
    assert plain.turns is None
    for phase in ("prefill", "decode"):
        assert turns.phases[phase].pairs == 3
        assert turns.phases[phase].elapsed == pytest.approx(1.1, rel=0.1)
        assert turns.phases[phase].orchestration == pytest.approx(1.1, rel=0.1)
    text = printed(comparison_text.print_comparison, value)
    assert turns.sentence in text
    prefill, decode = (turns.phases[phase].orchestration for phase in ("prefill", "decode"))
    assert turns.sentence == (
        "Recorded interleaved: ratio of t2 to t1, the median of 3 pairs of traces, which the "
        f"host's speed moves least: prefill T_Orchestration {prefill:.3f}, un-profiled step beside "
        f"it 1.250; decode T_Orchestration {decode:.3f}, un-profiled step beside it 1.250."
    )


def test_a_run_of_fewer_traces_is_paired_as_far_as_it_goes(make, compared) -> None:
    a = make("u1", change=variant(1))
    b = make("u2", change=variant(2))
    manifest = json.loads((b / MANIFEST).read_bytes())
    del manifest["traces"][1:]
    (b / MANIFEST).write_text(json.dumps(manifest))

    turns = compared(a, b).pairs[0].turns

    assert {phase: entry.pairs for phase, entry in turns.phases.items()} == {
        "prefill": 1,
        "decode": 1,
    }
    assert turns.phases["decode"].orchestration == 1
    assert "of 1 pair of traces" in turns.sentence


def test_variants_of_different_groups_make_no_pair(make, compared) -> None:
    a = make("v1", change=variant(1))
    b = make("v2", 7.0, change=variant(2, "another group"))

    value = compared(a, b)

    assert value.pairs[0].turns is None
    assert len(speed_lines(value)) == 1


@pytest.mark.parametrize(("group", "unknown"), [("a group", False), ("another group", True)])
def test_variants_of_one_group_share_a_host_that_no_run_names(
    make, compared, group: str, unknown: bool
) -> None:
    def nameless(number: int, group: str) -> Change:
        def change(value: dict[str, Any]) -> None:
            variant(number, group)(value)
            value["environment"]["host"] = None

        return change

    a = make(f"h1-{unknown}", change=nameless(1, "a group"))
    b = make(f"h2-{unknown}", change=nameless(2, group))

    warnings = compared(a, b).pairs[0].warnings

    assert any("does not name its host" in warning for warning in warnings) is unknown


@pytest.mark.parametrize(("second", "lines"), [(5.4, 0), (5.6, 1)])
def test_of_interleaved_runs_only_medians_that_really_differ_are_warned_of(
    make, compared, second: float, lines: int
) -> None:
    a = make(f"x1-{lines}", 5.0, change=variant(1))
    b = make(f"x2-{lines}", second, change=variant(2))

    found = speed_lines(compared(a, b))

    assert len(found) == lines
    assert all("The ratios of pairs of traces, above, bear that best" in line for line in found)


def test_runs_of_one_name_are_told_apart(make, compared) -> None:
    def same_name(value: dict[str, Any]) -> None:
        value["name"] = "gpt2"

    (line,) = speed_lines(
        compared(make("o1", 5.0, change=same_name), make("o2", 6.0, change=same_name))
    )

    assert "during the traces of the second run than of the first run" in line


@pytest.mark.parametrize(
    "change",
    [
        lambda value: value["host_speed"].update(definition="another loop"),
        lambda value: value["environment"].update(cpu="another CPU"),
        lambda value: value["environment"]["versions"].update(python="3.13.0"),
    ],
)
def test_speeds_of_different_measures_are_not_held_against_each_other(
    make, compared, request, change: Change
) -> None:
    name = f"d{request.node.callspec.id}"
    value = compared(make(f"{name}1", 5.0), make(f"{name}2", 9.0, change=change))

    assert speed_lines(value) == []


def test_a_run_without_host_speed_is_compared_as_before(make, compared) -> None:
    value = compared(make("w1", None), make("w2", 9.0))

    assert speed_lines(value) == []
    assert [run.host_speed is None for run in value.runs] == [True, False]
    assert "host, fixed work - 9 ms" in printed(comparison_text.print_comparison, value)


def test_the_same_kernels_in_the_same_order_are_said_to_be_the_same(
    make, compared, samples_dir: Path
) -> None:
    same = compared(make("k1"), make("k2", 5.1)).pairs[0].sequences
    other = compared(make("k3"), samples_dir / "gpt2-bs8-s512").pairs[0].sequences

    assert same == Sequences(
        {"prefill": SequenceMatch(steps=1, identical=1), "decode": SequenceMatch(4, 4)},
        "Kernel sequences are identical in every step.",
    )
    assert other.phases["decode"] == SequenceMatch(steps=4, identical=0)
    assert other.sentence == (
        "Kernel sequences differ: prefill in 1 of 1 step, decode in 4 of 4 steps."
    )


def test_a_kernel_in_another_place_makes_another_sequence(make, compared, tmp_path: Path) -> None:
    """Two kernels of one trace change places; nothing else does."""
    other = make("p2", 5.1)
    path = other / "trace.json.gz"
    value = json.loads(gzip.decompress(path.read_bytes()))
    kernels = sorted(
        (e for e in value["traceEvents"] if e.get("cat") == "kernel"), key=lambda e: e["ts"]
    )
    first, second = next((a, b) for a, b in pairwise(kernels) if a["name"] != b["name"])
    first["name"], second["name"] = second["name"], first["name"]
    path.write_bytes(gzip.compress(json.dumps(value).encode()))
    manifest = json.loads((other / MANIFEST).read_bytes())
    del manifest["files"]["trace.json.gz"]
    (other / MANIFEST).write_text(json.dumps(manifest))

    phases = compared(make("p1"), other).pairs[0].sequences.phases

    assert phases["prefill"] == SequenceMatch(steps=1, identical=0)
    assert phases["decode"] == SequenceMatch(steps=4, identical=4)


def test_the_report_takes_inflation_from_the_steps_beside_the_trace(make, tmp_path: Path) -> None:
    value = reported(make("r1", 7.0, latency_ms=5.0, inflation=2.5), tmp_path / "s.duckdb")

    assert value.inflation == {
        "prefill": pytest.approx(2.5, rel=1e-6),
        "decode": pytest.approx(2.5, rel=1e-6),
    }
    text = printed(report_text.print_report, value)
    assert "a profiled decode step takes 2.50 times as long as the un-profiled one just" in text
    assert "during the traces 7 ms 7 ms to 7 ms during the latency requests 5 ms" in text


def test_without_them_inflation_is_that_of_the_latency_pass(make, tmp_path: Path) -> None:
    value = reported(make("r2", None), tmp_path / "s.duckdb")

    expected = value.phases["decode"].median_elapsed_ns
    assert value.inflation["decode"] == expected / value.latency["decode_step"].p50_ns
    assert value.host_speed is None
    assert "Host speed" not in printed(report_text.print_report, value)


def test_a_phase_has_the_median_over_the_steps_of_all_traces(make, tmp_path: Path) -> None:
    value = reported(make("r4"), tmp_path / "s.duckdb")

    costs = sorted(s.orchestration_ns for s in value.steps if s.phase == "prefill")
    assert len(costs) == 3
    assert value.phases["prefill"].median_orchestration_ns == costs[1]
    run = comparison.compared_run(value)
    assert gate.metric(run, "phases.prefill.median_orchestration_ns") == costs[1]


@pytest.mark.parametrize(
    "phases",
    [
        [{"phase": "prefill", "steps": 1}],
        [{"phase": "decode", "steps": 10**15}],
        [{"phase": "decode", "steps": "5"}],
        [{"steps": 5}],
        ["decode"],
        [],
    ],
)
def test_a_plan_that_does_not_fit_the_steps_gives_no_ratio(phases: list[Any]) -> None:
    trace = {"file": "t", "step_wall_ns": [2] * 5, "unprofiled_step_wall_ns": [1] * 5}
    manifest = {
        "run_id": "i", "name": "n", "created_at": "", "mode": "eager", "schema_version": 1,
        "traces": [trace], "phases": phases, "host_speed": {"definition": "a loop"},
    }  # fmt: skip

    found = host_speed.speed_of(run_with(manifest))

    assert found is not None
    assert found.beside == {}
    assert found.traces_ns is None
