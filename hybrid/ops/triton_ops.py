"""The operations as Triton kernels: launches of a prompt's rows, beside those of one token.

They are the JIT side, in graphs and outside of them.
"""

from __future__ import annotations

from copy import copy

import torch
from torch import Tensor

from hybrid.model.spec import Activation, Spec
from hybrid.model.weights import Experts, Linear, Norm, Weights
from hybrid.state import control
from hybrid.state.buffers import Buffers
from hybrid.state.kv_cache import KVCache

from . import kernels
from .cublaslt import CublasLt
from .products import RowProducts
from .reference import prepared_heads
from .triton_decode import TritonDecode
from .tuning import Tuning

_LOG2_E = 1.4426950408889634


class TritonOps(TritonDecode):
    """`Ops` on CUDA; products of a prompt's rows are those of `products`."""

    def __init__(
        self,
        pdl: bool,
        mapped: bool = True,
        lt: CublasLt | None = None,
        tuning: Tuning | None = None,
    ) -> None:
        """Take the switches of `TritonDecode`.

        Args:
            lt: cuBLASLt, for products whose algorithm was measured; None: torch's choice.
            tuning: Measured choices; None: those that come with the package.
        """
        super().__init__(pdl, mapped, tuning or Tuning.load())
        self.products = RowProducts(self.tuning, lt)

    def clone_for_stream(self) -> TritonOps:
        twin = copy(self)
        twin.products = self.products.clone_for_stream()
        return twin

    def upload(self, b: Buffers, rows: int) -> None:
        """Copy the staged request to the device, where the host's memory is mapped by a kernel.

        A copy node in a graph hands over from one engine of the device to another; a kernel that
        reads the bytes itself does not.
        """
        if not self.mapped:
            b.upload(rows)
            return
        count = control.IDS + rows
        kernels.upload[(kernels.cdiv(count, 512),)](
            b.control, b.staging, count, BLOCK=512, num_warps=4
        )

    def embed_rows(self, b: Buffers, weights: Weights, rows: int) -> None:
        width = b.x_TD.shape[1]
        learned = weights.position_PD
        block = min(1024, kernels.next_power_of_2(width))
        kernels.embed[(kernels.cdiv(width, block), rows)](
            b.x_TD,
            b.control,
            weights.embedding_VD,
            learned if learned is not None else weights.embedding_VD,
            width,
            0 if learned is None else learned.shape[0] - 1,
            ROWS=True,
            LEARNED=learned is not None,
            BLOCK=block,
            PDL=False,
        )

    def norm_rows(
        self,
        b: Buffers,
        norm: Norm,
        eps: float,
        rows: int,
        parts: int,
    ) -> None:
        width = b.x_TD.shape[1]
        kernels.norm_rows[(rows,)](
            b.x_TD,
            b.parts_PTD if parts > 1 else b.delta_TD,
            b.parts_PTD.stride(0),
            norm.weight_K,
            norm.bias_K if norm.bias_K is not None else norm.weight_K,
            b.normed_TD,
            width,
            eps,
            PARTS=parts,
            LAYER=norm.bias_K is not None,
            BLOCK=kernels.next_power_of_2(width),
            PDL=self.pdl,
            num_warps=4 if width <= 2048 else 8 if rows <= 128 else 16,
            **self._launch,
        )

    def delta_rows(self, b: Buffers, a_TK: Tensor, linear: Linear, rows: int) -> int:
        return self.products.delta(b, a_TK, linear, rows)

    def linear_rows(self, a_TK: Tensor, linear: Linear, out_TN: Tensor) -> None:
        self.products.linear(a_TK, linear, out_TN)

    def attend_rows(
        self, b: Buffers, cache: KVCache, weights: Weights, index: int, spec: Spec, rows: int
    ) -> Tensor:
        k_HSD, v_HSD = cache.layer(index)
        layer = weights.layers[index]
        if spec.qk_norm == "full":
            width = max(spec.attention_width, spec.kv_heads * spec.head_dim)
            # The sum of squares spans all heads, and other programs rotate in place: first this.
            kernels.full_norm_rows[(rows, 2)](
                b.qkv_TN,
                layer.q_norm,
                layer.k_norm,
                spec.eps,
                Q=spec.attention_width,
                K=spec.kv_heads * spec.head_dim,
                WIDTH=spec.qkv_width,
                BLOCK=kernels.next_power_of_2(width),
            )
        tile = self.tuning.attention(rows, spec.head_dim)
        norms = (
            layer.q_norm if layer.q_norm is not None else b.x_D,
            layer.k_norm if layer.k_norm is not None else b.x_D,
        )
        tables = (
            weights.cos_PH if weights.cos_PH is not None else b.x_D,
            weights.sin_PH if weights.sin_PH is not None else b.x_D,
        )
        block = 8 if spec.kv_heads % 8 == 0 and spec.heads % 8 == 0 else 1
        # For the library's attention queries are rotated too; ours rotates them itself.
        first = 0 if tile is None else spec.heads
        kernels.rotate_rows[(rows, (spec.heads + 2 * spec.kv_heads - first) // block)](
            b.qkv_TN,
            k_HSD,
            v_HSD,
            *tables,
            *norms,
            k_HSD.shape[1],
            spec.eps,
            HEADS=spec.heads,
            KV_HEADS=spec.kv_heads,
            FIRST=first,
            DIM=spec.head_dim,
            DIM_P=kernels.next_power_of_2(spec.head_dim),
            ROPE=weights.cos_PH is not None,
            HEAD_NORM=spec.qk_norm == "head",
            BLOCK=block,
            PDL=self.pdl,
            num_warps=4 if block == 8 else 1,
            **self._launch,
        )
        if tile is None:
            return _flash(b, spec, rows)
        block_m, block_n, warps, stages = tile
        kernels.attend_rows[(kernels.cdiv(rows, block_m), spec.heads)](
            b.qkv_TN,
            k_HSD,
            v_HSD,
            *tables,
            norms[0],
            b.attention_TN,
            rows,
            k_HSD.shape[1],
            spec.head_dim**-0.5 * _LOG2_E,
            spec.eps,
            HEADS=spec.heads,
            KV_HEADS=spec.kv_heads,
            HALF=spec.head_dim // 2,
            ROPE=weights.cos_PH is not None,
            HEAD_NORM=spec.qk_norm == "head",
            BM=block_m,
            BN=block_n,
            PDL=self.pdl,
            num_warps=warps,
            num_stages=stages,
            **self._launch,
        )
        return b.attention_TN[:rows]

    def activate_rows(self, up_TF: Tensor, out_TF: Tensor, kind: Activation) -> None:
        rows, inner = out_TF.shape
        block = min(1024, kernels.next_power_of_2(inner))
        kernels.activate_rows[(rows, kernels.cdiv(inner, block))](
            up_TF,
            out_TF,
            inner,
            GELU=kind == "gelu",
            BLOCK=block,
            PDL=self.pdl,
            num_warps=4,
            **self._launch,
        )

    def moe_rows(self, b: Buffers, experts: Experts, spec: Spec, rows: int) -> None:
        top, count = spec.experts_per_token, spec.experts
        logits_TE = b.router_TE[:rows]
        kernels.route_rows[(rows,)](
            logits_TE,
            b.route_index_TK,
            b.route_weight_TK,
            logits_TE.shape[1],
            E=count,
            E_P=kernels.next_power_of_2(count),
            TOP=top,
            RENORM=spec.renormalise,
        )
        pairs = rows * top
        block_m = 16 if pairs <= 16 * count else 64
        blocks = kernels.cdiv(pairs, block_m) + min(count, pairs)
        pair_R, expert_G = align(b.route_index_TK[:rows].reshape(-1), count, block_m, blocks)
        inner, width = spec.expert_inner, spec.hidden
        block_n, block_k = 64, 64
        for up in (True, False):
            outputs, depth = (inner, width) if up else (width, inner)
            kernels.experts_rows[(kernels.cdiv(outputs, block_n), blocks)](
                b.normed_TD if up else b.expert_inner_PF,
                experts.up_EFD if up else experts.down_EDF,
                b.expert_inner_PF if up else b.expert_out_PD,
                pair_R,
                expert_G,
                b.route_weight_TK,
                outputs,
                depth,
                E=count,
                TOP=top,
                UP=up,
                BM=block_m,
                BN=block_n,
                BK=block_k,
                num_warps=4,
                num_stages=3,
            )
        block = min(1024, kernels.next_power_of_2(width))
        kernels.sum_pairs[(rows, kernels.cdiv(width, block))](
            b.expert_out_PD, b.delta_TD, width, TOP=top, BLOCK=block
        )

    def gate_rows(self, b: Buffers, y_TD: Tensor, spec: Spec, rows: int) -> None:
        width = spec.hidden
        block = min(1024, kernels.next_power_of_2(width))
        kernels.gate_rows[(rows, kernels.cdiv(width, block))](
            b.delta_TD, y_TD, b.router_TE, width, spec.experts, BLOCK=block
        )

    def take_row(self, b: Buffers, attention_TN: Tensor) -> None:
        width, attention = b.x_D.numel(), b.attention_N.numel()
        block = 1024
        kernels.take_row[(kernels.cdiv(max(width, attention), block),)](
            b.x_TD, attention_TN, b.control, b.x_D, b.attention_N, width, attention, BLOCK=block
        )


def _flash(b: Buffers, spec: Spec, rows: int) -> Tensor:
    """Causal attention over the rotated qkv_TN by the library's kernel, (T, H * D)."""
    q, k, v = prepared_heads(b, spec, rows)
    # Called by its own name: scaled_dot_product_attention chooses a backend by global flags,
    # and cuDNN's plans are built for each thread and length.
    out = torch.ops.aten._scaled_dot_product_flash_attention(
        q, k, v, 0.0, True, False, scale=spec.head_dim**-0.5
    )[0]
    return out[0].transpose(0, 1).reshape(rows, spec.attention_width)


def align(expert_P: Tensor, experts: int, block: int, blocks: int) -> tuple[Tensor, Tensor]:
    """Sort (token, expert) pairs by expert into blocks of one expert each, on the device.

    Args:
        expert_P: int32 expert of each pair.
        block, blocks: Rows of a block; blocks in the worst case.

    Returns:
        Pair of each row, int32 (blocks * block), -1 for padding; expert of each block, int32
        (blocks), `experts` for blocks that are not used. Capture-safe: sizes are fixed.
    """
    device = expert_P.device
    pairs = expert_P.numel()
    flat_P = expert_P.long()
    count_E = torch.zeros(experts, dtype=torch.int64, device=device)
    count_E.scatter_add_(0, flat_P, torch.ones_like(flat_P))
    sorted_P, order_P = torch.sort(flat_P, stable=True)
    used_E = (count_E + block - 1) // block
    end_E = torch.cumsum(used_E, 0)
    shift_E = (end_E - used_E) * block - (torch.cumsum(count_E, 0) - count_E)
    row_P = shift_E[sorted_P] + torch.arange(pairs, device=device)
    pair_R = torch.full((blocks * block,), -1, dtype=torch.int32, device=device)
    pair_R.scatter_(0, row_P, order_P.int())
    expert_G = torch.searchsorted(end_E, torch.arange(blocks, device=device), right=True)
    return pair_R, expert_G.int()
