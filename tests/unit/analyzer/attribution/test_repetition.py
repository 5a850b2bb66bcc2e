"""Steps where no mark is: cut where the launches repeat, and only where they are steps."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from analyzer.attribution.events import LinkedTrace, Step
from analyzer.attribution.links import link_trace
from analyzer.trace import kineto
from analyzer.trace.events import ANNOTATION_CATEGORIES, Trace
from tests.support.tracebuilder import TraceBuilder

Link = Callable[..., LinkedTrace]
MARKED = ("hostbound.*", "step#*", "graph_replay#*", "decode#*")
H200 = (
    "gpt2-prefill-bs1-s512",
    "gpt2-prefill-bs2-s512",
    "gpt2-prefill-bs8-s512",
    "gpt2-prefill-bs1-s512-stack",
    "gpt2-prefill-bs1-s512-compile-default",
    "gpt2-prefill-bs1-s512-execution-trace.kineto",
    "gpt2-prefill-bs1-s512-graph-capture-and-replay",
    "gpt2-prefill-bs1-s512-graph-replay-only",
    "null-synced",
)
RANKS = tuple(f"{what}-rank{rank}" for what in ("none", "python", "graph") for rank in (0, 1))
SAMPLES = tuple(
    f"{run}/{trace}"
    for run, traces in {
        "gpt2-bs1-s512": ("trace", "trace-2", "trace-3"),
        "gpt2-bs8-s512": ("trace", "trace-2", "trace-3"),
        "gpt2-prefill-bs1-s512": ("trace",),
        "gpt2-prefill-bs1-s512-compile": ("trace",),
        "gpt2-prefill-bs1-s512-graph": ("trace",),
        "gpt2-prefill-bs2-s512": ("trace",),
        "gpt2-prefill-bs8-s512": ("trace",),
    }.items()
    for trace in traces
)


class Loop:
    """Writes launches one after the other, 10 us each; a wait stands outside ops."""

    def __init__(self, trace: TraceBuilder) -> None:
        self.trace = trace
        self.now = 0
        self.correlation = 0

    def launch(self, *kernels: str, gap: int = 0, grid: int = 1) -> Loop:
        for kernel in kernels:
            self.now += gap
            self.correlation += 1
            self.trace.add_op(f"aten::{kernel}", self.now, 8)
            self.trace.add_call("cudaLaunchKernel", self.now + 2, 4, self.correlation)
            shape = {"grid": [grid, 1, 1], "block": [32, 1, 1]}
            self.trace.add_kernel(kernel, self.now + 9, 5, self.correlation, **shape)
            self.now += 10
        return self

    def wait(self) -> Loop:
        self.trace.add_call("cudaDeviceSynchronize", self.now, 8)
        self.now += 10
        return self

    def sleep(self, us: int) -> Loop:
        self.now += us
        return self


@pytest.fixture
def loop(trace: TraceBuilder) -> Loop:
    return Loop(trace)


def layers(n: int) -> list[str]:
    return ["norm", "qkv", "attention", "up", "act", "down"] * n


def phases(linked: LinkedTrace) -> list[str]:
    return [step.phase for step in linked.steps]


def launches_in(linked: LinkedTrace) -> list[int]:
    inside = linked.calls.step[(linked.calls.kind > 0) & (linked.calls.step >= 0)]
    return np.bincount(inside, minlength=len(linked.steps)).tolist()


def test_twenty_equal_iterations_are_twenty_steps_and_a_slow_first_is_named(
    loop: Loop, linked: Link
) -> None:
    for number in range(20):
        loop.launch("in", *layers(3), "out").sleep(500 if number == 0 else 0).wait()
    found = linked(loop.trace)
    assert phases(found) == ["step"] * 20
    assert [step.index for step in found.steps if step.is_warm_up] == [0]
    assert launches_in(found) == [20] * 20
    assert (found.step_source.name, found.step_source.coverage) == ("repetition", 1.0)
    assert found.step_source.confidence == 1.0


def test_a_first_iteration_with_launches_of_its_own_is_warm_up(loop: Loop, linked: Link) -> None:
    """It fills its buffers and tries algorithms."""
    loop.launch("in", *layers(3), *["fill"] * 5, "try", "try", "out").wait()
    for _ in range(8):
        loop.launch("in", *layers(3), "out").wait()
    found = linked(loop.trace)
    assert launches_in(found) == [27] + [20] * 8
    assert [step.is_warm_up for step in found.steps] == [True] + [False] * 8


def test_iterations_that_never_wait_are_steps_too(loop: Loop, linked: Link) -> None:
    for _ in range(8):
        loop.launch("in", *layers(3), "out")
    assert launches_in(linked(loop.trace)) == [20] * 8


def test_what_stands_before_a_run_of_decode_steps_is_their_prefill(
    loop: Loop, linked: Link
) -> None:
    prompt = [name.replace("qkv", "qkv_tall").replace("up", "up_tall") for name in layers(4)]
    loop.launch("embed", *prompt, "head", grid=64).wait()
    for _ in range(6):
        loop.launch("embed", *layers(4), "head").wait()
    found = linked(loop.trace)
    assert phases(found) == ["prefill"] + ["decode"] * 6
    assert launches_in(found) == [26] * 7


def test_a_prefill_that_runs_the_same_kernels_larger_is_told_by_their_size(
    loop: Loop, linked: Link
) -> None:
    loop.launch("embed", *layers(4), "head", grid=64).wait()
    for _ in range(6):
        loop.launch("embed", *layers(4), "head").wait()
    assert phases(linked(loop.trace)) == ["prefill"] + ["decode"] * 6


def test_two_requests_have_a_prefill_each(loop: Loop, linked: Link) -> None:
    prompt = [name.replace("qkv", "qkv_tall") for name in layers(4)]
    for _ in range(2):
        loop.launch("embed", *prompt, "head", grid=64).wait()
        for _ in range(5):
            loop.launch("embed", *layers(4), "head").wait()
    assert phases(linked(loop.trace)) == (["prefill"] + ["decode"] * 5) * 2


def test_attention_over_a_growing_cache_is_the_same_launch(loop: Loop, linked: Link) -> None:
    for number in range(8):
        loop.launch("embed")
        for _ in range(4):
            loop.launch("norm", "qkv").launch("attention", grid=100 + number).launch("up", "down")
        loop.launch("head").wait()
    assert launches_in(linked(loop.trace)) == [22] * 8


def test_a_launch_that_only_some_steps_make_does_not_hide_them(loop: Loop, linked: Link) -> None:
    for number in range(12):
        loop.launch("embed", *layers(4), "head")
        if number % 4 == 3:  # a block of the cache is full
            loop.launch("new_block")
        loop.wait()
    assert launches_in(linked(loop.trace)) == [26, 26, 26, 27] * 3


def test_equal_layers_between_pauses_are_parts_of_the_steps(loop: Loop, linked: Link) -> None:
    """Nothing but the waits tells where a step of sixteen layers ends."""
    for _ in range(6):
        loop.launch(*layers(16)).wait()
    assert launches_in(linked(loop.trace)) == [96] * 6


def test_a_recording_that_begins_and_ends_amid_a_step_has_the_whole_ones(
    loop: Loop, linked: Link
) -> None:
    loop.launch(*layers(2), "head").wait()
    for _ in range(5):
        loop.launch("embed", *layers(4), "head").wait()
    loop.launch("embed", *layers(1))
    assert launches_in(linked(loop.trace)) == [26] * 5


@pytest.mark.parametrize(
    "body",
    [
        ["embed", *layers(12), "norm", "head"],  # one pass: its layers are no steps
        ["embed", *layers(3), "pool", *layers(3), "head"],
        [f"kernel_{i}" for i in range(40)],
        ["embed", *layers(2), "head"] * 2,  # two are no repetition
        ["k"] * 50,  # one kernel again and again is no step
        ["k"],
        [],
    ],
)
def test_a_trace_without_repeated_steps_is_one_step(
    loop: Loop, linked: Link, body: list[str]
) -> None:
    found = linked(loop.launch(*body).wait().trace.add_op("aten::end", loop.now, 5))
    assert (found.step_source.name, phases(found)) == ("trace", ["trace"])


def test_layers_that_wait_within_themselves_are_no_steps(loop: Loop, linked: Link) -> None:
    """Experts that are chosen on the host: each layer reads back where its tokens go."""
    loop.launch("embed")
    for _ in range(12):
        loop.launch("norm", "qkv", "attention")
        for _ in range(4):
            loop.launch("route").wait()
            loop.launch("up", "down")
    loop.launch("norm", "head").wait()
    assert phases(linked(loop.trace)) == ["trace"]


def test_captured_launches_are_no_repetition(trace: TraceBuilder, linked: Link) -> None:
    trace.add_call("cudaStreamBeginCapture", 0, 1)
    for number in range(20):
        trace.add_op("aten::mm", 10 + number * 20, 8)
        trace.add_call("cudaLaunchKernel", 12 + number * 20, 4, number + 1)
    trace.add_call("cudaStreamEndCapture", 500, 1)
    assert phases(linked(trace)) == ["trace"]


def test_a_step_begins_where_the_one_before_it_ends(loop: Loop, linked: Link) -> None:
    """What the program does between two steps is part of the loop, so of a step."""
    for _ in range(4):
        loop.launch("in", *layers(2), "out").wait().sleep(100)
    found = linked(loop.trace)
    assert [(step.start, step.end) for step in found.steps] == [
        (0, 148_000),
        (148_000, 398_000),
        (398_000, 648_000),
        (648_000, 898_000),
    ]


def test_the_notes_say_what_was_found(loop: Loop, linked: Link) -> None:
    for _ in range(4):
        loop.launch("in", *layers(2), "out").wait()
    (found,) = (f for f in linked(loop.trace).trace.findings if f.code == "steps_by_repetition")
    assert "found by repetition: 4 step, 100 % of launches" in found.message


def without_annotations(path: Path) -> Trace:
    (trace,) = kineto.read(path)
    ids = [i for i, name in trace.categories().items() if name in ANNOTATION_CATEGORIES]
    trace.rows = trace.rows[~np.isin(trace.rows["category"], ids)]
    return trace


def borders(linked: LinkedTrace, steps: list[Step]) -> set[tuple[int, int]]:
    """First and last launch of each step, by correlation."""
    calls = linked.calls
    executed = np.flatnonzero((calls.kind > 0) & (calls.capture < 0))
    executed = executed[np.argsort(calls.start[executed], kind="stable")]
    found: set[tuple[int, int]] = set()
    for step in steps:
        start = calls.start[executed]
        inside = executed[(start >= step.start) & (start < step.end)]
        ids = calls.correlation[inside].tolist()
        found |= {(0, ids[0]), (1, ids[-1])}
    return found


def assert_same_steps(path: Path) -> None:
    marked = link_trace(kineto.read(path)[0], MARKED)
    found = link_trace(without_annotations(path))
    assert len(found.steps) == len(marked.steps)
    if len(marked.steps) > 1:
        assert borders(found, found.steps) == borders(marked, marked.steps)


@pytest.mark.parametrize("name", H200)
def test_a_recording_without_its_annotations_has_the_same_steps(
    shared_dir: Path, name: str
) -> None:
    assert_same_steps(shared_dir / "traces" / "h200" / f"{name}.json.gz")


@pytest.mark.parametrize("name", RANKS)
def test_a_rank_without_its_annotations_has_the_same_steps(shared_dir: Path, name: str) -> None:
    assert_same_steps(shared_dir / "traces" / "ranks" / f"{name}.json.gz")


@pytest.mark.parametrize("name", SAMPLES)
def test_a_sample_without_its_annotations_has_the_same_steps(samples_dir: Path, name: str) -> None:
    assert_same_steps(samples_dir / f"{name}.json.gz")


@pytest.mark.parametrize(
    ("name", "decodes"),
    [
        ("gpt2-generate-bs1-s512-m10", 9),
        ("llama2-7b-generate-bs1-s100-m4", 3),
        ("olmoe-generate-bs1-s512-m4-eager", 3),
        ("olmoe-generate-bs1-s512-m4-grouped_mm", 3),
    ],
)
def test_a_generate_call_under_one_annotation_is_a_prefill_and_its_decode_steps(
    shared_dir: Path, name: str, decodes: int
) -> None:
    found = link_trace(without_annotations(shared_dir / "traces" / "h200" / f"{name}.json.gz"))
    assert phases(found) == ["prefill"] + ["decode"] * decodes
    assert found.step_source.coverage is not None
    assert found.step_source.coverage > 0.97


def test_ten_times_the_events_take_about_ten_times_as_long(tmp_path: Path) -> None:
    def seconds(steps: int) -> float:
        loop = Loop(TraceBuilder())
        for number in range(steps):
            loop.launch("embed", *layers(8), "head", f"odd_{number % 7}").wait()
        (trace,) = kineto.read(loop.trace.write(tmp_path / f"{steps}.json"))
        began = time.perf_counter()
        assert len(link_trace(trace).steps) == steps
        return time.perf_counter() - began

    assert seconds(400) < 40 * seconds(40)
