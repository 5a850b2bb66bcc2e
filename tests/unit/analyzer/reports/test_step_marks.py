"""The line of a report that says how many steps a run has and what told them."""

from __future__ import annotations

from pathlib import Path

import pytest

from analyzer import queries
from analyzer.ingest import ingest
from analyzer.render.report import print_report
from analyzer.render.tables import console
from analyzer.reports.report import report
from tests.support.tracebuilder import TraceBuilder


@pytest.fixture
def told(tmp_path: Path):
    """Ingest a trace; returns its report and the report's text."""

    def ask(trace: TraceBuilder, *patterns: str):
        db = tmp_path / "s.duckdb"
        ingest(trace.write(tmp_path / "t.json"), db, jobs=1, step_annotation=patterns)
        with queries.connect(db) as store:
            found = report(store, queries.find_run(store, "latest"))
        with (tmp_path / "report.txt").open("w") as file:
            print_report(found, console(file))
        return found, (tmp_path / "report.txt").read_text()

    return ask


def steps(trace: TraceBuilder, *names: str) -> TraceBuilder:
    for number, name in enumerate(names):
        trace.add_annotation(name, 100 * number, 90)
        trace.add_launch("k", 100 * number + 10, 5, number + 1)
    return trace


@pytest.mark.parametrize(
    ("names", "line"),
    [
        (["step[DECODE bs=2]"] * 3, "steps: 3, SGLang"),
        (["execute_new_1_cached_2"], "steps: 1, vLLM"),
        (["ProfilerStep#1", "ProfilerStep#2"], "steps: 2, ProfilerStep"),
        (["hostbound.decode#0"], "steps: 1, the collector's marks"),
        (["mine#0", "mine#1"], "steps: 2, mine#*"),
        (["whatever"], "steps: none, the whole trace is one"),
    ],
)
def test_a_report_says_how_many_steps_there_are_and_what_told_them(
    told, trace: TraceBuilder, names: list[str], line: str
) -> None:
    found, text = told(steps(trace, *names), *(["mine#*"] if "mine#0" in names else []))
    assert f"\n{line}\n" in text
    assert line == f"steps: {found.steps_told}"


def test_steps_found_by_repetition_are_said_with_their_coverage(told, trace: TraceBuilder) -> None:
    for number in range(5):
        for place in range(4):
            trace.add_launch(f"k{place}", 100 * number + 10 * place, 5, 4 * number + place + 1)
        trace.add_call("cudaDeviceSynchronize", 100 * number + 50, 20)
    found, text = told(trace)
    assert found.steps_told == "found by repetition: 5 step, 100 % of launches"
    assert f"steps: {found.steps_told}" in text


def test_steps_of_two_batches_are_two_rows(told, trace: TraceBuilder) -> None:
    found, text = told(steps(trace, *["step[DECODE bs=1]", "step[DECODE bs=64]"] * 2))
    assert [(g.phase, g.batch, g.steps) for g in found.step_groups] == [
        ("decode", 1, 2),
        ("decode", 64, 2),
    ]
    assert "Steps by phase and batch" in text


def test_warm_up_is_in_no_median(told, trace: TraceBuilder) -> None:
    now = 0
    for number in range(6):
        for place in range(4):
            trace.add_launch(f"k{place}", now + 10 * place, 5, 4 * number + place + 1)
        now += 1_000 if number == 0 else 100 + number
        trace.add_call("cudaDeviceSynchronize", now - 10, 10)
    found, text = told(trace)
    assert found.steps_told == "found by repetition: 6 step, 100 % of launches, 1 of them warm-up"
    assert [step.is_warm_up for step in found.steps] == [True] + [False] * 5
    assert found.phases["step"].median_wall_ns == 103_000
    assert found.steps_told in text
