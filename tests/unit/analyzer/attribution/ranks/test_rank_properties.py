"""Whatever ranks do: clocks come back, a collective is wait and transfer, charges add up."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.rank_traces import RankTrace

US = 1000
CALLS = ("cudaStreamSynchronize", "cudaMalloc", "cudaGetDevice", "cudaMemcpyAsync")


@st.composite
def jobs(draw: st.DrawFn) -> list[RankTrace]:
    """Ranks whose collectives of several groups follow each other, with host work anywhere."""
    world = draw(st.integers(2, 4))
    ranks = [RankTrace(r, world, draw(st.integers(-40, 40)) if r else 0) for r in range(world)]
    free = [0] * world  # until when each device is busy
    groups = [list(range(world))]
    groups += draw(st.lists(st.sampled_from([[0, 1], [world - 2, world - 1]]), max_size=2))
    plan = [groups[0], *draw(st.lists(st.sampled_from(groups), min_size=1, max_size=6))]
    for number, group in enumerate(plan):
        starts = {r: free[r] + draw(st.integers(0, 60)) for r in group}
        end = max(starts.values()) + draw(st.integers(1, 20))
        for r, start in starts.items():
            call = max(start - draw(st.integers(1, 80)), 0)
            if draw(st.integers(0, 9)):
                ranks[r].add_call("cudaLaunchKernel", call, draw(st.integers(0, 9)), number + 1)
            ranks[r].add_collective(start, end, number + 1, f"g{group}", group)
            free[r] = end
    for rank in ranks:
        for start, length in draw(st.lists(st.tuples(st.integers(0, 300), st.integers(0, 40)))):
            kind = draw(st.integers(0, 2))
            if kind == 0:
                rank.add_op("aten::x", start, length)
            elif kind == 1:
                rank.add_call(draw(st.sampled_from(CALLS)), start, length)
            else:
                rank.add_kernel("compute", start, length, stream=7, device=rank.rank)
        cut = draw(st.integers(0, 200))
        rank.add_annotation("step#0", 0, cut).add_annotation("step#1", cut + 10, 200)
        rank.add_op("aten::last", 500, 1)
    return ranks


@settings(max_examples=150)
@given(jobs())
def test_charges_add_up_to_each_wait_and_clocks_come_back(joined, job: list[RankTrace]) -> None:
    ((one,), findings) = joined(job, "step#*")
    assert findings == []
    assert [clock.offset_ns for clock in one.aligned.clocks] == [r.clock_us * US for r in job]
    found, waits = one.collectives, one.waits
    assert waits is not None
    assert (waits.wait >= 0).all()
    assert (waits.wait + waits.transfer == found.end - found.start).all()
    waited = Counter({r: int(waits.wait[found.member == r].sum()) for r in range(len(job))})
    charged: Counter[int] = Counter()
    for charge in one.charges:
        assert charge.ns > 0
        charged[charge.member] += charge.ns
    assert +charged == +waited
    keys = [(c.member, c.step, c.late, c.account, c.name, c.is_before) for c in one.charges]
    assert len(keys) == len(set(keys))


@given(jobs(), st.integers(1, 3))
def test_a_late_clock_changes_no_wait(joined, job: list[RankTrace], shift: int) -> None:
    """Only differences of clocks are known, so a rank whose clock is off waits the same."""
    ((before,), _) = joined(job, "step#*")
    for event in job[-1].events:
        event["ts"] += shift * 1_000
    ((after,), _) = joined(job, "step#*")
    assert before.waits is not None
    assert after.waits is not None
    assert before.waits.wait.tolist() == after.waits.wait.tolist()
    assert before.charges == after.charges
