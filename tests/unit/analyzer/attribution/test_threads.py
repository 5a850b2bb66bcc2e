"""Several launching threads: held against a slow reading of the rules, moment by moment."""

from __future__ import annotations

from collections import defaultdict
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
    entries = ledger.ledger(a, launches, ledger.busy_measure(a)).entries
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


def owned(*stretches: tuple[int, int, str]) -> Owned:
    start, end, account = zip(*stretches, strict=True)
    return Owned(np.array(start), np.array(end), np.array([ACCOUNT[name] for name in account]))


def test_of_two_that_work_the_first_has_the_moment() -> None:
    one = owned((0, 10, "framework"), (10, 20, "python"))
    two = owned((0, 5, "python"), (5, 20, "launch"))
    part, owner = share_out([one, two])
    assert list(zip(part.start, part.end, owner, strict=True)) == [
        (0, 5, 0),
        (5, 10, 0),
        (10, 20, 1),
    ]


def test_idle_time_is_pythons_of_the_thread_that_works_next() -> None:
    one = owned((0, 10, "python"), (10, 20, "framework"), (20, 40, "python"))
    two = owned((0, 25, "region"), (25, 30, "launch"), (30, 40, "python"))
    part, owner = share_out([one, two])
    accounts = [list(ACCOUNT)[i] for i in part.account.tolist()]
    assert list(zip(part.start, owner, accounts, strict=True)) == [
        (0, 0, "python"),
        (10, 0, "framework"),
        (20, 1, "region"),
        (25, 1, "launch"),
        (30, 0, "python"),
    ]


def test_one_thread_has_all_its_time() -> None:
    one = owned((0, 10, "python"), (10, 20, "framework"))
    part, owner = share_out([one])
    assert part is one
    assert owner.tolist() == [0, 0]
