"""Runs of several ranks give the figures that were read from the recordings independently.

The expected figures stand in `facts.json` and the READMEs beside the recordings.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import duckdb
import pytest

from analyzer import queries
from analyzer.cli import main
from analyzer.ingest import ingest
from analyzer.reports.prediction import predict
from analyzer.reports.ranks import rank_report
from analyzer.reports.ranks.balance import perfect_ranks
from analyzer.store.verify import verify
from tests.support.rank_traces import three_ranks, write_ranks

SETS = ("none", "python", "graph")


@pytest.fixture(scope="module")
def recordings(shared_dir: Path) -> Path:
    return shared_dir / "traces" / "ranks"


@pytest.fixture(scope="module")
def store(recordings: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three recordings of two ranks, loaded from one folder."""
    path = tmp_path_factory.mktemp("ranks") / "s.duckdb"
    traces = sorted(recordings.glob("*.json.gz"))
    results = ingest(traces, path, step_annotation=["decode#*"], jobs=1)
    assert [result.name for result in results] == ["graph", "none", "python"]
    return path


def ask(store: Path, sql: str, *parameters: Any) -> list[tuple[Any, ...]]:
    with duckdb.connect(str(store), read_only=True) as connection:
        return connection.execute(sql, list(parameters)).fetchall()


@pytest.mark.parametrize("name", SETS)
def test_offset_waits_and_transfer_are_those_of_the_facts(
    store: Path, recordings: Path, name: str
) -> None:
    facts = json.loads((recordings / "facts.json").read_text(encoding="utf-8"))[name]
    of_run = "FROM collectives JOIN runs USING (run_id) WHERE runs.name = ? AND step_id IS NOT NULL"
    waits = ask(store, f"SELECT count(*), sum(wait_ns), sum(dur_ns) {of_run} GROUP BY trace_id "
                "ORDER BY trace_id", name)  # fmt: skip
    assert [row[0] for row in waits] == [facts["collectives"]] * 2
    assert [row[1] for row in waits] == pytest.approx(facts["wait_ns"], rel=1e-3)
    assert [row[2] for row in waits] == facts["nccl_ns"]
    ((transfer,),) = ask(store, f"SELECT sum(ns) FROM (SELECT min(transfer_ns) AS ns {of_run} "
                         "GROUP BY collective_id)", name)  # fmt: skip
    assert transfer == pytest.approx(facts["transfer_ns"], rel=1e-3)
    offsets = ask(store, "SELECT clock_offset_ns, clock_good_pairs FROM ranks "
                  "JOIN runs USING (run_id) WHERE name = ? ORDER BY rank", name)  # fmt: skip
    assert offsets == [(0, 0), (facts["end_offset_p50_ns"], facts["collectives"])]


def test_charges_add_up_in_every_step_and_the_store_is_sound(store: Path) -> None:
    assert verify(store) == []
    assert ask(
        store,
        "SELECT * FROM (SELECT run_id, trace_id, step_id, sum(wait_ns) AS ns FROM collectives "
        "GROUP BY ALL HAVING ns > 0) AS waited FULL JOIN (SELECT run_id, trace_id, step_id, "
        "sum(ns) AS ns FROM waits GROUP BY ALL) AS charged USING (run_id, trace_id, step_id, ns) "
        "WHERE waited.ns IS NULL OR charged.ns IS NULL",
    ) == []  # fmt: skip


def test_verify_finds_a_charge_that_was_changed(store: Path, tmp_path: Path) -> None:
    copy = tmp_path / "damaged.duckdb"
    copy.write_bytes(store.read_bytes())
    with duckdb.connect(str(copy)) as connection:
        connection.execute("UPDATE waits SET ns = ns + 1 WHERE account = 'launch'")
    assert {problem.check for problem in verify(copy)} == {"rank_waits"}


def test_what_was_planted_in_python_is_charged_to_python(store: Path) -> None:
    """Rank 1 spins 200 us before each layer: what of that fell into rank 0's waits is Python's."""
    waits = (
        "SELECT late.aligned_start_ns, early.aligned_start_ns, ranks.clock_offset_ns "
        "FROM collectives AS early JOIN collectives AS late USING (run_id, collective_id) "
        "JOIN runs USING (run_id) JOIN ranks ON ranks.run_id = runs.run_id AND ranks.rank = 1 "
        "WHERE runs.name = 'python' AND early.trace_id = 0 AND late.trace_id = 1 "
        "AND early.wait_ns > 0"
    )
    spins = ask(
        store,
        "WITH inside AS (SELECT ops.*, max(ops.start_ns + ops.dur_ns) OVER (PARTITION BY step_id "
        "ORDER BY ops.start_ns ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS since_ns "
        "FROM ops JOIN runs USING (run_id) WHERE runs.name = 'python' AND trace_id = 1 "
        "AND parent_op_id IS NULL AND step_id IS NOT NULL) "
        "SELECT since_ns, start_ns FROM inside WHERE start_ns - since_ns >= 200000",
    )
    assert len(spins) == 6 * 15  # that of the first layer begins with the step
    starts = ask(store, "SELECT steps.start_ns, min(ops.start_ns) FROM steps JOIN ops USING "
                 "(run_id, step_id) JOIN runs USING (run_id) WHERE runs.name = 'python' "
                 "AND steps.trace_id = 1 GROUP BY ALL")  # fmt: skip
    planted = sum(
        max(0, min(end, late + offset) - max(begin, early + offset))
        for late, early, offset in ask(store, waits)
        for begin, end in [*spins, *starts]
    )
    ((charged,),) = ask(
        store,
        "SELECT sum(ns) FROM rank_waits WHERE run_name = 'python' AND rank = 0 AND late_rank = 1 "
        "AND account = 'python' AND held_by = 'aten::rms_norm' AND is_before",
    )
    # A layer begins with rms_norm; what stands before it without a spin is a few us a layer.
    assert planted <= charged < planted * 1.05


def test_the_report_says_who_waits_for_whom_and_why(store: Path, capsys) -> None:
    assert main(["report", "python", "--db", str(store)]) in (0, 1)
    text = capsys.readouterr().out
    assert "Ranks: 2" in text
    assert "Rank 1 waits 14.8 ms a median step (85% of it) for rank 0" in text
    assert "allreduce" in text
    with queries.connect(store) as connection:
        found = rank_report(connection, queries.find_run(connection, "none"))
    assert found is not None
    assert [one.unrecorded_ns > 0 for one in found.ranks] == [False, True]
    (kind,) = found.collectives
    assert (kind.bytes, kind.ranks, kind.collectives) == (16_384, 2, 192)
    assert kind.bus_bytes_per_s == pytest.approx(16_384 / kind.transfer_p50_ns * 1e9)


def test_json_and_comparison_have_the_ranks(store: Path, capsys) -> None:
    main(["report", "graph", "--db", str(store), "--json"])
    ranks = json.loads(capsys.readouterr().out)["ranks"]
    assert ranks["has_verdict"]
    assert sum(c["share"] for c in ranks["charges"] if c["rank"] == 1) == pytest.approx(1)
    main(["compare", "none", "python", "--db", str(store)])
    assert "rank 1 waits, median" in capsys.readouterr().out


@pytest.mark.parametrize("name", SETS)
def test_predictions_of_ranks_and_schedule_lie_within_their_bounds(store: Path, name: str) -> None:
    with queries.connect(store) as connection:
        run_id = queries.find_run(connection, name)
        found = predict(connection, run_id, ["perfect-ranks", "async-schedule"])
    for one in found.predictions:
        assert one.low_ns is not None
        assert one.predicted_ns is not None
        assert one.high_ns is not None
        assert 0 < one.low_ns <= one.predicted_ns <= one.high_ns <= one.base_ns


def test_a_pair_of_ranks_whose_collectives_are_not_the_same_abstains(
    shared_dir: Path, tmp_path: Path
) -> None:
    folder = shared_dir / "traces" / "next" / "kineto-multirank"
    paths = sorted(folder.glob("sampled-rank*"))
    (result,) = ingest(paths, tmp_path / "s.duckdb", jobs=1)
    codes = {finding.code: finding.message for finding in result.findings}
    assert "126 of 128 ranks are not in this run (2-127)" in codes["ranks_missing"]
    assert "134.0 ms apart" in codes["collectives_unpaired"]
    with queries.connect(tmp_path / "s.duckdb") as connection:
        found = rank_report(connection, result.run_id or "")
        steps = queries.steps(connection, result.run_id or "")
        refused = perfect_ranks(connection, result.run_id or "", steps)
    assert found is not None
    assert not found.has_verdict
    assert found.sentence.startswith("Nothing is said of waits between ranks: ")
    assert "no pairs" in found.sentence
    assert (refused.predicted_ns, refused.low_ns, refused.high_ns) == (None, None, None)


def test_processes_of_one_nsys_report_are_ranks(shared_dir: Path, tmp_path: Path) -> None:
    """33 pairs, clocks 22.2 us apart, 25.4 us remain; waits 11.40 and 2.24 ms."""
    path = shared_dir / "traces" / "next" / "nsys" / "2gpu-fsdp-alltoall-before.sqlite"
    ingest(path, tmp_path / "s.duckdb", jobs=1)
    assert verify(tmp_path / "s.duckdb") == []
    rows = ask(
        tmp_path / "s.duckdb",
        "SELECT label, clock_pairs, round(clock_offset_ns / 1e3, 1), round(clock_error_ns / 1e3, 1)"
        ", round(sum(dur_ns) / 1e6, 2), round(sum(wait_ns) / 1e6, 2) FROM ranks JOIN collectives "
        "USING (run_id, trace_id) GROUP BY ALL ORDER BY label",
    )
    assert rows == [
        ("device 0", 0, 0.0, 0.0, 17.17, 11.40),
        ("device 1", 33, -22.2, 25.4, 8.23, 2.24),
    ]


def test_a_run_of_one_rank_has_none(shared_dir: Path, tmp_path: Path) -> None:
    folder = shared_dir / "traces" / "next" / "kineto-multirank"
    ingest(folder / "rank1-of-2-2020-allreduce.json.gz", tmp_path / "s.duckdb", jobs=1)
    with queries.connect(tmp_path / "s.duckdb") as connection:
        assert rank_report(connection, queries.find_run(connection, "latest")) is None


def test_three_ranks_by_hand_give_the_figures_of_the_page(tmp_path: Path) -> None:
    paths = write_ranks(three_ranks(), tmp_path)
    ingest(paths, tmp_path / "s.duckdb", jobs=1, step_annotation=["step#*"])
    with queries.connect(tmp_path / "s.duckdb") as connection:
        found = rank_report(connection, queries.find_run(connection, "latest"))
        (prediction,) = predict(
            connection, queries.find_run(connection, "latest"), ["perfect-ranks"]
        ).predictions
    assert found is not None
    assert [one.wait_ns for one in found.ranks] == [370_000, 410_000, 5_000]
    assert found.sentence == (
        "Rank 1 waits 410 us a median step (41% of it) for rank 2; 65% of that passes in rank 2's "
        "framework."
    )
    kinds = {kind.process_group: kind for kind in found.collectives}
    assert kinds["world [0, 1, 2]"].bus_bytes_per_s == pytest.approx(
        2_000_000 / 20e-6 * 4 / 3, rel=1e-6
    )
    assert (prediction.low_ns, prediction.high_ns) == (1_000_000, 1_000_000)
