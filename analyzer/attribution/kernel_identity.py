"""Kernel identities: which executions are the same kernel, over all traces of a run.

Two executions are the same kernel if name, launch configuration, and the op with its shapes agree.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np

from analyzer.attribution import classification, kernel_families
from analyzer.attribution.events import DEVICE_KINDS, LinkedTrace
from analyzer.attribution.intervals import Ints, ordinals
from analyzer.trace.columns import launch_config


@dataclass(frozen=True)
class KernelIdentity:
    """One kernel of a run.

    Attributes:
        kernel_id: Ordinal within the run.
        name_id, op_name_id, shape_id: Ordinals of texts within the run; None if there is none.
        grid, block, shared_memory, registers: As of `trace.columns.LaunchConfig`.
        op, shape: The texts of `op_name_id` and `shape_id`.
    """

    kernel_id: int
    name_id: int
    clean_name: str
    family: str
    is_library_paper: bool
    is_library_evidence: bool
    grid: str | None
    block: str | None
    shared_memory: int | None
    registers: int | None
    op_name_id: int | None
    shape_id: int | None
    op: str | None
    shape: str | None


class KernelIdentities:
    """The kernel identities of a run, in order of their ids."""

    def __init__(self) -> None:
        self.all: list[KernelIdentity] = []
        self._known: dict[tuple[int, str, int, int], int] = {}

    def add(self, linked: LinkedTrace, name_ids: Ints, shape_ids: Ints) -> Ints:
        """Return the kernel id of each device event of a trace; -1 for copies and memsets.

        Args:
            name_ids, shape_ids: The run's ordinal of each of the trace's strings.
        """
        device, strings = linked.device, linked.trace.strings
        result = np.full(len(device.start), -1, np.int64)
        kernels = np.flatnonzero(device.kind == DEVICE_KINDS.index("kernel"))
        if not len(kernels):
            return result
        name, config = device.name[kernels], device.config[kernels]
        op_name, shape = _ops_of(linked, kernels)
        distinct, first = _distinct(name, config, op_name, shape)
        columns = (name[first], config[first], op_name[first], shape[first])
        rows = zip(*(cast("list[int]", column.tolist()) for column in columns), strict=True)
        ids = [self._id(strings, name_ids, shape_ids, *row) for row in rows]
        result[kernels] = np.array(ids, np.int64)[distinct]
        return result

    def _id(
        self,
        strings: Sequence[str],
        name_ids: Ints,
        shape_ids: Ints,
        name: int,
        config: int,
        op: int,
        shape: int,
    ) -> int:
        """The kernel id of four string ids of a trace; a new one if the run has not seen it."""
        key = (
            int(name_ids[name]),
            strings[config] if config >= 0 else "",
            int(name_ids[op]) if op >= 0 else -1,
            int(shape_ids[shape]) if shape >= 0 else -1,
        )
        if key not in self._known:
            self._known[key] = len(self.all)
            op_text = strings[op] if op >= 0 else None
            shape_text = strings[shape] if shape >= 0 else None
            self.all.append(_identity(len(self.all), key, strings[name], op_text, shape_text))
        return self._known[key]


def _ops_of(linked: LinkedTrace, kernels: Ints) -> tuple[Ints, Ints]:
    """String ids of name and shapes of each kernel's op: the captured one's of a graph replay."""
    device, ops = linked.device, linked.ops
    op = device.op[kernels]
    has = op >= 0
    own = np.full(len(kernels), -1, np.int64)
    own_shape = np.array(own)
    own[has] = ops.name[op[has]]
    own_shape[has] = ops.shape[op[has]]
    replayed = device.replay_op[kernels]
    captured = replayed >= 0
    return (
        np.where(captured, replayed, own),
        np.where(captured, device.replay_shape[kernels], own_shape),
    )


def _distinct(key: Ints, *columns: Ints) -> tuple[Ints, Ints]:
    """The ordinal of each distinct row of columns, and the first row that has it."""
    for column in columns:
        values, rank = ordinals(column)
        _, key = ordinals(key * len(values) + rank)
    first = np.zeros(int(key.max()) + 1, np.int64)
    first[key[::-1]] = np.arange(len(key))[::-1]
    return key, first


def _identity(
    kernel_id: int,
    key: tuple[int, str, int, int],
    name: str,
    op: str | None,
    shape: str | None,
) -> KernelIdentity:
    name_id, config, op_name_id, shape_id = key
    launched = launch_config(config)
    return KernelIdentity(
        kernel_id=kernel_id,
        name_id=name_id,
        clean_name=classification.clean_name(name),
        family=kernel_families.kernel_family(name),
        is_library_paper=classification.is_library_paper(name),
        is_library_evidence=classification.is_library_evidence(name),
        grid=launched.grid,
        block=launched.block,
        shared_memory=launched.shared_memory,
        registers=launched.registers,
        op_name_id=op_name_id if op_name_id >= 0 else None,
        shape_id=shape_id if shape_id >= 0 else None,
        op=op,
        shape=shape,
    )
