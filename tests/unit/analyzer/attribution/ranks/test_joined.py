"""Which traces are ranks, and what is not said of them."""

from __future__ import annotations

import pytest

from tests.support.rank_traces import RankTrace, three_ranks


def pair(drift_us: int = 0, collectives: int = 10, group: str | None = "g") -> list[RankTrace]:
    """Two ranks with collectives that end together; every second one of rank 1 `drift_us` later."""
    ranks = [RankTrace(0, 2), RankTrace(1, 2)]
    for number in range(collectives):
        for rank in ranks:
            begin = 1000 * number + 40
            rank.add_call("cudaLaunchKernel", begin - 20, 5, number + 1)
            late = drift_us if rank.rank and number % 2 else 0
            rank.add_collective(begin, begin + 100 + late, number + 1, group, [0, 1])
    return ranks


def test_ends_further_apart_than_a_tenth_or_50_us_are_no_pair_and_no_verdict(joined) -> None:
    ((one,), findings) = joined(pair(drift_us=120))
    assert findings == ["collectives_unpaired"]
    assert one.waits is None
    assert one.charges == []


def test_a_few_that_are_no_pairs_are_left_out(joined) -> None:
    ranks = pair(collectives=20)
    ranks[1].events[-1]["dur"] += 400
    ((one,), findings) = joined(ranks)
    assert findings == ["some_unpaired"]
    assert one.waits is not None
    assert (one.waits.wait[one.collectives.instance == 19] == -1).all()


def test_collectives_without_groups_are_paired_by_stream(joined) -> None:
    ((one,), findings) = joined(pair(group=None))
    assert findings == []
    assert [series.stream for series in one.collectives.all_series] == ["20"]
    assert one.aligned.good.all()


def test_streams_with_other_numbers_are_paired_in_order_of_use(joined) -> None:
    ranks = pair(group=None)
    for event in ranks[1].events:
        if event["cat"] == "kernel":
            event["args"]["stream"] = 33
    ((one,), _) = joined(ranks)
    assert [series.stream for series in one.collectives.all_series] == ["0"]
    assert one.aligned.good.all()


def test_ranks_that_are_missing_are_named(joined) -> None:
    _, findings = joined(three_ranks()[:2])
    assert "ranks_missing" in findings


def test_ranks_without_a_common_collective_have_no_clock(joined) -> None:
    ranks = [RankTrace(r, 2).add_op("aten::x", 0, 9) for r in range(2)]
    ((one,), findings) = joined(ranks)
    assert findings == ["no_collectives"]
    assert [clock.offset_ns for clock in one.aligned.clocks] == [0, None]


def test_a_message_from_one_rank_to_another_is_no_collective(joined) -> None:
    ranks = pair()
    for rank, name in zip(ranks, ("send", "recv"), strict=True):
        rank.add_kernel("ncclDevKernel_SendRecv", 20_000, 50, 99, 21, rank.rank,
                        **{"Collective name": name})  # fmt: skip
    ((one,), _) = joined(ranks)
    assert len(one.collectives.event) == 20


def test_traces_that_tell_no_rank_are_no_ranks(joined) -> None:
    ranks = pair()
    for rank in ranks:
        del rank.head["distributedInfo"]
    assert joined(ranks, name="trace{}.json") == ([], [])


@pytest.mark.parametrize("name", ["dp0_pp0_tp{}_ep{}.json", "17.5-TP-{}.json", "w_rank_{}.json"])
def test_names_of_engines_tell_the_rank_where_the_trace_does_not(joined, name: str) -> None:
    ranks = pair()
    for rank in ranks:
        del rank.head["distributedInfo"]
    ((one,), _) = joined(ranks, name=name.replace("{}", "{0}"))
    assert [rank.rank for rank in one.ranks] == [0, 1]


def test_a_wait_before_anything_of_the_late_rank_was_recorded_is_charged_to_nothing(joined) -> None:
    early, late = RankTrace(0, 2), RankTrace(1, 2)
    early.add_call("cudaLaunchKernel", 0, 5, 1).add_collective(10, 500, 1, "g", [0, 1])
    late.add_op("aten::x", 300, 50)
    late.add_call("cudaLaunchKernel", 400, 5, 1).add_collective(410, 500, 1, "g", [0, 1])
    ((one,), _) = joined([early, late])
    charged = {charge.account: charge.ns // 1000 for charge in one.charges}
    assert charged == {
        "not_recorded": 290, "framework": 50, "python": 50, "launch": 5, "device_queue": 5,
    }  # fmt: skip


def test_what_passes_between_the_steps_of_the_late_rank_is_named_so(joined) -> None:
    early, late = RankTrace(0, 2), RankTrace(1, 2)
    for rank in (early, late):
        rank.add_annotation("step#0", 0, 100).add_annotation("step#1", 300, 200)
        rank.add_op("aten::first", 0, 5)
    early.add_call("cudaLaunchKernel", 305, 5, 1).add_collective(320, 600, 1, "g", [0, 1])
    for event in late.events[1:2]:
        event["ts"] = 400
    late.add_call("cudaLaunchKernel", 450, 5, 1).add_collective(460, 600, 1, "g", [0, 1])
    ((one,), _) = joined([early, late], "step#*")
    charged = {charge.account: charge.ns // 1000 for charge in one.charges}
    assert charged == {"between_steps": 80, "python": 50, "launch": 5, "device_queue": 5}
