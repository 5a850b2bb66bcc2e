"""Per-step figures of the H200 traces equal those of an independent reader of the method."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from analyzer.attribution import decomposition, ledger, totals
from analyzer.attribution.decomposition import known
from analyzer.attribution.links import link_trace
from analyzer.trace import kineto

STEPS = ("step#*", "graph_replay#*", "graph_capture")
FILES = (
    "gpt2-generate-bs1-s512-m10",
    "gpt2-prefill-bs1-s512-compile-default",
    "gpt2-prefill-bs1-s512-execution-trace.kineto",
    "gpt2-prefill-bs1-s512-graph-capture-and-replay",
    "gpt2-prefill-bs1-s512-graph-replay-only",
    "gpt2-prefill-bs1-s512-stack",
    "gpt2-prefill-bs1-s512",
    "gpt2-prefill-bs2-s512",
    "gpt2-prefill-bs8-s512",
    "llama2-7b-generate-bs1-s100-m4",
    "null-synced",
    "olmoe-generate-bs1-s512-m4-grouped_mm",
)


def known_sum(values: np.ndarray) -> int:
    return int(values[known(values)].sum())


@pytest.fixture(scope="module", params=FILES)
def steps(request: pytest.FixtureRequest, shared_dir: Path):
    """[(step number, expected)] beside the analysed trace."""
    folder = shared_dir / "traces" / "h200"
    expected = json.loads((folder / "method.json").read_text())["files"]
    (trace,) = kineto.read(folder / f"{request.param}.json.gz")
    a = link_trace(trace, STEPS)
    launches = decomposition.spans(a)
    floor = decomposition.trace_floor(decomposition.clean_gaps(launches))
    decomposition.decompose(a, launches, floor)
    return a, launches, floor, expected[f"{request.param}.json.gz"]


def test_no_file_of_the_figures_is_left_out(shared_dir: Path) -> None:
    value = json.loads((shared_dir / "traces" / "h200" / "method.json").read_text())["files"]
    assert {name.removesuffix(".json.gz") for name in value} == set(FILES)


def test_steps_are_the_annotations(steps) -> None:
    a, _, _, expected = steps
    assert [s.name for s in a.steps] == [x["step"] for x in expected]


def test_counts_and_sums_of_each_step_are_exact(steps) -> None:
    a, launches, floor, expected = steps
    busy = ledger.busy_measure(a)
    for i, (step, want) in enumerate(zip(a.steps, expected, strict=True)):
        here = launches.step == i
        window = ledger.window(busy, step)
        got = totals.of_step(a, launches, floor, i, step.end - step.start, window)
        graph_calls = launches.call[here & launches.is_graph]
        found = {
            "wall_ns": got.wall_ns,
            "launches": got.launches,
            "kernels": got.kernels,
            "no_op": int((here & (a.calls.outermost[launches.call] < 0)).sum()),
            "device_active_ns": got.device_active_ns,
            "busy_in_window_ns": got.busy_in_window_ns,
            "t_py_ns": got.t_py_ns,
            "t_dispatch_ns": got.t_dispatch_ns,
            "lib_launches": int(launches.is_library[here].sum()),
            "lib_launches_paper": int(launches.is_library_paper[here].sum()),
            "tklqt_ns": got.tklqt_ns,
            "graph_launches": got.graph_launches,
            "graph_launch_ns": int((a.calls.end - a.calls.start)[graph_calls].sum()),
        }
        assert found == {key: want[key] for key in found}, step.name


def test_the_floor_is_the_same_clean_sample(steps) -> None:
    _, _, floor, expected = steps
    wanted = {x["floor_ns"] for x in expected if x["floor_ns"] is not None}
    assert wanted == ({floor.ns} if floor.source == "trace" and wanted else set())


def test_framework_and_library_translation_differ_by_rounding_only(steps) -> None:
    """T_base is rounded half up here and not there: 0.5 ns for each library launch at most."""
    _a, launches, _floor, expected = steps
    for i, want in enumerate(expected):
        here = launches.step == i
        base = launches.t_base[here]
        if want["t_base_ns"] is None:
            assert not known(base).any()
        else:
            assert set(base.tolist()) == {math.floor(want["t_base_ns"] + 0.5)}
        ct, ft = known_sum(launches.dct[here]), known_sum(launches.dft[here])
        slack = 0.5 * want["lib_launches"]
        assert abs(ct - (want["ct_ns"] or 0)) <= slack
        assert abs(ft - (want["ft_ns"] or 0)) <= slack
        assert ft + ct == (want["ft_ns"] or 0) + (want["ct_ns"] or 0)


def test_orchestration_and_hdbi_follow(steps) -> None:
    a, launches, floor, expected = steps
    busy = ledger.busy_measure(a)
    for i, (step, want) in enumerate(zip(a.steps, expected, strict=True)):
        got = totals.of_step(
            a, launches, floor, i, step.end - step.start, ledger.window(busy, step)
        )
        if want["orchestration_ns"] is None:
            continue
        assert got.orchestration_ns == want["orchestration_ns"], step.name
        assert got.hdbi == pytest.approx(want["hdbi"], abs=1e-12)


def test_ledger_and_exposed_time_of_each_step_are_exact(steps) -> None:
    a, launches, _, expected = steps
    entries = ledger.ledger(a, launches, ledger.busy_measure(a))
    for i, want in enumerate(expected):
        ours = {e.account: (e.ns, e.exposed_ns) for e in entries if e.step == i and e.is_main}
        library, framework = ours.pop("library"), ours.pop("framework")
        ours["ops"] = (library[0] + framework[0], library[1] + framework[1])
        accounts = set(ours) | set(want["ledger_ns"])
        for account in accounts:
            theirs = (want["ledger_ns"].get(account, 0), want["exposed_ns"].get(account, 0))
            assert ours.get(account, (0, 0)) == theirs, (want["step"], account)


def test_clean_share_is_the_share_of_launches_that_found_the_stream_idle(steps) -> None:
    """Of a graph launch they count each kernel, we the launch: its first kernel's."""
    _, launches, _, expected = steps
    for i, want in enumerate(expected):
        here = (launches.step == i) & ~launches.is_graph
        if here.any() and not want["graph_launches"]:
            assert round(float(launches.is_clean[here].mean()), 4) == want["clean_share"]


def test_stored_figures_are_the_computed_ones(shared_dir: Path, stored) -> None:
    """What reaches the store is what the steps gave."""
    path = shared_dir / "traces" / "h200" / "gpt2-prefill-bs1-s512.json.gz"
    ask = stored(path, step_annotation=["step#*"])
    want: list[dict[str, Any]] = json.loads((path.parent / "method.json").read_text())["files"][
        path.name
    ]
    rows = ask(
        "SELECT wall_ns, launches, kernels, device_active_ns, t_py_ns, t_dispatch_ns, tklqt_ns, "
        "launch_floor_ns, orchestration_ns FROM totals WHERE step_id IS NOT NULL ORDER BY step_id"
    )
    keys = ("wall_ns", "launches", "kernels", "device_active_ns", "t_py_ns", "t_dispatch_ns")
    keys += ("tklqt_ns", "floor_ns", "orchestration_ns")
    assert rows == [tuple(x[key] for key in keys) for x in want]
