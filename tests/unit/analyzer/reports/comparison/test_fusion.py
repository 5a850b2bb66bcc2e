"""When a comparison says that kernels were fused, and when it cannot know and says nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from analyzer import queries
from analyzer.ingest import ingest
from analyzer.reports import comparison
from analyzer.reports.comparison.fusion import MOST_OF_AN_OP, Fusions, Kernels, fusions, listed
from tests.support.tracebuilder import TraceBuilder

OPS = ("aten::add", "aten::mul", "aten::native_layer_norm", "aten::norm", "aten::view")
EAGER = (
    Kernels("elementwise<Add>", "elementwise", "aten::add", 3),
    Kernels("elementwise<Mul>", "elementwise", "aten::mul", 3),
)


def triton(ops: str, count: float) -> Kernels:
    name = f"triton_poi_fused_{ops}_0"
    return Kernels(name, name, name, count)


def fused(*other: Kernels, base: tuple[Kernels, ...] = EAGER) -> Fusions:
    return fusions(base, other, OPS)


def test_a_kernel_that_names_two_ops_whose_kernels_went_is_fused():
    found = fused(triton("add_mul", 3))
    assert found.ops == {"triton_poi_fused_add_mul_0": ("aten::add", "aten::mul")}
    assert found.kernels["aten::mul"] == ("triton_poi_fused_add_mul_0",)


def test_one_named_op_is_another_kernel_for_it_not_a_fusion():
    assert not fused(triton("add_view", 3)).ops


def test_a_named_op_whose_kernels_all_stayed_is_not_fused():
    assert not fused(*EAGER, triton("add_mul", 3)).ops


def test_kernels_that_partly_stayed_count_for_those_that_went():
    kept = tuple(Kernels(k.name, k.clean_name, k.op, 1) for k in EAGER)
    assert fused(*kept, triton("add_mul", 2)).ops
    assert not fused(*kept, triton("add_mul", 3)).ops


def test_more_fused_kernels_than_kernels_that_went_is_not_known():
    assert not fused(triton("add_mul", 4)).ops


def test_so_many_kernels_gone_that_a_name_cannot_speak_for_them_is_not_known():
    """Twenty copies that a model no longer makes are not in the one kernel that makes another."""
    for times, known in ((MOST_OF_AN_OP, True), (MOST_OF_AN_OP + 1, False)):
        base = tuple(Kernels(k.name, k.clean_name, k.op, times) for k in EAGER)
        assert bool(fused(triton("add_mul", 1), base=base).ops) is known


def test_a_new_kernel_of_its_own_may_have_replaced_an_op_so_nothing_is_said():
    assert not fused(triton("add_mul", 3), Kernels("vectorized", "v", "aten::add", 1)).ops


def test_a_kernel_that_the_base_has_too_is_not_new():
    both = triton("add_mul", 3)
    assert not fused(both, base=(*EAGER, both)).ops


def test_a_kernel_without_a_list_of_ops_is_not_fused_whatever_went():
    assert not fused(Kernels("my_add_mul", "my_add_mul", None, 3)).ops


def test_kernels_of_a_graph_without_ops_are_not_known():
    base = tuple(Kernels(k.name, k.clean_name, None, k.count) for k in EAGER)
    assert not fused(triton("add_mul", 3), base=base).ops


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("triton_per_fused_add_native_layer_norm_view_6", {"add", "native_layer_norm", "view"}),
        ("triton_poi_fused_native_layer_norm_0", {"native_layer_norm"}),
        ("triton_poi_fused_addmm_0", set()),
        ("triton_poi_fused_add_add_mul_3", {"add", "mul"}),
        ("fused_mul_add_0", {"mul", "add"}),
        ("triton_poi_0", set()),
        ("confused_add_mul", set()),
        ("", set()),
    ],
)
def test_ops_are_read_at_whole_words_the_longest_first(name, expected):
    assert listed(name, ["add", "mul", "norm", "native_layer_norm", "view", ""]) == expected


def test_an_inplace_op_is_spelled_without_its_underscore():
    base = tuple(Kernels(k.name, k.clean_name, f"{k.op}_", k.count) for k in EAGER)
    found = fusions(base, [triton("add_mul", 3)], ["aten::add_", "aten::mul_"])
    assert found.ops["triton_poi_fused_add_mul_0"] == ("aten::add_", "aten::mul_")


def compared(tmp_path: Path, base: list[tuple[str, str]], other: list[tuple[str, str]]):
    """The comparison of two traces, each a launch and a kernel for every (op, kernel)."""
    store = tmp_path / "store.duckdb"
    for name, pairs in (("base", base), ("other", other)):
        trace = TraceBuilder()
        for i, (op, kernel) in enumerate(pairs):
            trace.add_op(op, 100 * i, 50)
            trace.add_call("cudaLaunchKernel", 100 * i + 10, 5, correlation=i + 1)
            trace.add_kernel(kernel, 100 * i + 60, 5, correlation=i + 1)
        ingest(trace.write(tmp_path / f"{name}.json"), store)
    with queries.connect(store) as connection:
        ids = [queries.find_run(connection, name) for name in ("base", "other")]
        (pair,) = comparison.compare(connection, ids).pairs
    return pair


def test_a_comparison_says_fused_of_both_sides_and_appeared_and_vanished_of_the_rest(tmp_path):
    pair = compared(
        tmp_path,
        [("aten::add", "add_k"), ("aten::mul", "mul_k"), ("aten::mm", "gemm_a")],
        [("triton_poi_fused_add_mul_0", "triton_poi_fused_add_mul_0"), ("aten::mm", "gemm_b")],
    )
    said = {row.kernel: (row.status, row.fused) for row in pair.kernels}
    name = "triton_poi_fused_add_mul_0"
    assert said == {
        "add_k": ("fused", [name]),
        "mul_k": ("fused", [name]),
        name: ("fused", ["aten::add", "aten::mul"]),
        "gemm_a": ("vanished", []),
        "gemm_b": ("appeared", []),
    }
    ops = {row.op: row.status for row in pair.ops}
    assert ops == {"aten::add": "fused", "aten::mul": "fused", name: "fused", "aten::mm": "both"}


def test_a_kernel_name_that_two_ops_share_is_fused_only_if_both_are(tmp_path):
    pair = compared(
        tmp_path,
        [("aten::add", "shared"), ("aten::mul", "mul_k"), ("aten::sin", "shared")],
        [("triton_poi_fused_add_mul_0", "triton_poi_fused_add_mul_0")],
    )
    said = {row.kernel: row.status for row in pair.kernels}
    assert (said["mul_k"], said["shared"]) == ("fused", "vanished")


def test_of_the_samples_compile_fuses_and_graph_does_not(samples_dir: Path, tmp_path: Path):
    store = tmp_path / "store.duckdb"
    names = [f"gpt2-prefill-bs1-s512{suffix}" for suffix in ("", "-compile", "-graph")]
    ingest([samples_dir / name for name in names], store, jobs=1)
    with queries.connect(store) as connection:
        ids = [queries.find_run(connection, name) for name in names]
        compiled, graph = comparison.compare(connection, ids).pairs
    ops = {row.op: row.status for row in compiled.ops}
    assert ops["aten::native_layer_norm"] == ops["aten::pow"] == ops["aten::mul"] == "fused"
    # 24 of them are gone, and one fused kernel names `cat`: it cannot have taken them all.
    assert ops["aten::cat"] == ops["aten::gather"] == "vanished"
    assert ops["aten::mm"] == "both"
    assert not [row for row in graph.kernels if row.status == "fused"]
