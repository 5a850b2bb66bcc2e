"""Which files are the ranks of one job: told by what they hold and how they are named."""

from __future__ import annotations

from pathlib import Path

import pytest

from analyzer.errors import AnalyzerError
from analyzer.ingest import ingest
from analyzer.ingest.ranks.files import Found, join
from tests.support.rank_traces import RankTrace, three_ranks, write_ranks


def names(found: list[Found]) -> list[list[str]]:
    return [[path.name for path in one.paths] for one in found]


def test_ranks_of_each_recording_of_a_folder_are_a_run_of_their_own(tmp_path: Path) -> None:
    first = write_ranks(three_ranks(), tmp_path, "eager-rank{}.json")
    second = write_ranks(three_ranks(), tmp_path, "graph-rank{}.json.gz")
    found, remarks = join([*second, *first])
    assert names(found) == [[p.name for p in second], [p.name for p in first]]
    assert [one.name for one in found] == ["graph", "eager"]
    assert found[0].path == tmp_path / "graph-rank*.json.gz"
    assert remarks == []


@pytest.mark.parametrize(
    "pattern",
    [
        "dp0_pp0_tp{0}_dcp0_ep{0}_rank{0}.17{0}.pt.trace.json",  # vLLM, times differ
        "1700000000.25-TP-{0}-DP-0.trace.json",  # SGLang
        "host_41{0}.17000{0}.pt.trace.json",  # torch's handler: process and time
    ],
)
def test_names_that_engines_write_are_joined_in_order_of_rank(tmp_path: Path, pattern: str) -> None:
    paths = write_ranks(three_ranks(), tmp_path, pattern)
    (found,), remarks = join(paths[::-1])
    assert list(found.paths) == paths
    assert remarks == []


def test_ranks_in_folders_of_their_own_are_joined_if_given_together(tmp_path: Path) -> None:
    paths: list[Path] = []
    for rank in three_ranks():
        paths += write_ranks([rank], tmp_path / f"rank{rank.rank}", "trace.json")
    (found,), _ = join(paths)
    assert (found.folder, found.name) == (tmp_path, "trace")


def test_a_front_end_without_rank_goes_with_its_workers(tmp_path: Path) -> None:
    paths = write_ranks(three_ranks(), tmp_path, "dp0_tp{0}_rank{0}.1{0}.pt.trace.json")
    front = RankTrace(0, 1).add_op("schedule", 0, 5).write(tmp_path / "h_7.async_llm.9.json")
    (found,), _ = join([*paths, front])
    assert found.paths == (*paths, front)
    (result,) = ingest(tmp_path, tmp_path / "s.duckdb", jobs=1)
    assert (result.state, result.steps) == ("stored", 3)


def test_a_rank_that_stands_twice_is_said_and_nothing_joined(tmp_path: Path) -> None:
    paths = write_ranks(three_ranks(), tmp_path, "h_1{0}.1.json")
    paths += write_ranks(three_ranks(), tmp_path, "h_1{0}.2.json")
    found, (remark,) = join(paths)
    assert len(found) == 6
    assert "rank 0 stands 2 times" in remark


def test_ranks_of_jobs_of_other_sizes_are_said_and_not_joined(tmp_path: Path) -> None:
    paths = write_ranks(three_ranks()[:1], tmp_path) + write_ranks([RankTrace(1, 2)], tmp_path)
    found, (remark,) = join(paths)
    assert len(found) == 2
    assert "different jobs (of 3 and 2 ranks)" in remark


def test_one_rank_alone_and_traces_of_one_process_stay_as_they_are(tmp_path: Path) -> None:
    paths = write_ranks(three_ranks()[:1], tmp_path)
    paths += write_ranks([RankTrace(0, 1), RankTrace(1, 1)], tmp_path, "single{0}.json")
    found, remarks = join(paths)
    assert [one.paths for one in found] == [(path,) for path in paths]
    assert remarks == []


def test_the_same_ranks_in_any_order_are_the_same_run(tmp_path: Path) -> None:
    paths = write_ranks(three_ranks(), tmp_path)
    (first,) = ingest(paths, tmp_path / "s.duckdb", jobs=1, step_annotation=["step#*"])
    (again,) = ingest(paths[::-1], tmp_path / "s.duckdb", jobs=1, step_annotation=["step#*"])
    assert (first.state, again.state) == ("stored", "already stored")
    assert first.run_id == again.run_id
    assert first.name == "job"


def test_a_name_is_for_one_run(tmp_path: Path) -> None:
    write_ranks(three_ranks(), tmp_path)
    (named,) = ingest(tmp_path, tmp_path / "s.duckdb", name="mine", jobs=1)
    assert named.name == "mine"
    write_ranks(three_ranks(), tmp_path, "other-rank{}.json")
    with pytest.raises(AnalyzerError, match="names one run, but 2 were found"):
        ingest(tmp_path, tmp_path / "s.duckdb", name="mine", jobs=1)
