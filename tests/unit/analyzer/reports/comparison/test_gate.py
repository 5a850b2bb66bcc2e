"""A gate for CI: figures by name, and conditions that hold, do not, or cannot be judged."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from analyzer import queries
from analyzer.errors import AnalyzerError
from analyzer.ingest import ingest
from analyzer.reports.comparison import compare
from analyzer.reports.comparison.gate import judge, judge_all, metric
from analyzer.reports.records import Comparison


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory, samples_dir: Path) -> Comparison:
    db = tmp_path_factory.mktemp("gate") / "store.duckdb"
    names = [f"gpt2-prefill-bs1-s512{suffix}" for suffix in ("", "-graph")]
    ingest([samples_dir / name for name in names], db, jobs=1)
    with queries.connect(db) as connection:
        return compare(connection, [queries.find_run(connection, name) for name in names])


def test_a_metric_is_found_by_its_name(compared: Comparison) -> None:
    base = compared.runs[0]

    assert metric(base, "hdbi") == base.hdbi
    assert metric(base, "kernels") == base.per_step.kernels
    assert metric(base, "totals.kernels") == base.totals.kernels
    assert metric(base, "phases.step.wall_ns") == base.phases["step"].wall_ns
    assert metric(base, "ledger.framework.exposed_ns") == base.ledger["framework"].exposed_ns


@pytest.mark.parametrize("name", ["phases.decode.wall_ns", "latency.tpot.p50_ns", "latency.itl.x"])
def test_what_a_run_did_not_measure_is_unknown(compared: Comparison, name: str) -> None:
    assert metric(compared.runs[0], name) is None


@pytest.mark.parametrize(
    "name",
    ["", "nothing", "totals.floor_source", "totals.x", "ledger.x.ns", "phases.decode", "run"],
)
def test_a_name_that_no_run_has_is_refused(compared: Comparison, name: str) -> None:
    with pytest.raises(AnalyzerError, match="there is no metric"):
        metric(compared.runs[0], name)


@pytest.mark.parametrize(
    ("condition", "failed"),
    [("launches < -50%", True), ("launches > +5%", False), ("launches <= 10", True)],
)
def test_a_condition_is_judged_against_the_base_or_by_itself(
    compared: Comparison, condition: str, failed: bool
) -> None:
    base, other = compared.runs

    gate = judge(condition, base, other)

    assert (gate.before, gate.after) == (base.per_step.launches, other.per_step.launches)
    assert gate.failed is failed


def test_a_gate_that_cannot_judge_does_not_pass(compared: Comparison) -> None:
    with pytest.raises(AnalyzerError, match="cannot be judged"):
        judge_all(compared, ["latency.tpot.p50_ns > +5%"])
    with pytest.raises(AnalyzerError, match="is no condition"):
        judge_all(compared, ["hdbi"])


def test_slower_weighs_the_noise(compared: Comparison) -> None:
    (faster,) = judge_all(compared, ["slower"]).gates
    slow = replace(compared.pairs[0].times["step"], outcome="slower", relative=0.2)
    worse = replace(compared, pairs=[replace(compared.pairs[0], times={"step": slow})])
    (slower,) = judge_all(worse, ["slower"]).gates

    assert (faster.failed, faster.not_judged) == (False, None)
    assert slower.failed


def test_where_the_times_cannot_be_judged_slower_is_not(compared: Comparison) -> None:
    unsure = replace(compared.pairs[0].times["step"], outcome="not judged")
    doubted = replace(compared, pairs=[replace(compared.pairs[0], times={"step": unsure})])

    (gate,) = judge_all(doubted, ["slower"]).gates

    assert not gate.failed
    assert gate.not_judged
