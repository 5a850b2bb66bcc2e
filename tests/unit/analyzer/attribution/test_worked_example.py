"""The worked example of the method, number by number."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from analyzer.attribution import decomposition, ledger, totals
from analyzer.attribution.decomposition import Floor, Launches
from analyzer.attribution.events import LinkedTrace
from tests.support.tracebuilder import worked_example

US = 1000
MAIN = "SELECT {} FROM ledger WHERE step_id = 0 AND is_main"


def approx_us(values: np.ndarray) -> list[float]:
    return (values / US).tolist()


@pytest.fixture
def example(linked: Callable[..., LinkedTrace]) -> tuple[LinkedTrace, Launches, Floor]:
    a = linked(worked_example(), "step#*")
    launches = decomposition.spans(a)
    floor = Floor("null_kernel", 40 * US, {})
    decomposition.decompose(a, launches, floor)
    return a, launches, floor


def test_launches_are_named_by_their_innermost_ops(example) -> None:
    a, launches, _ = example
    names = [a.trace.strings[a.ops.name[a.calls.op[c]]] for c in launches.call.tolist()]
    assert names == ["aten::addmm", "aten::relu"]


def test_t_py_is_the_gap_before_the_outermost_op(example) -> None:
    assert approx_us(example[1].t_py) == [100, 100]


def test_t_dispatch_counts_from_the_outermost_op(example) -> None:
    _, launches, _ = example
    assert approx_us(launches.t_dispatch) == [200, 40]
    assert approx_us(launches.t_dispatch_raw) == [200, 40]
    assert approx_us(launches.t_dispatch_inner)[0] == 180


def test_t_launch_is_kept_and_neither_launch_is_clean(example) -> None:
    _, launches, _ = example
    assert approx_us(launches.t_launch) == [50, 120]
    assert launches.is_clean.tolist() == [False, False]


def test_ct_is_what_a_library_launch_took_above_the_base(example) -> None:
    _, launches, _ = example
    assert approx_us(launches.t_base) == [40, 40]
    assert approx_us(launches.dct) == [160, 0]
    assert approx_us(launches.dct_paper) == [0, 0]
    assert approx_us(launches.dft) == [140, 140]
    assert approx_us(launches.dkt) == [40, 40]


def test_totals_are_the_sums_of_the_launches(example) -> None:
    a, launches, floor = example
    window = ledger.window(ledger.busy_measure(a), a.steps[0])
    t = totals.of_step(a, launches, floor, 0, 800 * US, window)
    assert t.orchestration_ns == 520 * US
    assert (t.ft_ns, t.ct_ns, t.kt_ns) == (280 * US, 160 * US, 80 * US)
    assert t.device_active_ns == 340 * US
    assert t.tklqt_ns == 170 * US
    assert t.hdbi == 340 / 860
    assert round(t.hdbi, 3) == 0.395
    assert t.device_idle_ns == 460 * US
    assert (t.launches, t.kernels, t.clean_launches) == (2, 2, 0)


def test_ledger_accounts_fill_the_step(example) -> None:
    a, launches, _ = example
    entries = [e for e in ledger.ledger(a, launches, ledger.busy_measure(a)) if e.step == 0]
    found = {e.account: (e.ns // US, e.exposed_ns // US) for e in entries}
    assert {name: ns for name, (ns, _) in found.items() if ns} == {
        "python": 330,
        "library": 160,
        "framework": 180,
        "launch": 60,
        "wait": 70,
    }
    assert sum(ns for ns, _ in found.values()) == 800
    assert found["python"][1] == 180
    assert found["library"][1] + found["framework"][1] == 210
    assert found["launch"][1] == 40
    assert found["wait"][1] == 30
    assert sum(exposed for _, exposed in found.values()) == 460


def test_without_a_floor_orchestration_and_hdbi_are_unknown(stored) -> None:
    """Two dirty launches make no floor: null, not 0."""
    ask = stored(worked_example(), step_annotation=["step#*"])
    sql = "SELECT orchestration_ns, hdbi, launch_floor_ns, floor_source FROM totals"
    assert ask(sql + " WHERE step_id = 0") == [(None, None, None, "none")]
    assert ask(MAIN.format("sum(ns), sum(exposed_ns)")) == [(800 * US, 460 * US)]
