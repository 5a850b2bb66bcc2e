"""Which tile a product uses: measured choices for known shapes, a rule for the others.

GEMV: (rows a program, columns a step, warps, prefetch depth). Rows of a prompt: (rows, columns,
depth of a tile, warps, pipeline stages) of the Triton product, or None for cuBLAS.
Measured on an NVIDIA H200 by `benchmarks/hybrid_tune.py`, bf16; see docs/hybrid.md.
"""

from __future__ import annotations

from typing import NamedTuple

# (kind, outputs, inputs) -> (BN, BK, warps, depth)
GEMV: dict[tuple[str, int, int], tuple[int, int, int, int]] = {
    ("store", 12288, 4096): (8, 512, 4, 1),  # 27.6 us, 3.64 TB/s
    ("add", 4096, 4096): (8, 512, 8, 1),  # 9.8 us, 3.41 TB/s
    ("swiglu", 11008, 4096): (4, 1024, 4, 1),  # 47.9 us, 3.77 TB/s
    ("add", 4096, 11008): (8, 512, 8, 1),  # 23.9 us, 3.77 TB/s
    ("store", 32000, 4096): (4, 1024, 4, 0),  # 66.7 us, 3.93 TB/s
    ("store", 3072, 2048): (4, 512, 4, 1),  # 4.7 us, 2.65 TB/s
    ("add", 2048, 2048): (4, 1024, 8, 1),  # 3.9 us, 2.15 TB/s
    ("swiglu", 8192, 2048): (16, 256, 8, 1),  # 18.6 us, 3.60 TB/s
    ("add", 2048, 8192): (4, 1024, 8, 1),  # 9.6 us, 3.49 TB/s
    ("store", 128256, 2048): (8, 512, 4, 0),  # 126.3 us, 4.16 TB/s
    ("store", 2304, 768): (8, 512, 4, 1),  # 2.9 us, 1.21 TB/s
    ("add", 768, 768): (4, 1024, 8, 1),  # 2.0 us, 0.58 TB/s
    ("gelu", 3072, 768): (8, 512, 4, 1),  # 3.5 us, 1.36 TB/s
    ("add", 768, 3072): (2, 2048, 4, 1),  # 3.6 us, 1.33 TB/s
    ("store", 50257, 768): (16, 256, 4, 1),  # 23.5 us, 3.28 TB/s
    ("store", 6144, 2048): (8, 256, 4, 1),  # 8.3 us, 3.04 TB/s
    ("store", 50304, 2048): (16, 256, 8, 1),  # 52.5 us, 3.92 TB/s
}

# (row class, outputs, inputs) -> (BM, BN, BK, warps, stages) or None for cuBLAS
ROWS: dict[tuple[int, int, int], tuple[int, int, int, int, int] | None] = {
    (16, 4096, 4096): (16, 32, 128, 4, 6),  # 11.7 us, cuBLAS 13.7 us
    (32, 4096, 4096): (32, 32, 256, 4, 4),  # 12.9 us, cuBLAS 13.8 us
    (16, 22016, 4096): (16, 32, 256, 4, 4),  # 49.7 us, cuBLAS 50.9 us
    (32, 22016, 4096): (32, 64, 128, 4, 4),  # 50.5 us, cuBLAS 51.9 us
    (16, 4096, 11008): (16, 32, 128, 4, 6),  # 27.0 us, cuBLAS 28.0 us
}


class Ranked(NamedTuple):
    """An algorithm of cuBLASLt: its rank among those offered for `source` rows, and in how many
    parts the product is left for the norm behind it."""

    source: int
    rank: int
    parts: int = 1


# (outputs, inputs) -> rows -> (source, rank, parts), for this version of cuBLASLt, where one is at
# least 2 % faster than torch's choice, the norm that adds the result included.
LT_VERSION = 130100
# fmt: off
RANKS: dict[tuple[int, int], dict[int, tuple[int, ...]]] = {
    (12288, 4096): {
        48: (48, 2), 64: (64, 1), 80: (80, 1), 160: (160, 1), 176: (176, 0), 192: (192, 0),
    },
    (4096, 4096): {
        48: (48, 2), 96: (96, 3), 112: (112, 1), 128: (128, 1), 160: (160, 4), 176: (176, 3),
        208: (208, 3), 224: (224, 3), 240: (240, 3), 272: (272, 3), 288: (288, 1), 336: (336, 3),
        352: (352, 4), 384: (384, 3), 416: (416, 1),
    },
    (22016, 4096): {
        64: (64, 6), 128: (128, 2), 240: (240, 2),
    },
    (4096, 11008): {
        16: (16, 1), 64: (64, 5), 80: (80, 4), 176: (176, 1), 192: (192, 3), 208: (208, 1),
        224: (224, 5), 272: (272, 1), 400: (400, 1), 416: (416, 2),
    },
    (3072, 2048): {
        192: (192, 1), 240: (240, 3), 304: (304, 1), 320: (320, 3), 352: (352, 2), 368: (368, 1),
        384: (384, 3), 400: (400, 5), 416: (416, 2), 448: (448, 2),
    },
    (2048, 2048): {
        64: (64, 2), 96: (96, 1), 128: (128, 1), 208: (208, 6), 496: (496, 1), 512: (512, 1),
    },
    (16384, 2048): {
        128: (128, 3), 160: (160, 2), 272: (272, 1), 288: (288, 1), 304: (304, 1),
    },
    (2048, 8192): {
        128: (128, 2), 144: (144, 4), 176: (176, 6), 192: (192, 1), 208: (208, 2), 224: (224, 7),
        256: (256, 3), 272: (272, 1), 304: (304, 5), 320: (320, 2), 352: (352, 6), 368: (368, 7),
        384: (384, 4), 400: (400, 2), 416: (416, 3), 432: (432, 3), 464: (464, 1), 480: (480, 5),
        496: (496, 1), 512: (512, 1),
    },
    (6144, 2048): {
        16: (16, 1), 32: (32, 1), 48: (48, 1), 64: (64, 5), 112: (112, 2), 176: (176, 2),
        224: (224, 4),
    },
}
# fmt: on

# Query rows, key rows, warps, stages.
AttentionTile = tuple[int, int, int, int]

# Rows up to which our attention of a prompt was measured, and was the faster one everywhere.
ATTENTION_ROWS = 1024


def ranks(version: int) -> dict[tuple[int, int], dict[int, Ranked]]:
    """Return what was measured with a version of cuBLASLt; of another one nothing is known."""
    if version != LT_VERSION:
        return {}
    return {
        shape: {rows: Ranked(*choice) for rows, choice in table.items()}
        for shape, table in RANKS.items()
    }


def attention(rows: int, head_dim: int) -> AttentionTile | None:
    """Return the tile of prompt attention, or None for the library's."""
    if rows > ATTENTION_ROWS or head_dim not in (32, 64, 128):
        return None
    return (32, 64, 4, 2) if rows <= 64 else (64, 64, 4, 3)


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
