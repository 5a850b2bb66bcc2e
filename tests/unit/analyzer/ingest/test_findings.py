"""What the sums of a run say about their worth."""

from __future__ import annotations

from dataclasses import fields, replace

from analyzer.attribution.totals import Totals
from analyzer.ingest.findings import run_findings

NOTHING = Totals(**{f.name: 0 for f in fields(Totals)})  # type: ignore[arg-type]  # all numbers
SOUND = replace(
    NOTHING, launches=10, clean_launches=10, orchestration_ns=5, floor_source="null_kernel"
)


def said(run: Totals, *steps: Totals) -> list[tuple[str, str, int]]:
    return [(f.code, f.severity, f.count) for f in run_findings(run, steps)]


def test_nothing_is_said_of_a_sound_run() -> None:
    assert said(SOUND, SOUND) == []


def test_a_missing_floor_is_a_warning_only_where_a_step_lacks_it() -> None:
    run = replace(SOUND, floor_source="none", orchestration_ns=None)
    assert said(run, SOUND) == [("no_floor", "note", 1)]
    assert said(run, SOUND, run) == [("no_floor", "warning", 1)]
    (inside,) = run_findings(run, [run])
    assert "HDBI of some steps are unknown" in inside.message


def test_graph_launches_need_no_floor() -> None:
    assert said(replace(SOUND, floor_source="none", graph_launches=10)) == []


def test_an_estimated_floor_is_told() -> None:
    assert said(replace(SOUND, floor_source="trace")) == [("floor_from_trace", "note", 1)]


def test_launches_are_counted_against_all() -> None:
    run = replace(SOUND, clean_launches=4, negative_gaps=2, launches_without_op=3)
    found = {f.code: f.message for f in run_findings(run, [])}
    assert found["negative_gaps"].startswith("2 of 10 kernels start before their launch call")
    assert found["dirty_launches"].startswith("6 of 10 launches found their stream busy")
    assert found["launches_without_op"].startswith("3 of 10 launches stand in no operator")


def test_half_of_the_launches_on_a_busy_stream_are_not_worth_a_note() -> None:
    assert said(replace(SOUND, clean_launches=5)) == []
