"""Interval arithmetic against brute force: every nanosecond looked at, one by one."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from analyzer.attribution.intervals import Measure, Nest, disjoint, length, ordinals, union

LAST = 40
PAIR = st.tuples(st.integers(0, LAST), st.integers(0, 12))
PAIRS = st.lists(PAIR, max_size=12)


def arrays(pairs: list[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
    start = np.array([s for s, _ in pairs], np.int64)
    return start, start + np.array([d for _, d in pairs], np.int64)


def covered(pairs: list[tuple[int, int]]) -> set[int]:
    return {t for s, d in pairs for t in range(s, s + d)}


@given(PAIRS)
def test_a_union_covers_the_same_moments_once(pairs) -> None:
    start, end = union(*arrays(pairs))
    moments = [t for s, e in zip(start.tolist(), end.tolist(), strict=True) for t in range(s, e)]
    assert len(moments) == len(set(moments)) == length(start, end)
    assert set(moments) == covered(pairs)
    assert (start[1:] > end[:-1]).all()


@given(PAIRS)
def test_disjoint_gives_each_moment_to_the_interval_that_began_first(pairs) -> None:
    which, start, end = disjoint(*arrays(pairs))
    owner = {
        t: i
        for i, s, e in zip(which.tolist(), start.tolist(), end.tolist(), strict=True)
        for t in range(s, e)
    }
    assert len(owner) == int((end - start).sum())
    assert set(owner) == covered(pairs)
    for t, i in owner.items():
        holders = [s for s, d in pairs if s <= t < s + d]
        assert pairs[i][0] <= t < sum(pairs[i])
        if all(s != pairs[i][0] for s in holders if s < pairs[i][0]):
            assert pairs[i][0] == min(holders) or any(
                pairs[j][0] < pairs[i][0] for j in set(owner.values())
            )


@given(PAIRS, st.lists(st.integers(-5, LAST + 20), min_size=1, max_size=8))
def test_a_measure_counts_the_moments_before_a_time(pairs, times) -> None:
    measure = Measure(*union(*arrays(pairs)))
    moments = covered(pairs)
    got = measure.up_to(np.array(times, np.int64)).tolist()
    assert got == [sum(t < time for t in moments) for time in times]


@given(PAIRS)
def test_a_measure_finds_the_time_of_each_of_its_moments(pairs) -> None:
    measure = Measure(*union(*arrays(pairs)))
    moments = sorted(covered(pairs))
    if moments:
        assert measure.inverse(np.arange(len(moments))).tolist() == moments


def nested(draw_pairs: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Of random intervals, those that nest with all kept before: profilers write no others."""
    kept: list[tuple[int, int]] = []
    for s, d in draw_pairs:
        e = s + d
        if all(
            e <= a or s >= a + b or (a <= s and e <= a + b) or (s <= a and a + b <= e)
            for a, b in kept
        ):
            kept.append((s, d))
    return kept


def around(pairs: list[tuple[int, int]], threads: list[int], thread: int, time: int) -> list[int]:
    """Intervals of a thread around a time, innermost first, by the written rule."""
    inside = [i for i, (s, d) in enumerate(pairs) if threads[i] == thread and s <= time < s + d]
    return sorted(inside, key=lambda i: (-pairs[i][0], pairs[i][1], -i))


@settings(max_examples=200)
@given(
    st.lists(st.tuples(PAIR, st.integers(0, 2)), max_size=14),
    st.lists(st.tuples(st.integers(0, 3), st.integers(-3, LAST + 15)), min_size=1, max_size=10),
)
def test_the_innermost_interval_starts_last_then_is_shortest_then_last_in_the_file(
    entries, queries
) -> None:
    """Holds for intervals that overlap without nesting too."""
    pairs, threads = [p for p, _ in entries], [t for _, t in entries]
    start, end = arrays(pairs)
    nest = Nest(np.array(threads, np.int64), start, end, np.arange(len(pairs)))
    got = nest.innermost(
        np.array([t for t, _ in queries], np.int64), np.array([x for _, x in queries], np.int64)
    ).tolist()
    want = [(around(pairs, threads, t, x) or [-1])[0] for t, x in queries]
    assert got == want


@given(st.lists(PAIR, max_size=14))
def test_parents_and_roots_follow_the_nesting(pairs) -> None:
    pairs = [(s, d) for s, d in nested(pairs) if d > 0]
    start, end = arrays(pairs)
    nest = Nest(np.zeros(len(pairs), np.int64), start, end, np.arange(len(pairs)))
    threads = [0] * len(pairs)
    for i, (parent, root) in enumerate(
        zip(nest.parents().tolist(), nest.roots().tolist(), strict=True)
    ):
        chain = [
            j
            for j in around(pairs, threads, 0, pairs[i][0])
            if j != i
            and pairs[j][0] + pairs[j][1] >= pairs[i][0] + pairs[i][1]
            # Of equal intervals the last in the file is the inner one.
            and (pairs[j] != pairs[i] or j < i)
        ]
        assert parent == (chain[0] if chain else -1)
        assert root == (chain[-1] if chain else i)


@given(st.lists(st.one_of(st.integers(-5, 5), st.integers(-(2**62), 2**62)), max_size=20))
def test_ordinals_are_places_among_the_distinct_values(values) -> None:
    distinct, place = ordinals(np.array(values, np.int64))
    assert distinct.tolist() == sorted(set(values))
    assert distinct[place].tolist() == values
