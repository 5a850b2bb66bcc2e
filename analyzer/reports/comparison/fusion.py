"""Which kernels of a run do the work of several ops that had kernels of their own in another run?

Told from what kernels say of themselves: compilers name a fused kernel after its ops
(`triton_poi_fused_add_mul_4`). A name alone proves nothing, so the counts must agree; where they do
not, nothing is said. Works on kernels with their counts a step, reads no store.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

_LISTED = re.compile(r"(?:^|_)fused_(\w+)$")
# A name lists an op once, however often the kernel does it: GELU by tanh multiplies four times.
# That more than this of an op went into each kernel is not believed of a name alone.
MOST_OF_AN_OP = 8
_ROUNDING = 1e-6


@dataclass(frozen=True)
class Kernels:
    """Kernels of one name under one op: how many a step."""

    name: str
    clean_name: str
    op: str | None
    count: float


@dataclass(frozen=True)
class Fusions:
    """Each fused kernel's ops of the base, and each such op's fused kernels; by raw kernel name."""

    ops: Mapping[str, tuple[str, ...]]
    kernels: Mapping[str, tuple[str, ...]]


def short(op: str) -> str:
    """An op as kernel names spell it: `aten::add_` is `add`."""
    return op.rpartition("::")[2].rstrip("_")


def listed(clean_name: str, known: Iterable[str]) -> set[str]:
    """The ops that a fused kernel's name lists, of those known; empty if it lists none.

    Longest first, at whole words: `native_layer_norm` is not also a `norm`.

    Args:
        known: Ops as `short` writes them.
    """
    match = _LISTED.search(clean_name)
    if not match:
        return set()
    text = f"_{match[1]}_"
    found: set[str] = set()
    for op in sorted(known, key=lambda name: (-len(name), name)):
        if op and f"_{op}_" in text:
            found.add(op)
            # What stays keeps its borders, so that no new word arises where one was taken out.
            text = text.replace(f"_{op}_", "_|_").replace(f"_{op}_", "_|_")
    return found


def fusions(base: Sequence[Kernels], other: Sequence[Kernels], base_ops: Iterable[str]) -> Fusions:
    """Fused kernels of `other`, and the ops of `base` whose kernels they replace.

    A kernel is fused if the base has none of its name and its name lists two ops or more that are
    covered. An op is covered if its own kernels became fewer by at least the number of kernels
    that list it and at most MOST_OF_AN_OP times that, and no new kernel of its own appeared,
    which might have replaced them as well.

    Args:
        base_ops: Every op name of the base, with kernels or without: the words of the names.
    """
    words = {short(op) for op in base_ops}
    old = {row.name for row in base}
    new = [row for row in other if row.name not in old]
    lists = {row.name: found for row in new if len(found := listed(row.clean_name, words)) > 1}
    before: defaultdict[str, float] = defaultdict(float)
    names: defaultdict[str, set[str]] = defaultdict(set)
    for row in base:
        if row.op is not None:
            before[short(row.op)] += row.count
            names[short(row.op)].add(row.op)
    after: defaultdict[str, float] = defaultdict(float)
    listing: defaultdict[str, float] = defaultdict(float)
    replaced: set[str] = set()
    for row in other:
        if row.name in lists:
            for op in lists[row.name]:
                listing[op] += row.count
        elif row.op is not None:
            after[short(row.op)] += row.count
            if row.name not in old:
                replaced.add(short(row.op))
    covered = {
        op
        for op, count in listing.items()
        if op in before
        and op not in replaced
        and 1 - _ROUNDING <= (before[op] - after[op]) / count <= MOST_OF_AN_OP + _ROUNDING
    }
    ops: dict[str, tuple[str, ...]] = {}
    kernels: defaultdict[str, set[str]] = defaultdict(set)
    for name, found in lists.items():
        own = found & covered
        if len(own) > 1:
            ops[name] = tuple(sorted(full for op in own for full in names[op]))
            for full in ops[name]:
                kernels[full].add(name)
    return Fusions(ops, {op: tuple(sorted(found)) for op, found in kernels.items()})
