"""Products of a prompt's rows: by cuBLASLt with a measured algorithm, by torch, or by Triton."""

from __future__ import annotations

from copy import copy

import torch
from torch import Tensor

from hybrid.model.weights import Linear
from hybrid.state.buffers import Buffers

from . import kernels
from .cublaslt import CublasLt
from .tuning import Ranked, Tuning


class RowProducts:
    """out_TN = a_TK @ weight_NK.T (+ bias_N), each shape the way that was measured fastest.

    Attributes:
        lt: cuBLASLt, or None.
        ranks: The measured algorithms, if `lt` is of the version that they are for.
    """

    def __init__(self, tuning: Tuning, lt: CublasLt | None) -> None:
        self.tuning, self.lt = tuning, lt
        known = lt is not None and lt.version == tuning.cublaslt_version
        self.ranks = tuning.ranks if known else {}

    def clone_for_stream(self) -> RowProducts:
        """Return these products for another stream, which may run at the same time."""
        twin = copy(self)
        twin.lt = self.lt.clone_for_stream() if self.lt is not None else None
        return twin

    def delta(self, b: Buffers, a_TK: Tensor, linear: Linear, rows: int) -> int:
        """Leave a product for the next norm to add: in delta_TD, or in parts. Return how many."""
        ranked = self._ranked(rows, linear)
        if ranked is None or ranked.parts == 1:
            self.linear(a_TK, linear, b.delta_TD[:rows])
            return 1
        assert self.lt is not None
        out_PTN = b.parts_PTD[: ranked.parts, :rows]
        self.lt.product(a_TK, linear.weight_NK, out_PTN, ranked.rank, ranked.source)
        return ranked.parts

    def linear(self, a_TK: Tensor, linear: Linear, out_TN: Tensor) -> None:
        """Write the product to `out_TN`."""
        rows = a_TK.shape[0]
        outputs, width = linear.weight_NK.shape
        tile = self.tuning.rows(rows, outputs, width)
        if tile is None:
            self._library(a_TK, linear, out_TN)
            return
        block_m, block_n, block_k, warps, stages = tile
        kernels.linear_rows[(kernels.cdiv(outputs, block_n), kernels.cdiv(rows, block_m))](
            a_TK,
            linear.weight_NK,
            linear.bias_N if linear.bias_N is not None else a_TK,
            out_TN,
            rows,
            outputs,
            width,
            BIAS=linear.bias_N is not None,
            BM=block_m,
            BN=block_n,
            BK=block_k,
            num_warps=warps,
            num_stages=stages,
        )

    def _library(self, a_TK: Tensor, linear: Linear, out_TN: Tensor) -> None:
        if linear.bias_N is not None:
            torch.addmm(linear.bias_N, a_TK, linear.weight_NK.t(), out=out_TN)
            return
        ranked = self._ranked(a_TK.shape[0], linear)
        if ranked is None or ranked.parts > 1 or self.lt is None:
            torch.mm(a_TK, linear.weight_NK.t(), out=out_TN)
        else:
            self.lt.product(a_TK, linear.weight_NK, out_TN, ranked.rank, ranked.source)

    def _ranked(self, rows: int, linear: Linear) -> Ranked | None:
        if self.lt is None or linear.bias_N is not None:
            return None
        outputs, width = linear.weight_NK.shape
        if self.tuning.rows(rows, outputs, width) is not None:
            return None
        return self.ranks.get((outputs, width), {}).get(rows)
