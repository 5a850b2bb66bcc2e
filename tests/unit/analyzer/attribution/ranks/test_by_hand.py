"""Three ranks drawn by hand: docs/measurement.md, "Three ranks by hand", number by number."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from analyzer.attribution.ranks import JoinedRanks
from tests.support.rank_traces import ALL_REDUCE, three_ranks

US = 1000
Joined = Callable[..., tuple[list[JoinedRanks], list[str]]]


@pytest.fixture
def example(joined: Joined) -> JoinedRanks:
    ((one,), findings) = joined(three_ranks(), "step#*")
    assert findings == []
    return one


def waits_us(joined: JoinedRanks) -> list[list[float]]:
    """The waits of each rank's collectives, in order."""
    assert joined.waits
    member = joined.collectives.member
    return [(joined.waits.wait[member == rank] / US).tolist() for rank in range(3)]


def test_clocks_are_those_that_were_drawn_without_error(example: JoinedRanks) -> None:
    assert [clock.offset_ns for clock in example.aligned.clocks] == [0, 3 * US, -2 * US]
    assert [clock.error_ns for clock in example.aligned.clocks] == [0, 0, 0]
    assert [clock.pairs for clock in example.aligned.clocks] == [0, 2, 2]


def test_a_rank_waits_until_the_last_one_begins(example: JoinedRanks) -> None:
    assert waits_us(example) == [[260, 110], [300, 0, 110], [0, 5, 0]]
    assert example.waits
    transfer = example.waits.transfer + example.waits.wait
    assert (transfer == example.collectives.end - example.collectives.start).all()
    assert example.waits.late.tolist() == [1, 2, 2, 1, 2, 2, 1, 2]


def test_the_late_rank_is_charged_by_its_accounts_and_what_held_it(example: JoinedRanks) -> None:
    charged = {
        (c.member, c.late, c.account, c.name, c.is_before): c.ns / US for c in example.charges
    }
    of_x = {
        (1, 2, "framework", "aten::mm", False): 260,
        (1, 2, "launch", "aten::mm", False): 20,
    }
    of_y = {
        # Rank 1 had launched and was itself waiting for rank 2, in X: the last link counts.
        (0, 2, "framework", "aten::mm", False): 180,
        (0, 2, "launch", "aten::mm", False): 20,
        (0, 1, "device_queue", ALL_REDUCE, False): 30,
        (0, 1, "device_queue", None, False): 10,
        (2, 1, "device_queue", None, False): 5,
    }
    of_z = {
        (0, 2, "python", "aten::add", True): 70,
        (1, 2, "python", "aten::add", True): 70,
        (0, 2, "framework", "aten::add", False): 5,
        (1, 2, "framework", "aten::add", False): 5,
        (0, 2, "launch", "aten::add", False): 10,
        (1, 2, "launch", "aten::add", False): 10,
        # What passed from the end of the call to the kernel, in X and Z: 20 and 25.
        (0, 2, "device_queue", None, False): 20 + 25,
        (1, 2, "device_queue", None, False): 20 + 25,
    }
    assert charged == of_x | of_y | of_z


def test_charges_of_a_rank_add_up_to_its_waits(example: JoinedRanks) -> None:
    for rank, waits in enumerate(waits_us(example)):
        assert sum(c.ns for c in example.charges if c.member == rank) == sum(waits) * US
        assert {c.step for c in example.charges if c.member == rank} == {0}
