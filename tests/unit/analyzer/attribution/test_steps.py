"""Which marks make the steps of a trace, and what is stored of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from analyzer.attribution.events import LinkedTrace
from tests.support.tracebuilder import TraceBuilder

Link = Callable[..., LinkedTrace]
PREFILL = "execute_context_1(8)_generation_0(0)"


def names(linked: LinkedTrace) -> list[str]:
    return [step.name for step in linked.steps]


def codes(linked: LinkedTrace) -> dict[str, str]:
    return {found.code: found.message for found in linked.trace.findings}


def launches(trace: TraceBuilder, *starts: int) -> TraceBuilder:
    for number, start in enumerate(starts):
        trace.add_launch(f"kernel_{number}", start, 5, number + 1)
    return trace


@pytest.mark.parametrize(
    ("marks", "source"),
    [
        (("hostbound.decode#0", "mine", PREFILL, "ProfilerStep#0"), "hostbound"),
        (("mine", PREFILL, "ProfilerStep#0"), "annotation"),
        ((PREFILL, "ProfilerStep#0"), "vllm"),
        (("ProfilerStep#0",), "profiler"),
        ((), "trace"),
    ],
)
def test_the_first_of_the_sources_that_marks_anything_tells_the_steps(
    trace: TraceBuilder, linked: Link, marks: tuple[str, ...], source: str
) -> None:
    for number, name in enumerate(marks):
        trace.add_annotation(name, 100 * number, 50)
    found = linked(launches(trace, 10, 110), "mine")
    assert found.step_source.name == source
    assert names(found) == [marks[0] if marks else "trace"]


def test_patterns_choose_among_the_collectors_own_marks(trace: TraceBuilder, linked: Link) -> None:
    trace.add_annotation("hostbound.prefill#0", 0, 50).add_annotation("hostbound.decode#0", 50, 50)
    found = linked(launches(trace, 10, 60), "hostbound.decode*")
    assert (found.step_source.name, names(found)) == ("hostbound", ["hostbound.decode#0"])


def test_annotations_that_were_asked_for_beside_the_collectors_are_said_to_be_no_steps(
    trace: TraceBuilder, linked: Link
) -> None:
    trace.add_annotation("hostbound.prefill#0", 0, 50).add_annotation("mine", 10, 20)
    found = linked(launches(trace, 10), "mine")
    assert names(found) == ["hostbound.prefill#0"]
    assert "1 annotations that were asked for" in codes(found)["own_marks_first"]


def test_a_pattern_that_matches_nothing_leaves_the_steps_to_the_engine_and_says_so(
    trace: TraceBuilder, linked: Link
) -> None:
    found = linked(launches(trace.add_annotation(PREFILL, 0, 50), 10), "mine")
    assert names(found) == [PREFILL]
    assert "told by vLLM" in codes(found)["other_step_annotation"]


def test_a_name_with_brackets_matches_itself(trace: TraceBuilder, linked: Link) -> None:
    found = linked(launches(trace.add_annotation("part[a b=1]", 0, 50), 10), "part[a b=1]")
    assert names(found) == ["part[a b=1]"]


def test_of_nested_marks_the_innermost_is_the_step_and_the_outer_one_is_named(
    trace: TraceBuilder, linked: Link
) -> None:
    trace.add_annotation(PREFILL, 0, 500).add_annotation("step[EXTEND bs=1 toks=8]", 300, 50)
    found = linked(launches(trace, 10, 310))
    (step,) = found.steps
    assert (step.name, step.outer) == ("step[EXTEND bs=1 toks=8]", PREFILL)
    assert (found.step_source.name, found.step_source.coverage) == ("sglang", 0.5)
    assert "(first: execute_context_1(8)_generation_0(0), 0.500 ms)" in codes(found)["outer_marks"]


def test_what_an_engine_does_around_a_step_is_named_as_well(
    trace: TraceBuilder, linked: Link
) -> None:
    trace.add_annotation("scheduler.run_batch", 0, 500)
    trace.add_annotation("step[DECODE bs=4]", 300, 50)
    found = linked(launches(trace, 310))
    assert [step.outer for step in found.steps] == ["scheduler.run_batch"]
    assert "outer_marks" not in codes(found)


def test_a_mark_on_another_thread_encloses_none(trace: TraceBuilder, linked: Link) -> None:
    trace.add_annotation("step[DECODE bs=4]", 0, 500, tid=2)
    trace.add_annotation("step[DECODE bs=4]", 100, 50)
    found = linked(launches(trace, 110))
    assert [step.outer for step in found.steps] == [None, None]


def test_marks_that_overlap_are_steps_of_their_own(trace: TraceBuilder, linked: Link) -> None:
    trace.add_annotation("step[DECODE bs=4]", 0, 110).add_annotation("step[DECODE bs=4]", 100, 50)
    found = linked(launches(trace, 10, 105))
    assert [step.outer for step in found.steps] == [None, None]
    assert found.calls.step.tolist() == [0, 1]


def test_captures_and_idle_marks_are_no_steps_and_are_said(
    trace: TraceBuilder, linked: Link
) -> None:
    trace.add_annotation("capture_8_decode", 0, 100).add_annotation("step[IDLE bs=0]", 200, 50)
    trace.add_annotation("step[DECODE bs=8]", 300, 50)
    found = linked(launches(trace, 10, 210, 310))
    assert names(found) == ["step[DECODE bs=8]"]
    assert found.calls.step.tolist() == [-1, -1, 0]
    assert "capture_8_decode; 0.100 ms" in codes(found)["capture_marks"]
    assert "step[IDLE bs=0]; 0.050 ms" in codes(found)["idle_marks"]


def test_a_recording_of_captures_has_no_steps_though_the_profiler_counted_one(
    trace: TraceBuilder, linked: Link
) -> None:
    trace.add_annotation("ProfilerStep#3", 0, 500).add_annotation("capture_8_decode", 0, 100)
    found = linked(launches(trace, 10))
    assert (found.step_source.name, names(found)) == ("trace", ["trace"])


def test_an_engines_steps_are_numbered_by_phase(trace: TraceBuilder, linked: Link) -> None:
    for number, text in enumerate(("DECODE bs=1", "EXTEND bs=1 toks=9", "DECODE bs=2")):
        trace.add_annotation(f"step[{text}]", 100 * number, 90)
    found = linked(launches(trace, 10, 110, 210))
    assert [(step.phase, step.index) for step in found.steps] == [
        ("decode", 0),
        ("prefill", 0),
        ("decode", 1),
    ]


def test_a_step_is_stored_with_what_its_mark_says_and_when_the_device_ran_it(
    trace: TraceBuilder, stored: Callable
) -> None:
    trace.add_annotation("step[EXTEND bs=2 toks=12 c_sqsq=80 c_sqsk=120 c_sk=20]", 0, 50)
    trace.add_annotation("step[DECODE bs=2]", 50, 50)
    ask = stored(launches(trace, 10, 20, 60))
    assert ask(
        "SELECT phase, engine, batch, ctx_reqs, ctx_tokens, gen_reqs, gen_tokens, ctx_sk, ctx_sqsq,"
        " ctx_sqsk, gen_sk, device_start_ns, device_end_ns, is_warm_up FROM steps ORDER BY step_id"
    ) == [
        ("prefill", "sglang", 2, 2, 12, 0, 0, 20, 80, 120, None, 15_000, 30_000, False),
        ("decode", "sglang", 2, 0, 0, 2, 2, None, None, None, None, 65_000, 70_000, False),
    ]
    assert ask("SELECT step_source, step_coverage, step_confidence FROM traces") == [
        ("sglang", 1.0, 1.0)
    ]


def test_a_step_that_starts_no_device_event_has_no_device_range(
    trace: TraceBuilder, stored: Callable
) -> None:
    trace.add_annotation("step[DECODE bs=2]", 0, 50).add_annotation("step[DECODE bs=2]", 50, 50)
    ask = stored(launches(trace, 10))
    assert ask("SELECT device_start_ns, device_end_ns FROM steps ORDER BY step_id") == [
        (15_000, 20_000),
        (None, None),
    ]


def test_what_lies_between_two_steps_is_kept_and_how_much_of_it_the_device_idled(
    trace: TraceBuilder, stored: Callable
) -> None:
    """The kernel of the first step ends 35 us into the 50 us between: 15 us are exposed."""
    for start in (0, 100, 200):
        trace.add_annotation("step[DECODE bs=2]", start, 50)
        trace.add_launch("kernel", start + 10, 70, start + 1)
    ask = stored(trace)
    assert ask("SELECT period_ns, between_ns, between_exposed_ns FROM steps ORDER BY step_id") == [
        (100_000, 50_000, 15_000),
        (100_000, 50_000, 15_000),
        (None, None, None),
    ]
    # Of 150 us on the host three times 15 passed before the kernel began.
    assert ask(
        "SELECT phase, batch, steps, host_ns, device_ns, period_ns, between_ns, exposed_ns, "
        "between_exposed_ns, overlap FROM step_groups"
    ) == [("decode", 2, 3, 50_000, 70_000, 100_000, 50_000, 45_000, 30_000, 0.7)]


def test_decode_steps_of_two_batches_are_two_groups(trace: TraceBuilder, stored: Callable) -> None:
    for number, batch in enumerate((1, 64, 1)):
        trace.add_annotation(f"step[DECODE bs={batch}]", 100 * number, 20 + batch)
    ask = stored(launches(trace, 10, 110, 210))
    assert ask("SELECT batch, steps, host_ns FROM step_groups ORDER BY batch") == [
        (1, 2, 21_000),
        (64, 1, 84_000),
    ]


def test_a_prefill_of_sglang_is_the_engines_step_not_the_trace(
    shared_dir: Path, stored: Callable
) -> None:
    ask = stored(
        shared_dir / "traces" / "next" / "serving" / "mi300-sglang-extend-qwen3-8b.json.gz"
    )
    assert ask("SELECT phase, engine, ctx_reqs, ctx_tokens, end_ns - start_ns FROM steps") == [
        ("prefill", "sglang", 15, 15_360, 28_915_862)
    ]
    assert ask("SELECT outer_name LIKE 'execute_%' FROM steps") == [(True,)]


@pytest.mark.parametrize(
    ("file", "phase", "engine"),
    [
        ("b200-eager-vllm", "prefill", "vllm"),
        ("mi300-sglang-decode-graph-replay", "decode", "sglang"),
        ("mi300-vllm-full-graph-replay", "decode", "vllm"),
        ("mi300-vllm-piecewise-graph-replay", "mixed", "vllm"),
        ("mi300-vllm-full-graph-capture", "trace", None),
        ("mi300-vllm-piecewise-graph-capture", "trace", None),
    ],
)
def test_recordings_of_serving_engines_have_the_engines_steps(
    shared_dir: Path, stored: Callable, file: str, phase: str, engine: str | None
) -> None:
    ask = stored(shared_dir / "traces" / f"{file}.json.gz")
    assert ask("SELECT phase, engine FROM steps") == [(phase, engine)]
    assert ask("SELECT batch = ctx_reqs + gen_reqs FROM steps") == [(True if engine else None,)]
