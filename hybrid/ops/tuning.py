"""Which tile or algorithm a product takes: measured choices for known shapes, a rule for others.

The choices are data: `tuning_h200.json`, measured on an NVIDIA H200 in bf16 and written by
`benchmarks/hybrid_tune.py`. Times in it (us, TB/s) are for who reads it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

H200 = Path(__file__).with_name("tuning_h200.json")


class GemvTile(NamedTuple):
    """Of a matrix-vector product: rows a program, columns a step, warps, prefetch depth."""

    rows: int
    columns: int
    warps: int
    depth: int


class RowTile(NamedTuple):
    """Of the Triton product of a prompt's rows: rows, columns, depth, warps, pipeline stages."""

    rows: int
    columns: int
    depth: int
    warps: int
    stages: int


class AttentionTile(NamedTuple):
    """Of a prompt's attention: query rows, key rows, warps, pipeline stages."""

    queries: int
    keys: int
    warps: int
    stages: int


class Ranked(NamedTuple):
    """An algorithm of cuBLASLt: its rank among those offered for `source` rows, and in how many
    parts the product is left for the norm behind it."""

    source: int
    rank: int
    parts: int = 1


@dataclass
class Tuning:
    """Measured choices. Who measures replaces them.

    Attributes:
        gemv_tiles: By (kind, outputs, inputs).
        row_tiles: By (row class, outputs, inputs); without one, the library's product.
        attention_tiles: (most rows, tile), fewest rows first; beyond, the library's attention.
        cublaslt_version: The one that `ranks` were measured with; of another nothing is known.
        ranks: By (outputs, inputs), then rows, where one is at least 2 % faster than torch's
            choice, the norm that adds the result included.
    """

    gemv_tiles: dict[tuple[str, int, int], GemvTile]
    row_tiles: dict[tuple[int, int, int], RowTile]
    attention_tiles: tuple[tuple[int, AttentionTile], ...]
    cublaslt_version: int
    ranks: dict[tuple[int, int], dict[int, Ranked]]

    @classmethod
    def load(cls, path: Path = H200) -> Tuning:
        """Return the choices in a file that `benchmarks/hybrid_tune.py` wrote."""
        document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return cls(
            gemv_tiles={
                (one["kind"], one["outputs"], one["inputs"]): GemvTile(*one["tile"])
                for one in document["gemv"]
            },
            row_tiles={
                (one["rows"], one["outputs"], one["inputs"]): RowTile(*one["tile"])
                for one in document["rows"]
            },
            attention_tiles=tuple(
                (one["rows"], AttentionTile(*one["tile"])) for one in document["attention"]
            ),
            cublaslt_version=document["cublaslt_version"],
            ranks={
                (one["outputs"], one["inputs"]): {
                    rows: Ranked(*choice) for rows, *choice in one["choices"]
                }
                for one in document["ranks"]
            },
        )

    def gemv(self, kind: str, outputs: int, inputs: int) -> GemvTile:
        """Return the tile of a matrix-vector product."""
        known = self.gemv_tiles.get((kind, outputs, inputs))
        return known or gemv_rule(kind, outputs, inputs)

    def rows(self, count: int, outputs: int, inputs: int) -> RowTile | None:
        """Return the tile of the Triton product for `count` rows, or None for the library's."""
        return self.row_tiles.get((row_class(count), outputs, inputs))

    def attention(self, rows: int, head_dim: int) -> AttentionTile | None:
        """Return the tile of prompt attention, or None for the library's."""
        if head_dim not in (32, 64, 128):
            return None
        for most, tile in self.attention_tiles:
            if rows <= most:
                return tile
        return None


@lru_cache
def gemv_rule(kind: str, outputs: int, inputs: int) -> GemvTile:
    """Return the tile of a matrix-vector product whose shape was not measured."""
    columns = 512 if inputs >= 1024 else 256
    if kind in ("swiglu", "experts"):
        return GemvTile(4, columns, 4, 1)
    # Enough programs for several on each of 132 multiprocessors.
    rows = 8 if outputs >= 8192 else 4 if outputs >= 2048 else 2
    return GemvTile(rows, columns, 4, 1)


def row_class(rows: int) -> int:
    """Return the row count that stands for `rows` in the table; 0 where none does."""
    for size in (16, 32, 64, 128):
        if rows <= size:
            return size
    return 0
