"""What a decode step would take as one persistent kernel, from the products of an eager step.

At batch 1 a token costs one read of the weights and of the cache: the floor. Between two products
stands a barrier of all blocks; what one costs beyond the reading was measured on an H200 with the
kernel of `hybrid/ops/persistent` (docs/decisions/0108). Ours; integer nanoseconds.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median_low
from typing import Any

from analyzer import queries
from analyzer.queries.costs import Step
from analyzer.queries.records import StepProduct
from analyzer.reports.ranks.balance import Balance
from analyzer.store import Connection

# Bytes a nanosecond, reading alone, by GPU; measured by a 4 GB sum.
READ = {"NVIDIA H200": 4390.0}
# Beyond the reading, a product: of LLaMA-2-7B, of Llama-3.2-1B, of GPT-2 (2.43, rounded up).
LEAST_NS, USUAL_NS, MOST_NS = 830, 1840, 2500
_ITEM = {"c10::BFloat16": 2, "c10::Half": 2}
_EXPERTS = ("aten::index_add_", "aten::_grouped_mm", "aten::one_hot")
# Of a layer, beside its attention: q, k and v in one, output, gate and up in one, down.
_PRODUCTS = 4


@dataclass(frozen=True)
class _Work:
    read: int  # bytes
    products: int  # of the kernel, attentions among them


class _NoFloorError(Exception):
    """Why a step has no floor."""


def persistent(connection: Connection, run_id: str, steps: Sequence[Step]) -> Balance:
    """The steps of a phase if each were one kernel; only decode steps of a dense model can be."""
    gpu = queries.run(connection, run_id).gpu
    rate = READ.get(gpu or "")
    if rate is None:
        return Balance(reason=f"no rate of reading was measured on {gpu or 'this device'}")
    own = [step.step_id for step in steps if not step.is_warm_up]
    by_step: dict[int, list[StepProduct]] = {}
    for one in queries.step_products(connection, run_id, own):
        by_step.setdefault(one.step_id, []).append(one)
    try:
        found = [_work(products) for products in by_step.values()]
    except _NoFloorError as reason:
        return Balance(reason=str(reason))
    if not found:
        return Balance(reason="no matrix product is among the operators of these steps")
    read, count = (median_low(c) for c in zip(*((w.read, w.products) for w in found), strict=True))
    floor = round(read / rate)
    return Balance(
        predicted_ns=floor + count * USUAL_NS,
        low_ns=floor,
        high_ns=floor + count * MOST_NS,
        reason=f"{read / 1e9:.2f} GB are read at {rate / 1e3:.2f} TB/s (the lower bound), and "
        f"{count} products cost {LEAST_NS / 1e3:.2f} to {MOST_NS / 1e3:.2f} us beyond it",
    )


def _work(products: list[StepProduct]) -> _Work:
    read = attentions = batched = 0
    for one in products:
        if one.op in _EXPERTS:
            raise _NoFloorError("the step has experts; the persistent kernel is for dense models")
        if one.input_dims is None or one.input_types is None:
            raise _NoFloorError("shapes of operators were not recorded (record_shapes)")
        operands = _operands(one)
        if operands is None:
            continue
        if one.op in ("aten::mm", "aten::addmm"):
            read += one.times * operands[1]
        elif one.op in ("aten::bmm", "aten::baddbmm"):  # attention, product by product
            read += one.times * operands[1]
            batched += one.times
        else:  # keys and values
            read += one.times * (operands[1] + operands[2])
            attentions += one.times
    layers = attentions or batched // 2
    return _Work(read, layers * (_PRODUCTS + 1) + 1)


def _operands(product: StepProduct) -> list[int] | None:
    """Bytes of each operand of a product of one row, without a bias that stands first.

    None for an outer product: the angles of rotary positions, which the kernel has in a table.
    """
    dims: list[list[int]] = json.loads(product.input_dims or "[]")
    kinds: list[Any] = json.loads(product.input_types or "[]")
    first = 1 if product.op in ("aten::addmm", "aten::baddbmm") else 0
    shapes, types = dims[first : first + 3], kinds[first : first + 3]
    if len(shapes) < 2 or len(shapes[0]) < 2:
        raise _NoFloorError(f"{product.op} has shapes {product.input_dims}")
    if shapes[0][-1] == 1:
        return None
    if shapes[0][-2] != 1:
        raise _NoFloorError("a product has several rows; the persistent kernel is for one token")
    item = _ITEM.get(str(types[1]))
    if item is None:
        raise _NoFloorError(f"the weights are {types[1]}; the persistent kernel reads bfloat16")
    return [item * _elements(shape) for shape in shapes]


def _elements(shape: list[int]) -> int:
    count = 1
    for size in shape:
        count *= size
    return count
