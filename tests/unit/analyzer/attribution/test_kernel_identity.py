"""Which executions are the same kernel, over all traces of a run."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from analyzer.attribution.events import LinkedTrace
from analyzer.attribution.kernel_identity import KernelIdentities
from tests.support.tracebuilder import TraceBuilder

Link = Callable[..., LinkedTrace]


def launched(*shapes: list[list[int]], name: str = "gemm", grid: int = 1) -> TraceBuilder:
    """A matrix product of each shape, one kernel each, and a copy."""
    built = TraceBuilder()
    for i, shape in enumerate(shapes):
        built.add_op("aten::mm", 100 * i, 50, **{"Input Dims": shape})
        built.add_call("cudaLaunchKernel", 100 * i + 10, 5, i + 1)
        built.add_kernel(
            name,
            100 * i + 20,
            10,
            i + 1,
            grid=[grid, 1, 1],
            block=[32, 1, 1],
            **{"shared memory": 16, "registers per thread": 8},
        )
    return built.add_kernel("Memcpy HtoD", 900, 5, category="gpu_memcpy")


def add(kernels: KernelIdentities, linked: LinkedTrace) -> list[int]:
    same = np.append(np.arange(len(linked.trace.strings)), -1)
    return kernels.add(linked, same, same).tolist()


def test_kernels_differ_by_the_shapes_of_their_op_and_copies_have_none(linked: Link) -> None:
    kernels = KernelIdentities()
    assert add(kernels, linked(launched([[2, 2]], [[4, 4]], [[2, 2]]))) == [0, 1, 0, -1]
    first = kernels.all[0]
    assert (first.clean_name, first.op, first.family) == ("gemm", "aten::mm", "gemm")
    assert (first.grid, first.block) == ("[1, 1, 1]", "[32, 1, 1]")
    assert (first.shared_memory, first.registers) == (16, 8)


def test_a_kernel_of_a_later_trace_keeps_its_id(linked: Link) -> None:
    kernels = KernelIdentities()
    one = launched([[2, 2]])
    assert add(kernels, linked(one)) == [0, -1]
    assert add(kernels, linked(one)) == [0, -1]
    assert add(kernels, linked(launched([[2, 2]], grid=2))) == [1, -1]
    assert [kernel.kernel_id for kernel in kernels.all] == [0, 1]


def test_a_kernel_without_op_or_configuration_says_so(linked: Link) -> None:
    kernels = KernelIdentities()
    assert add(kernels, linked(TraceBuilder().add_launch("relu", 10, 5, 1))) == [0]
    (kernel,) = kernels.all
    assert (kernel.op, kernel.op_name_id, kernel.shape, kernel.shape_id) == (None,) * 4
    assert (kernel.grid, kernel.block, kernel.shared_memory, kernel.registers) == (None,) * 4
