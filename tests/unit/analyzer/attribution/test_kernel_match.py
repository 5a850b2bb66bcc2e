"""Tiers of matching a traced kernel to a replayed one."""

from __future__ import annotations

from dataclasses import replace

from analyzer.attribution.kernel_match import Match, Replayed, Traced, match

OP = ("aten::mm", "[[2, 2]]", "['float']", "[[2, 1]]", "['']")


def traced(name: str, **changes: object) -> Traced:
    base = Traced(name, "[1, 1, 1]", "[32, 1, 1]", 0, *OP, duration_ns=1000)
    return replace(base, **changes)  # type: ignore[arg-type]


def replayed(name: str | None, **changes: object) -> Replayed:
    base = Replayed(
        *OP,
        name=name,
        clean_name=name,
        position=0,
        grid="[1, 1, 1]",
        block="[32, 1, 1]",
        shared_memory=0,
        launch_api="cudaLaunchKernel",
        occurrences=10,
        exec_ns=[1000],
    )
    return replace(base, **changes)  # type: ignore[arg-type]


def one(kernel: Traced, *replays: Replayed) -> Match:
    (found,) = match([kernel], replays)
    return found


def test_equal_names_match_exactly() -> None:
    assert one(traced("gemm"), replayed("other"), replayed("gemm")) == Match("exact", 1, True, None)


def test_of_equal_names_the_one_with_equal_configuration_wins() -> None:
    far = replayed("gemm", exec_ns=[1_000_000])
    near = replayed("gemm", grid="[8, 1, 1]", exec_ns=[1000])
    assert one(traced("gemm"), near, far).replay == 1


def test_of_equal_configurations_the_nearest_duration_wins() -> None:
    replays = [replayed("gemm", exec_ns=[ns]) for ns in (90_000, 1_100, 5_000)]
    assert one(traced("gemm"), *replays).replay == 1


def test_another_configuration_is_flagged() -> None:
    found = one(traced("gemm"), replayed("gemm", block="[64, 1, 1]"))
    assert (found.tier, found.same_configuration) == ("exact", False)


def test_a_name_inside_the_other_is_a_substring_match() -> None:
    assert one(traced("ns::gemm"), replayed("gemm")).tier == "substring"
    assert one(traced("gemm"), replayed("ns::gemm")).tier == "substring"


def test_an_exact_match_goes_before_a_substring() -> None:
    assert one(traced("gemm"), replayed("gemm_long"), replayed("gemm")).replay == 1


def test_else_the_most_frequent_kernel_of_the_op_stands_in() -> None:
    found = one(traced("zz"), replayed("a", occurrences=3), replayed("b", occurrences=9))
    assert (found.tier, found.replay) == ("most_frequent", 1)


def test_kernels_of_another_op_never_match() -> None:
    found = one(traced("gemm"), replayed("gemm", op="aten::bmm"))
    assert found == Match("unmatched", None, None, "no replay of this op call")


def test_kernels_of_other_shapes_never_match() -> None:
    assert one(traced("gemm"), replayed("gemm", dims="[[9]]")).tier == "unmatched"


def test_other_scalars_match_where_none_are_equal() -> None:
    assert one(traced("gemm"), replayed("gemm", concrete="['7']")).tier == "exact"
    both = (replayed("gemm", concrete="['7']", exec_ns=[1000]), replayed("gemm", exec_ns=[9000]))
    assert one(traced("gemm"), *both).replay == 1


def test_an_op_that_could_not_be_replayed_keeps_its_reason() -> None:
    found = one(traced("gemm"), replayed(None, reason="no schema"))
    assert found == Match("unmatched", None, None, "no schema")


def test_a_replay_that_launched_nothing_says_so() -> None:
    found = one(traced("gemm"), replayed(None))
    assert found.reason == "the replay launched nothing"


def test_a_launch_without_op_is_unmatched() -> None:
    found = one(traced("gemm", op=None), replayed("gemm"))
    assert found == Match("unmatched", None, None, "the launch has no op")
