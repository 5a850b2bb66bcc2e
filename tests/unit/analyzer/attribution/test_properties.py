"""What must hold for any trace: accounts fill the time, parts sum to the whole, HDBI is a share."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analyzer.attribution import decomposition, ledger, totals
from analyzer.attribution.decomposition import UNKNOWN, Floor, known
from analyzer.attribution.events import LinkedTrace
from analyzer.attribution.links import link_trace
from analyzer.trace import kineto
from tests.support.tracebuilder import TraceBuilder

OPS = ["aten::mm", "aten::relu", "Torch-Compiled Region: 0/0", "## Call x ##", "aten::copy_"]
CALLS = [
    "cudaLaunchKernel",
    "cudaLaunchKernel",
    "cuLaunchKernelEx",
    "cudaGraphLaunch",
    "cudaMemcpyAsync",
    "cudaMalloc",
    "cudaDeviceSynchronize",
    "cuModuleLoadData",
    "cudaEventRecord",
]
KERNELS = ["nvjet_x", "cutlass_gemm", "elementwise", "softmax"]
TIME = st.integers(0, 300)
LENGTH = st.integers(0, 90)


@st.composite
def traces(draw: st.DrawFn) -> TraceBuilder:
    """Two threads, two devices; nesting or not; orphans, silent launches, clocks that disagree."""
    built = TraceBuilder()
    for name, start, length, tid in draw(
        st.lists(st.tuples(st.sampled_from(OPS), TIME, LENGTH, st.integers(1, 2)), max_size=8)
    ):
        built.add_op(name, start, length, tid)
    calls = draw(
        st.lists(st.tuples(st.sampled_from(CALLS), TIME, LENGTH, st.integers(1, 2)), max_size=8)
    )
    for number, (name, start, length, tid) in enumerate(calls):
        built.add_call(name, start, length, number + 1, tid)
    for name, start, length, correlation, stream, device, category in draw(
        st.lists(
            st.tuples(
                st.sampled_from(KERNELS),
                TIME,
                LENGTH,
                st.integers(0, len(calls) + 1),
                st.integers(7, 8),
                st.integers(0, 1),
                st.sampled_from(["kernel", "kernel", "kernel", "gpu_memcpy", "gpu_memset"]),
            ),
            max_size=10,
        )
    ):
        built.add_kernel(name, start, length, correlation, stream, device, category)
    cuts = sorted(set(draw(st.lists(st.integers(0, 320), max_size=4))))
    for i, (start, end) in enumerate(pairwise(cuts)):
        built.add_annotation(f"step#{i}", start, end - start, draw(st.integers(1, 2)))
    built.add_op("aten::last", 395, 5)  # a trace without any event is refused
    return built


FLOORS = st.sampled_from([Floor("none", UNKNOWN, {}), Floor("null_kernel", 3_000, {})])
Analysed = tuple[LinkedTrace, decomposition.Launches, Floor]


@pytest.fixture
def analyse(tmp_path) -> Callable[..., Analysed]:
    def run(built: TraceBuilder, floor: Floor) -> Analysed:
        (trace,) = kineto.read(built.write(tmp_path / "p.json"))
        a = link_trace(trace, ["step#*"])
        launches = decomposition.spans(a)
        decomposition.decompose(a, launches, floor)
        return a, launches, floor

    return run


def brute_busy(a: LinkedTrace, start: int, end: int) -> int:
    """Nanoseconds of a window in which any device ran, moment by moment (times are whole us)."""
    moments = np.zeros((end - start) // 1000, bool)
    for s, e in zip(a.device.start.tolist(), a.device.end.tolist(), strict=True):
        moments[max(s - start, 0) // 1000 : max(e - start, 0) // 1000] = True
    return int(moments.sum()) * 1000


@settings(max_examples=150)
@given(traces(), FLOORS)
def test_accounts_add_up_to_wall_time_and_exposed_to_idle_time(analyse, built, floor) -> None:
    a, launches, _ = analyse(built, floor)
    busy = ledger.busy_measure(a)
    entries = ledger.ledger(a, launches, busy)
    windows = {i: step for i, step in enumerate(a.steps)} | {-1: a.whole}
    for number in {e.step for e in entries}:
        own = [e for e in entries if e.step == number]
        step = windows[number]
        idle = step.end - step.start - brute_busy(a, step.start, step.end)
        assert sum(e.ns for e in own) == step.end - step.start
        assert len({(e.thread, e.account) for e in own}) == len(own)
        if not len(a.device.start):
            assert {e.exposed_ns for e in own} == {None}
            assert ledger.window(busy, step) == ledger.Window(None, None)
            continue
        assert sum(e.exposed_ns or 0 for e in own) == idle
        assert all(e.exposed_ns is not None and 0 <= e.exposed_ns <= e.ns for e in own)
        assert ledger.window(busy, step).idle_ns == idle
    for number, step in windows.items():
        mains = {e.thread for e in entries if e.step == number and e.is_main}
        assert mains == ({step.thread} if step.thread >= 0 else set())


@given(traces(), FLOORS)
def test_totals_of_all_steps_are_those_of_each(analyse, built, floor) -> None:
    a, launches, floor = analyse(built, floor)
    windows = [ledger.window(ledger.busy_measure(a), step) for step in a.steps]
    one_by_one = [
        totals.of_step(a, launches, floor, number, step.end - step.start, window)
        for number, (step, window) in enumerate(zip(a.steps, windows, strict=True))
    ]
    assert totals.of_steps(a, launches, floor, windows) == one_by_one


@settings(max_examples=150)
@given(traces(), FLOORS)
def test_parts_of_the_launches_sum_to_the_totals(analyse, built, floor) -> None:
    a, launches, floor = analyse(built, floor)
    busy = ledger.busy_measure(a)
    for number, step in [*enumerate(a.steps), (None, a.whole)]:
        here = launches.step == number if number is not None else launches.step >= -1
        window = ledger.window(busy, step)
        t = totals.of_step(a, launches, floor, number, step.end - step.start, window)
        assert t.launches == int(here.sum())
        has_launches = bool(np.isin(a.calls.kind, (1, 2)).any())
        if t.orchestration_ns is None:
            assert not has_launches or not known(launches.dkt[here]).all()
        elif t.ft_ns is not None and t.ct_ns is not None:
            assert t.kt_ns is not None
            assert t.ft_ns + t.ct_ns + t.kt_ns == t.orchestration_ns
            each = sum(int(v[here & known(v)].sum()) for v in (launches.dft, launches.dct))
            assert each + int(launches.dkt[here].sum()) == t.orchestration_ns
        if has_launches and len(a.device.start):
            assert t.tklqt_ns == int(launches.t_launch[here & known(launches.t_launch)].sum())
        else:
            assert t.tklqt_ns is None
        for share in (t.hdbi, t.hdbi_busy):
            assert share is None or 0 <= share <= 1
        if t.hdbi is None:
            both = (t.orchestration_ns, t.device_active_ns)
            assert None in both or both == (0, 0)
        if not len(a.device.start):
            assert (t.device_active_ns, t.device_busy_ns, t.device_event_sum_ns) == (None,) * 3
        else:
            assert t.device_busy_ns is not None
            assert t.device_event_sum_ns is not None
            assert t.device_busy_ns <= t.device_event_sum_ns
        assert (launches.dct[known(launches.dct)] >= 0).all()
        assert (launches.t_py[known(launches.t_py)] >= 0).all()
        assert (launches.t_dispatch <= launches.t_dispatch_raw).all()


@settings(max_examples=60)
@given(traces(), FLOORS)
def test_launches_of_the_steps_are_those_of_the_trace(analyse, built, floor) -> None:
    a, launches, _ = analyse(built, floor)
    executed = (np.isin(a.calls.kind, (1, 2)) & (a.calls.capture < 0)).sum()
    assert len(launches.call) == int(executed)
    assert int(launches.kernels.sum()) == int(
        ((a.device.kind == 0) & np.isin(a.device.call, launches.call)).sum()
    )


@given(st.one_of(st.none(), st.integers(0, 10**15)), st.one_of(st.none(), st.integers(0, 10**15)))
def test_hdbi_is_a_share_or_unknown(device, orchestration) -> None:
    share = totals.hdbi(device, orchestration)
    if device is None or orchestration is None or device + orchestration == 0:
        assert share is None
    else:
        assert share is not None
        assert 0 <= share <= 1


def test_a_negative_time_has_no_balance() -> None:
    with pytest.raises(ValueError, match="negative"):
        totals.hdbi(-1, 5)


@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=40), st.floats(0, 100))
def test_a_percentile_is_a_sample_that_was_measured(values, percent) -> None:
    got = decomposition.percentile(np.array(values, np.int64), percent)
    assert got in values
    assert sum(v < got for v in values) <= len(values) * percent / 100


@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=40))
def test_a_median_is_rounded_half_up(values) -> None:
    got = decomposition.median_ns(np.array(values, np.int64))
    exact = np.median(np.array(values, np.float64))
    assert got == int(np.floor(exact + 0.5))
