"""The page of a run of ranks says who waits for whom; that of an engine's run shows its batches."""

from __future__ import annotations

from pathlib import Path

import pytest

from analyzer.ingest import ingest
from tests.support.app_pages import charts, texts
from tests.support.rank_traces import three_ranks, write_ranks
from tests.support.tracebuilder import TraceBuilder


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ranks")
    paths = write_ranks(three_ranks(), folder)
    ingest(paths, folder / "s.duckdb", jobs=1, step_annotation=["step#*"])
    return folder / "s.duckdb"


def test_a_run_of_ranks_shows_who_waits_for_whom_and_its_collectives_on_one_clock(
    store: Path, show
) -> None:
    app = show(store, "run")
    text = texts(app)
    assert "Who waits for whom?" in text
    assert "Rank 1 waits 410 us a median step" in text.replace("\\", "")
    table = next(frame.value for frame in app.dataframe if "label" in frame.value)
    assert table["label"].to_list() == ["rank 0", "rank 1", "rank 2"]
    assert "a typical step" in text
    assert charts(app) >= 2


def test_ranks_without_a_verdict_say_why(tmp_path: Path, show) -> None:
    ranks = three_ranks()
    for number, event in enumerate(ranks[1].events):
        if event["cat"] == "kernel":
            event["ts"] += 900 * number
    ingest(write_ranks(ranks, tmp_path), tmp_path / "s.duckdb", jobs=1)
    assert "Nothing is said of waits between ranks" in texts(show(tmp_path / "s.duckdb", "run"))


def test_steps_of_an_engine_are_shown_by_phase_and_batch(tmp_path: Path, show) -> None:
    trace = TraceBuilder()
    for number in range(4):
        trace.add_annotation(f"step[DECODE bs={1 + number % 2}]", 100 * number, 80)
        trace.add_op("aten::mm", 100 * number + 5, 20)
        trace.add_launch("gemm", 100 * number + 10, 5, number + 1)
    ingest(trace.write(tmp_path / "t.json"), tmp_path / "s.duckdb", jobs=1)
    app = show(tmp_path / "s.duckdb", "run")
    table = next(frame.value for frame in app.dataframe if "overlap" in frame.value)
    assert table["batch"].to_list() == [1, 2]


def test_a_run_of_one_process_shows_neither(samples_store: Path, show) -> None:
    text = texts(show(samples_store, "run"))
    assert "Who waits for whom?" not in text
    assert "Steps by phase and batch" not in text
