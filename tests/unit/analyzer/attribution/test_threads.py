"""Several launching threads: held against a slow reading of the rules, moment by moment."""

from __future__ import annotations

from collections import defaultdict
from itertools import accumulate, pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analyzer.attribution import decomposition, ledger
from analyzer.attribution.accounts import ACCOUNT, Owned, share_out
from analyzer.attribution.decomposition import UNKNOWN, Floor, known
from analyzer.attribution.events import LinkedTrace, Step
from analyzer.attribution.links import link_trace
from analyzer.trace import kineto
from tests.support.tracebuilder import TraceBuilder

US = 1000
OPS = ["aten::mm", "aten::relu", "Torch-Compiled Region: 0/0"]
CALLS = ["cudaLaunchKernel", "cudaLaunchKernel", "cudaMalloc", "cudaDeviceSynchronize"]


@st.composite
def traces(draw: st.DrawFn) -> TraceBuilder:
    """Three threads, well nested within each: ops beside each other, calls in them or between."""
    built = TraceBuilder()
    correlation = 0
    for tid in (1, 2, 3):
        at = draw(st.integers(0, 40))
        for _ in range(draw(st.integers(0, 4))):
            length = draw(st.integers(4, 40))
            name = draw(st.sampled_from(OPS))
            built.add_op(name, at, length, tid)
            if draw(st.booleans()):
                built.add_op("aten::inner", at + 1, length - 2, tid)
            correlation += 1
            built.add_call(draw(st.sampled_from(CALLS)), at + 2, 2, correlation, tid)
            if draw(st.booleans()):
                built.add_kernel("gemm", at + 3, draw(st.integers(1, 30)), correlation)
            at += length + draw(st.integers(0, 40))
    built.add_annotation("step#0", 0, draw(st.integers(50, 120)), tid=9)
    built.add_annotation("step#1", 130, draw(st.integers(20, 90)), tid=9)
    built.add_op("aten::last", 395, 5)
    return built


@pytest.fixture
def linked_steps(tmp_path: Path):
    def link(built: TraceBuilder) -> LinkedTrace:
        (trace,) = kineto.read(built.write(tmp_path / "p.json"))
        return link_trace(trace, ["step#*"])

    return link


def launching_threads(a: LinkedTrace, number: int) -> list[int]:
    """Threads that launch in a step, most launches first."""
    counts: dict[int, int] = defaultdict(int)
    calls = a.calls
    for thread, kind, step in zip(calls.thread, calls.kind, calls.step, strict=True):
        if kind > 0 and (number < 0 or step == number):
            counts[int(thread)] += 1
    return sorted(counts, key=lambda thread: (-counts[thread], thread))


def moments(a: LinkedTrace, thread: int, step: Step) -> list[str]:
    """The account of each microsecond of a step on one thread; ops with their calls taken out."""
    result = ["python"] * ((step.end - step.start) // US)

    def paint(table, chosen, name) -> None:
        for i in np.flatnonzero(chosen & (table.thread == thread)).tolist():
            for t in range(int(table.start[i]) // US, int(table.end[i]) // US):
                at = t - step.start // US
                if 0 <= at < len(result):
                    result[at] = name(i)

    paint(a.ops, a.ops.region, lambda _: "region")
    paint(a.ops, ~a.ops.region, lambda _: "framework")
    names = list(ACCOUNT)
    paint(a.calls, a.calls.start >= 0, lambda i: names[a.calls.account[i]])
    return result


def slow_ledger(a: LinkedTrace, number: int, step: Step) -> dict[tuple[int, str], int]:
    """(thread, account) to microseconds, by the words of the rule."""
    threads = launching_threads(a, number)
    if not threads and step.thread >= 0:
        threads = [step.thread]
    each = {thread: moments(a, thread, step) for thread in threads}
    found: dict[tuple[int, str], int] = defaultdict(int)
    for t in range((step.end - step.start) // US):
        owner = next((x for x in threads if each[x][t] not in ("python", "region")), None)
        later = t
        while owner is None and later < (step.end - step.start) // US:
            owner = next((x for x in threads if each[x][later] not in ("python", "region")), None)
            later += 1
        if owner is None and threads:
            owner = threads[0]
        if owner is not None:
            found[owner, each[owner][t]] += 1
    return dict(found)


@settings(max_examples=80)
@given(traces())
def test_each_moment_belongs_to_the_thread_that_the_rule_names(linked_steps, built) -> None:
    a = linked_steps(built)
    launches = decomposition.spans(a)
    decomposition.decompose(a, launches, Floor("none", UNKNOWN, {}))
    entries = ledger.ledger(a, launches, ledger.busy_measure(a))
    for number, step in [*enumerate(a.steps), (-1, a.whole)]:
        found: dict[tuple[int, str], int] = defaultdict(int)
        for e in entries:
            if e.step == number and e.ns:
                found[e.thread, e.account.replace("library", "framework")] += e.ns // US
        assert dict(found) == slow_ledger(a, number, step)
        if found:
            assert sum(found.values()) * US == step.end - step.start


@settings(max_examples=80)
@given(traces())
def test_t_py_ends_where_another_launching_thread_last_worked(linked_steps, built) -> None:
    a = linked_steps(built)
    launches = decomposition.spans(a)
    ops, calls = a.ops, a.calls
    launching = {int(t) for t, kind in zip(calls.thread, calls.kind, strict=True) if kind > 0}
    for call, t_py in zip(launches.call.tolist(), launches.t_py.tolist(), strict=True):
        op = int(calls.outermost[call])
        if op < 0 or not known(np.array([t_py]))[0] or t_py == 0:
            continue
        start, own = int(ops.start[op]), int(ops.thread[op])
        step = a.steps[ops.step[op]] if ops.step[op] >= 0 else a.whole
        ends = [step.start]
        for table, chosen in ((ops, ~ops.region), (calls, calls.start >= 0)):
            ends += [
                int(end)
                for end, thread, counts in zip(table.end, table.thread, chosen, strict=True)
                if counts and end <= start and (thread == own or int(thread) in launching)
            ]
        assert t_py == max(start - max(ends), 0)


def stretches(*threads: list[tuple[int, int, str]]) -> tuple[Owned, np.ndarray, np.ndarray]:
    """The stretches of threads of one window, as `share_out` takes them."""
    start, end, account = zip(*(one for thread in threads for one in thread), strict=True)
    owned = Owned(np.array(start), np.array(end), np.array([ACCOUNT[name] for name in account]))
    rank = np.repeat(np.arange(len(threads)), [len(thread) for thread in threads])
    return owned, np.zeros(len(rank), np.int64), rank


def shares(*threads: list[tuple[int, int, str]]) -> list[tuple[int, int, str]]:
    """(start, thread, account) of what each thread gets, its neighbouring parts as one."""
    owned, window, rank = stretches(*threads)
    at, start, _ = share_out(owned, window, rank)
    names = list(ACCOUNT)
    parts = [
        (int(t), int(rank[i]), names[owned.account[i]]) for i, t in zip(at, start, strict=True)
    ]
    changes = [True] + [a[1:] != b[1:] for a, b in pairwise(parts)]
    return [part for part, is_new in zip(parts, changes, strict=True) if is_new]


def test_of_two_that_work_the_first_has_the_moment() -> None:
    one = [(0, 10, "framework"), (10, 20, "python")]
    two = [(0, 5, "python"), (5, 20, "launch")]
    assert shares(one, two) == [(0, 0, "framework"), (10, 1, "launch")]


def test_idle_time_is_pythons_of_the_thread_that_works_next() -> None:
    one = [(0, 10, "python"), (10, 20, "framework"), (20, 40, "python")]
    two = [(0, 25, "region"), (25, 30, "launch"), (30, 40, "python")]
    assert shares(one, two) == [
        (0, 0, "python"),
        (10, 0, "framework"),
        (20, 1, "region"),
        (25, 1, "launch"),
        (30, 0, "python"),
    ]


def test_one_thread_has_all_its_time() -> None:
    owned, window, rank = stretches([(0, 10, "python"), (10, 20, "framework")])
    at, start, end = share_out(owned, window, rank)
    assert (at.tolist(), start.tolist(), end.tolist()) == ([0, 1], [0, 10], [10, 20])


STRETCHES = st.lists(
    st.tuples(st.integers(1, 30), st.sampled_from(["python", "region", "framework", "launch"])),
    min_size=1,
    max_size=6,
)


THREADS = st.lists(STRETCHES, min_size=1, max_size=4)


@given(st.lists(st.tuples(st.sampled_from([0, 62, 130]), THREADS), min_size=1, max_size=3))
def test_windows_shared_out_together_are_as_each_moment_alone(drawn) -> None:
    """Against the rule, moment by moment; with more threads than a machine word has bits."""
    end, parts = 40, []
    windows = [[[(end, "python")]] * idle + threads for idle, threads in drawn]
    for number, threads in enumerate(windows):
        for rank, lengths in enumerate(threads):
            edges = [min(t, end) for t in accumulate((n for n, _ in lengths), initial=0)] + [end]
            accounts = [*(name for _, name in lengths), "python"]
            for (a, b), name in zip(pairwise(edges), accounts, strict=True):
                if b > a:
                    parts.append((number, rank, a, b, ACCOUNT[name]))
    window, rank, start, stop, account = np.array(parts).T
    found = [[(-1, -1)] * end for _ in windows]
    at, begins, ends = share_out(Owned(start, stop, account), window, rank)
    for i, a, b in zip(at.tolist(), begins.tolist(), ends.tolist(), strict=True):
        for t in range(a, b):
            assert found[window[i]][t] == (-1, -1)
            found[window[i]][t] = (int(rank[i]), int(account[i]))
    for number, threads in enumerate(windows):
        each = [[0] * end for _ in threads]
        for w, r, a, b, name in parts:
            if w == number:
                each[r][a:b] = [name] * (b - a)
        outside = (ACCOUNT["python"], ACCOUNT["region"])
        owner = 0
        for t in reversed(range(end)):
            owner = next((r for r, one in enumerate(each) if one[t] not in outside), owner)
            assert found[number][t] == (owner, each[owner][t])
