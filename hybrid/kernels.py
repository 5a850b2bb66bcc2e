# ruff: noqa: SIM108  (a compile-time branch of Triton must stay an if statement)
"""The runtime's operations as Triton kernels: the JIT side, in graphs and outside of them.

Same names, arguments and in-place effects as `reference.py`. A decode step takes five kernels a
dense layer: norm + QKV product; rotary + cache write + attention + its reduction; output product +
residual; norm + gate and up products + activation; down product + residual. The residual stream is
float32; norms are folded into the product that follows (each program sums the squares of the x it
reads anyway). No atomics but arrival counters, so results do not depend on timing.

Programmatic dependent launch (`pdl`): a kernel may start while the one before it drains. It loads
weights, which nobody writes, first; `gdc_wait` then stands before the first read of anything that
another kernel wrote.
"""

from __future__ import annotations

from copy import copy
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from . import buffers as slot
from . import tuning
from .buffers import Buffers, splits
from .config import Spec
from .cublaslt import CublasLt
from .weights import Experts, Linear, Norm, Weights

_STORE, _ADD, _SWIGLU, _GELU = 0, 1, 2, 3
_KINDS = {"store": _STORE, "add": _ADD, "swiglu": _SWIGLU, "gelu": _GELU}
_NO_NORM, _RMS, _LAYER = 0, 1, 2
_QK_NORMS = {"none": 0, "head": 1, "full": 2}
_LOG2_E = 1.4426950408889634


class Kernels:
    """Launches the kernels; `pdl` turns programmatic dependent launch on."""

    def __init__(self, pdl: bool, mapped: bool = True, lt: CublasLt | None = None) -> None:
        """Take the switches.

        Args:
            mapped: Tokens are also written to the pinned host ring, through its mapping.
            lt: cuBLASLt; used for the shapes of `ranks`, if it is of the version that they are for.
        """
        self.pdl, self.mapped, self.lt = pdl, mapped, lt
        self.ranks = tuning.ranks(lt.version) if lt is not None else {}
        self._launch: dict[str, Any] = {"launch_pdl": True} if pdl else {}
        # Shapes for which a tuned Triton product is used for the rows of a prompt.
        self.row_table: dict[tuple[int, int, int], tuple[int, ...] | None] = {}
        self.gemv_table: dict[tuple[str, int, int], tuple[int, ...]] = {}
        self.attention_tile: tuning.AttentionTile | None = None

    def beside(self) -> Kernels:
        """Return these operations for another stream, which may run at the same time."""
        twin = copy(self)
        twin.lt = self.lt.with_own_workspace() if self.lt is not None else None
        return twin

    # ---- one token ------------------------------------------------------------------------------

    def embed(self, b: Buffers, weights: Weights) -> None:
        width = b.x_D.numel()
        learned = weights.position_PD
        block = min(1024, triton.next_power_of_2(width))
        _embed[(triton.cdiv(width, block), 1)](
            b.x_D,
            b.control,
            weights.embedding_VD,
            learned if learned is not None else weights.embedding_VD,
            width,
            0 if learned is None else learned.shape[0] - 1,
            ROWS=False,
            LEARNED=learned is not None,
            BLOCK=block,
            PDL=self.pdl,
            **self._launch,
        )

    def gemv(
        self,
        x_K: Tensor,
        linear: Linear,
        out_N: Tensor,
        kind: str,
        norm: Norm | None = None,
        eps: float = 0.0,
        gate: Tensor | None = None,
    ) -> None:
        rows, width = linear.weight_NK.shape
        outputs = rows // 2 if kind == "swiglu" else rows
        config = self.gemv_table.get((kind, outputs, width)) or tuning.gemv(kind, outputs, width)
        block_n, block_k, warps, depth = config
        norm_kind = _NO_NORM if norm is None else _RMS if norm.bias_K is None else _LAYER
        _gemv[(triton.cdiv(outputs, block_n),)](
            x_K,
            linear.weight_NK,
            out_N,
            linear.bias_N if linear.bias_N is not None else x_K,
            norm.weight_K if norm is not None else x_K,
            norm.bias_K if norm is not None and norm.bias_K is not None else x_K,
            gate if gate is not None else x_K,
            outputs,
            width,
            eps,
            BN=block_n,
            BK=block_k,
            BX=triton.next_power_of_2(width) if norm_kind == _LAYER else 16,
            NORM=norm_kind,
            KIND=_KINDS[kind],
            BIAS=linear.bias_N is not None,
            GATE=gate is not None,
            EVEN_N=outputs % block_n == 0,
            EVEN_K=width % block_k == 0,
            DEPTH=depth,
            PDL=self.pdl,
            num_warps=warps,
            **self._launch,
        )

    def attend(
        self,
        b: Buffers,
        k_HSD: Tensor,
        v_HSD: Tensor,
        weights: Weights,
        q_norm: Tensor | None,
        k_norm: Tensor | None,
        spec: Spec,
        context: int,
    ) -> None:
        size, count = splits(context)
        table = weights.cos_PH if weights.cos_PH is not None else b.x_D
        _attend[(spec.heads, count)](
            b.qkv_N,
            k_HSD,
            v_HSD,
            b.control,
            table,
            weights.sin_PH if weights.sin_PH is not None else b.x_D,
            q_norm if q_norm is not None else b.x_D,
            k_norm if k_norm is not None else b.x_D,
            b.partial,
            b.arrivals,
            b.attention_N,
            k_HSD.shape[1],
            spec.head_dim**-0.5,
            spec.eps,
            HEADS=spec.heads,
            KV_HEADS=spec.kv_heads,
            DIM=spec.head_dim,
            DIM_P=triton.next_power_of_2(spec.head_dim),
            ROPE=weights.cos_PH is not None,
            QK_NORM=_QK_NORMS[spec.qk_norm],
            Q_P=triton.next_power_of_2(spec.attention_width),
            K_P=triton.next_power_of_2(spec.kv_heads * spec.head_dim),
            SPLIT=size,
            BLOCK=64,
            MAX_SPLITS=slot.MAX_SPLITS,
            PDL=self.pdl,
            num_warps=4,
            **self._launch,
        )

    def moe_up(self, b: Buffers, norm: Norm, experts: Experts, spec: Spec) -> None:
        width, inner = spec.hidden, spec.expert_inner
        block_n, block_k, warps, _ = tuning.gemv("swiglu", inner, width)
        _moe_up[(spec.experts_per_token, triton.cdiv(inner, block_n))](
            b.x_D,
            norm.weight_K,
            b.router_E,
            experts.up_EFD,
            b.expert_KF,
            b.route_index_K,
            b.route_weight_K,
            inner,
            width,
            spec.eps,
            E=spec.experts,
            E_P=triton.next_power_of_2(spec.experts),
            TOP=spec.experts_per_token,
            RENORM=spec.renormalise,
            BN=block_n,
            BK=block_k,
            PDL=self.pdl,
            num_warps=warps,
            **self._launch,
        )

    def moe_down(self, b: Buffers, experts: Experts, spec: Spec) -> None:
        block_n, block_k, warps, _ = tuning.gemv("experts", spec.hidden, spec.expert_inner)
        _moe_down[(triton.cdiv(spec.hidden, block_n),)](
            b.expert_KF,
            experts.down_EDF,
            b.route_index_K,
            b.route_weight_K,
            b.x_D,
            spec.hidden,
            spec.expert_inner,
            TOP=spec.experts_per_token,
            BN=block_n,
            BK=block_k,
            PDL=self.pdl,
            num_warps=warps,
            **self._launch,
        )

    def sample(self, b: Buffers, advance: bool) -> None:
        vocabulary = b.logits_V.numel()
        blocks = triton.cdiv(vocabulary, slot.SAMPLE_BLOCK)
        _sample[(blocks,)](
            b.logits_V,
            b.control,
            b.best,
            b.arrivals,
            b.arrivals.numel() - 1,
            b.ring,
            b.host_ring if self.mapped else b.ring,
            vocabulary,
            blocks,
            RING=slot.RING,
            BLOCK=slot.SAMPLE_BLOCK,
            BLOCKS_P=triton.next_power_of_2(blocks),
            ADVANCE=advance,
            PDL=self.pdl,
            num_warps=8,
            **self._launch,
        )

    # ---- the rows of a prompt -------------------------------------------------------------------

    def upload(self, b: Buffers, rows: int) -> None:
        """Copy the staged request to the device, where the host's memory is mapped by a kernel.

        A copy node in a graph hands over from one engine of the device to another; a kernel that
        reads the bytes itself does not.
        """
        if not self.mapped:
            b.upload(rows)
            return
        count = slot.IDS + rows
        _upload[(triton.cdiv(count, 512),)](b.control, b.staging, count, BLOCK=512, num_warps=4)

    def embed_rows(self, b: Buffers, weights: Weights, rows: int) -> None:
        width = b.x_TD.shape[1]
        learned = weights.position_PD
        block = min(1024, triton.next_power_of_2(width))
        _embed[(triton.cdiv(width, block), rows)](
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
        _norm_rows[(rows,)](
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
            BLOCK=triton.next_power_of_2(width),
            PDL=self.pdl,
            num_warps=4 if width <= 2048 else 8 if rows <= 128 else 16,
            **self._launch,
        )

    def delta_rows(self, b: Buffers, a_TK: Tensor, linear: Linear, rows: int) -> int:
        """Leave a product for the next norm to add: in delta_TD, or in parts. Returns how many."""
        choice = self._choice(rows, linear)
        if choice is None or choice.parts == 1:
            self.linear_rows(a_TK, linear, b.delta_TD[:rows])
            return 1
        assert self.lt is not None
        out_PTN = b.parts_PTD[: choice.parts, :rows]
        self.lt.product(a_TK, linear.weight_NK, out_PTN, choice.rank, choice.source)
        return choice.parts

    def _choice(self, rows: int, linear: Linear) -> tuning.Ranked | None:
        if self.lt is None or linear.bias_N is not None or self.row_table:
            return None
        outputs, width = linear.weight_NK.shape
        if tuning.rows(rows, outputs, width) is not None:
            return None
        return self.ranks.get((outputs, width), {}).get(rows)

    def linear_rows(self, a_TK: Tensor, linear: Linear, out_TN: Tensor) -> None:
        rows = a_TK.shape[0]
        outputs, width = linear.weight_NK.shape
        config = tuning.rows(rows, outputs, width) if not self.row_table else None
        if self.row_table:
            config = self.row_table.get((tuning.row_class(rows), outputs, width))
        if config is None:
            self._library_rows(a_TK, linear, out_TN)
            return
        block_m, block_n, block_k, warps, stages = config
        _linear_rows[(triton.cdiv(outputs, block_n), triton.cdiv(rows, block_m))](
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

    def _library_rows(self, a_TK: Tensor, linear: Linear, out_TN: Tensor) -> None:
        if linear.bias_N is not None:
            torch.addmm(linear.bias_N, a_TK, linear.weight_NK.t(), out=out_TN)
            return
        choice = self._choice(a_TK.shape[0], linear)
        if choice is None or choice.parts > 1 or self.lt is None:
            torch.mm(a_TK, linear.weight_NK.t(), out=out_TN)
        else:
            self.lt.product(a_TK, linear.weight_NK, out_TN, choice.rank, choice.source)

    def attend_rows(
        self,
        b: Buffers,
        k_HSD: Tensor,
        v_HSD: Tensor,
        weights: Weights,
        q_norm: Tensor | None,
        k_norm: Tensor | None,
        spec: Spec,
        rows: int,
    ) -> Tensor:
        if spec.qk_norm == "full":
            width = max(spec.attention_width, spec.kv_heads * spec.head_dim)
            # The sum of squares spans all heads, and other programs rotate in place: first this.
            _full_norm_rows[(rows, 2)](
                b.qkv_TN,
                q_norm,
                k_norm,
                spec.eps,
                Q=spec.attention_width,
                K=spec.kv_heads * spec.head_dim,
                WIDTH=spec.qkv_width,
                BLOCK=triton.next_power_of_2(width),
            )
        tile = self.attention_tile or tuning.attention(rows, spec.head_dim)
        norms = (q_norm if q_norm is not None else b.x_D, k_norm if k_norm is not None else b.x_D)
        tables = (
            weights.cos_PH if weights.cos_PH is not None else b.x_D,
            weights.sin_PH if weights.sin_PH is not None else b.x_D,
        )
        block = 8 if spec.kv_heads % 8 == 0 and spec.heads % 8 == 0 else 1
        # For the library's attention queries are rotated too; ours rotates them itself.
        first = 0 if tile is None else spec.heads
        _rotate_rows[(rows, (spec.heads + 2 * spec.kv_heads - first) // block)](
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
            DIM_P=triton.next_power_of_2(spec.head_dim),
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
        _attend_rows[(triton.cdiv(rows, block_m), spec.heads)](
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

    def activate_rows(self, up_TF: Tensor, out_TF: Tensor, kind: str) -> None:
        rows, inner = out_TF.shape
        block = min(1024, triton.next_power_of_2(inner))
        _activate_rows[(rows, triton.cdiv(inner, block))](
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
        _route_rows[(rows,)](
            logits_TE,
            b.route_index_TK,
            b.route_weight_TK,
            logits_TE.shape[1],
            E=count,
            E_P=triton.next_power_of_2(count),
            TOP=top,
            RENORM=spec.renormalise,
        )
        pairs = rows * top
        block_m = 16 if pairs <= 16 * count else 64
        blocks = triton.cdiv(pairs, block_m) + min(count, pairs)
        pair_R, expert_G = align(b.route_index_TK[:rows].reshape(-1), count, block_m, blocks)
        inner, width = spec.expert_inner, spec.hidden
        block_n, block_k = 64, 64
        for up in (True, False):
            outputs, depth = (inner, width) if up else (width, inner)
            _experts_rows[(triton.cdiv(outputs, block_n), blocks)](
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
        block = min(1024, triton.next_power_of_2(width))
        _sum_pairs[(rows, triton.cdiv(width, block))](
            b.expert_out_PD, b.delta_TD, width, TOP=top, BLOCK=block
        )

    def gate_rows(self, b: Buffers, y_TD: Tensor, spec: Spec, rows: int) -> None:
        width = spec.hidden
        block = min(1024, triton.next_power_of_2(width))
        _gate_rows[(rows, triton.cdiv(width, block))](
            b.delta_TD, y_TD, b.router_TE, width, spec.experts, BLOCK=block
        )

    def take_row(self, b: Buffers, attention_TN: Tensor) -> None:
        width, attention = b.x_D.numel(), b.attention_N.numel()
        block = 1024
        _take_row[(triton.cdiv(max(width, attention), block),)](
            b.x_TD, attention_TN, b.control, b.x_D, b.attention_N, width, attention, BLOCK=block
        )


def _flash(b: Buffers, spec: Spec, rows: int) -> Tensor:
    """Causal attention over the rotated qkv_TN by the library's kernel, (T, H * D)."""
    width, kv, dim = spec.attention_width, spec.kv_heads * spec.head_dim, spec.head_dim
    qkv = b.qkv_TN[:rows]
    parts = (qkv[:, :width], qkv[:, width : width + kv], qkv[:, width + kv :])
    q, k, v = (part.unflatten(1, (-1, dim)).transpose(0, 1)[None] for part in parts)
    # Called by its own name: scaled_dot_product_attention chooses a backend by global flags,
    # and cuDNN's plans are built for each thread and length.
    out = torch.ops.aten._scaled_dot_product_flash_attention(
        q, k, v, 0.0, True, False, scale=dim**-0.5
    )[0]
    return out[0].transpose(0, 1).reshape(rows, width)


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


# ---- kernels for one token ----------------------------------------------------------------------


@triton.jit
def _embed(
    out, control, table, learned, width, last,
    ROWS: tl.constexpr, LEARNED: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(1)
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    if ROWS:
        token = tl.load(control + 16 + row)
        position = row
    else:
        token = tl.load(control)
        position = tl.load(control + 1)
    column = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = column < width
    x = tl.load(table + token.to(tl.int64) * width + column, mask=inside, other=0.0).to(tl.float32)
    if LEARNED:
        place = tl.minimum(position, last)
        x += tl.load(learned + place * width + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * width + column, x, mask=inside)


@triton.jit
def _tile(w, start, k, K, row_ok, EVEN_N: tl.constexpr, EVEN_K: tl.constexpr, LAST: tl.constexpr):
    # LAST: the tile may lie wholly past the end (prefetch), so columns need a mask all the same.
    if EVEN_K and not LAST:
        if EVEN_N:
            return tl.load(w + start, eviction_policy="evict_first")
        else:
            return tl.load(
                w + start, mask=row_ok[:, None], other=0.0, eviction_policy="evict_first"
            )
    else:
        column_ok = (start + k < K)[None, :]
        if EVEN_N:
            return tl.load(w + start, mask=column_ok, other=0.0, eviction_policy="evict_first")
        else:
            return tl.load(
                w + start,
                mask=column_ok & row_ok[:, None],
                other=0.0,
                eviction_policy="evict_first",
            )


@triton.jit
def _gemv(
    x, w, out, bias, norm_w, norm_b, gate, N, K, eps,
    BN: tl.constexpr, BK: tl.constexpr, BX: tl.constexpr, NORM: tl.constexpr, KIND: tl.constexpr,
    BIAS: tl.constexpr, GATE: tl.constexpr, EVEN_N: tl.constexpr, EVEN_K: tl.constexpr,
    DEPTH: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * BN + tl.arange(0, BN)
    row_ok = row < N
    k = tl.arange(0, BK)
    w_row = w + row[:, None] * K + k[None, :]
    w_row2 = w_row + N * K
    if PDL:
        gdc_launch_dependents()
    w_a = _tile(w_row, 0, k, K, row_ok, EVEN_N, EVEN_K, False)
    w_b = w_a
    if KIND == 2:
        w_b = _tile(w_row2, 0, k, K, row_ok, EVEN_N, EVEN_K, False)
    if PDL:
        gdc_wait()
    mean = 0.0
    rstd = 1.0
    if NORM == 2:
        every = tl.arange(0, BX)
        whole = tl.load(x + every, mask=every < K, other=0.0)
        mean = tl.sum(whole, 0) / K
        centred = tl.where(every < K, whole - mean, 0.0)
        rstd = tl.rsqrt(tl.sum(centred * centred, 0) / K + eps)
    acc = tl.zeros([BN, BK], tl.float32)
    acc2 = tl.zeros([BN, BK], tl.float32)
    squares = tl.zeros([BK], tl.float32)
    for start in tl.range(0, K, BK):
        if DEPTH == 1:
            now_a = w_a
            now_b = w_b
            w_a = _tile(w_row, start + BK, k, K, row_ok, EVEN_N, EVEN_K, True)
            if KIND == 2:
                w_b = _tile(w_row2, start + BK, k, K, row_ok, EVEN_N, EVEN_K, True)
        else:
            now_a = _tile(w_row, start, k, K, row_ok, EVEN_N, EVEN_K, False)
            now_b = now_a
            if KIND == 2:
                now_b = _tile(w_row2, start, k, K, row_ok, EVEN_N, EVEN_K, False)
        ok = start + k < K
        v = tl.load(x + start + k, mask=ok, other=0.0).to(tl.float32)
        if NORM == 1:
            squares += v * v
            v = v * tl.load(norm_w + start + k, mask=ok, other=0.0).to(tl.float32)
        if NORM == 2:
            v = (v - mean) * rstd
            v = v * tl.load(norm_w + start + k, mask=ok, other=0.0).to(tl.float32)
            v = v + tl.load(norm_b + start + k, mask=ok, other=0.0).to(tl.float32)
        acc += now_a.to(tl.float32) * v[None, :]
        if KIND == 2:
            acc2 += now_b.to(tl.float32) * v[None, :]
    y = tl.sum(acc, 1)
    scale = 1.0
    if NORM == 1:
        scale = tl.rsqrt(tl.sum(squares, 0) / K + eps)
        y = y * scale
    if BIAS:
        y += tl.load(bias + row, mask=row_ok, other=0.0).to(tl.float32)
    if KIND == 2:
        y2 = tl.sum(acc2, 1) * scale
        if BIAS:
            y2 += tl.load(bias + N + row, mask=row_ok, other=0.0).to(tl.float32)
        y = y * tl.sigmoid(y) * y2
    if KIND == 3:
        y = y * tl.sigmoid(1.5957691216057308 * (y + 0.044715 * y * y * y))
    if KIND == 1:
        if GATE:
            y = y * tl.sigmoid(tl.load(gate).to(tl.float32))
        y += tl.load(out + row, mask=row_ok, other=0.0)
    tl.store(out + row, y.to(out.dtype.element_ty), mask=row_ok)


@triton.jit
def _rotated(base, d, ok, cos, sin, norm_w, rstd, DIM: tl.constexpr, ROPE: tl.constexpr,
             NORMED: tl.constexpr):  # fmt: skip
    x = tl.load(base + d, mask=ok, other=0.0).to(tl.float32)
    if NORMED:
        x = x * rstd * tl.load(norm_w + d, mask=ok, other=0.0).to(tl.float32)
    if ROPE:
        half: tl.constexpr = DIM // 2
        first = d < half
        other = tl.where(first, d + half, d - half)
        y = tl.load(base + other, mask=ok, other=0.0).to(tl.float32)
        if NORMED:
            y = y * rstd * tl.load(norm_w + other, mask=ok, other=0.0).to(tl.float32)
        angle = tl.where(first, d, d - half)
        c = tl.load(cos + angle, mask=ok, other=0.0)
        s = tl.load(sin + angle, mask=ok, other=0.0)
        x = x * c + tl.where(first, -y, y) * s
    return x


@triton.jit
def _rstd(base, WIDTH: tl.constexpr, WIDTH_P: tl.constexpr, eps):
    every = tl.arange(0, WIDTH_P)
    x = tl.load(base + every, mask=every < WIDTH, other=0.0).to(tl.float32)
    return tl.rsqrt(tl.sum(x * x, 0) / WIDTH + eps)


@triton.jit
def _attend(
    qkv, k_cache, v_cache, control, cos, sin, q_norm, k_norm, partial, arrivals, out,
    slots, scale, eps,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, DIM: tl.constexpr, DIM_P: tl.constexpr,
    ROPE: tl.constexpr, QK_NORM: tl.constexpr, Q_P: tl.constexpr, K_P: tl.constexpr,
    SPLIT: tl.constexpr, BLOCK: tl.constexpr, MAX_SPLITS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    head = tl.program_id(0)
    split = tl.program_id(1)
    group: tl.constexpr = HEADS // KV_HEADS
    kv_head = head // group
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    position = tl.load(control + 1)
    active = position // SPLIT + 1
    if split < active:
        d = tl.arange(0, DIM_P)
        d_ok = d < DIM
        k_base = qkv + HEADS * DIM + kv_head * DIM
        q_base = qkv + head * DIM
        q_rstd = 1.0
        k_rstd = 1.0
        if QK_NORM == 1:
            q_rstd = _rstd(q_base, DIM, DIM_P, eps)
            k_rstd = _rstd(k_base, DIM, DIM_P, eps)
            qn = q_norm
            kn = k_norm
        elif QK_NORM == 2:
            q_rstd = _rstd(qkv, HEADS * DIM, Q_P, eps)
            k_rstd = _rstd(qkv + HEADS * DIM, KV_HEADS * DIM, K_P, eps)
            qn = q_norm + head * DIM
            kn = k_norm + kv_head * DIM
        else:
            qn = q_norm
            kn = k_norm
        half: tl.constexpr = DIM // 2
        c_row = cos + position * half
        s_row = sin + position * half
        q = _rotated(q_base, d, d_ok, c_row, s_row, qn, q_rstd, DIM, ROPE, QK_NORM > 0)
        q = q * scale
        best = -1e30
        total = 0.0
        acc = tl.zeros([DIM_P], tl.float32)
        k_head = k_cache + kv_head.to(tl.int64) * slots * DIM
        v_head = v_cache + kv_head.to(tl.int64) * slots * DIM
        stop = tl.minimum(position, (split + 1) * SPLIT)
        for start in tl.range(split * SPLIT, stop, BLOCK):
            s = start + tl.arange(0, BLOCK)
            s_ok = s < stop
            both = s_ok[:, None] & d_ok[None, :]
            at = s[:, None] * DIM + d[None, :]
            keys = tl.load(k_head + at, mask=both, other=0.0).to(tl.float32)
            values = tl.load(v_head + at, mask=both, other=0.0).to(tl.float32)
            score = tl.where(s_ok, tl.sum(keys * q[None, :], 1), float("-inf"))
            top = tl.maximum(best, tl.max(score, 0))
            p = tl.exp(score - top)
            shrink = tl.exp(best - top)
            total = total * shrink + tl.sum(p, 0)
            acc = acc * shrink + tl.sum(p[:, None] * values, 0)
            best = top
        if split == active - 1:
            # The token itself: from registers, and into the cache by one program a kv head.
            fresh = _rotated(k_base, d, d_ok, c_row, s_row, kn, k_rstd, DIM, ROPE, QK_NORM > 0)
            stored = fresh.to(k_cache.dtype.element_ty)
            value = tl.load(k_base + KV_HEADS * DIM + d, mask=d_ok, other=0.0)
            if head % group == 0:
                write = d_ok & (position < slots)
                tl.store(k_head + position * DIM + d, stored, mask=write)
                tl.store(
                    v_head + position * DIM + d, value.to(v_cache.dtype.element_ty), mask=write
                )
            score_new = tl.sum(stored.to(tl.float32) * q, 0)
            top_new = tl.maximum(best, score_new)
            p_new = tl.exp(score_new - top_new)
            shrink_new = tl.exp(best - top_new)
            total = total * shrink_new + p_new
            acc = acc * shrink_new + p_new * value.to(tl.float32)
            best = top_new
        if active == 1:
            tl.store(out + head * DIM + d, (acc / total).to(out.dtype.element_ty), mask=d_ok)
        else:
            place = partial + (head * MAX_SPLITS + split) * (DIM + 2)
            tl.store(place + d, acc, mask=d_ok)
            tl.store(place + DIM, best)
            tl.store(place + DIM + 1, total)
            # All of this program's stores before its arrival; .cg below: no stale L1 lines.
            tl.debug_barrier()
            before = tl.atomic_add(arrivals + head, 1, sem="acq_rel", scope="gpu")
            if before == active - 1:
                tl.debug_barrier()
                each = tl.arange(0, MAX_SPLITS)
                each_ok = each < active
                row = partial + (head * MAX_SPLITS + each) * (DIM + 2)
                bests = tl.load(row + DIM, mask=each_ok, other=-1e30, cache_modifier=".cg")
                totals = tl.load(row + DIM + 1, mask=each_ok, other=0.0, cache_modifier=".cg")
                factor = tl.exp(bests - tl.max(bests, 0))
                accs = tl.load(
                    row[:, None] + d[None, :],
                    mask=each_ok[:, None] & d_ok[None, :],
                    other=0.0,
                    cache_modifier=".cg",
                )
                result = tl.sum(accs * factor[:, None], 0) / tl.sum(totals * factor, 0)
                tl.store(out + head * DIM + d, result.to(out.dtype.element_ty), mask=d_ok)
                tl.store(arrivals + head, 0)


@triton.jit
def _ranks(logits, E: tl.constexpr, E_P: tl.constexpr):
    # rank[i] = how many logits stand before i; equal ones in order of index.
    i = tl.arange(0, E_P)
    mine = tl.load(logits + i, mask=i < E, other=float("-inf")).to(tl.float32)
    theirs = tl.load(logits + i, mask=i < E, other=float("-inf")).to(tl.float32)
    ahead = (theirs[None, :] > mine[:, None]) | (
        (theirs[None, :] == mine[:, None]) & (i[None, :] < i[:, None])
    )
    return tl.sum(ahead.to(tl.int32), 1)


@triton.jit
def _moe_up(
    x, norm_w, logits, w, out, index, weight, N, K, eps,
    E: tl.constexpr, E_P: tl.constexpr, TOP: tl.constexpr, RENORM: tl.constexpr,
    BN: tl.constexpr, BK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    place = tl.program_id(0)
    row = tl.program_id(1) * BN + tl.arange(0, BN)
    row_ok = row < N
    k = tl.arange(0, BK)
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    rank = _ranks(logits, E, E_P)
    e = tl.arange(0, E_P)
    expert = tl.sum(tl.where(rank == place, e, 0), 0)
    if tl.program_id(1) == 0:
        score = tl.load(logits + e, mask=e < E, other=float("-inf")).to(tl.float32)
        p = tl.exp(score - tl.max(score, 0))
        if RENORM:
            z = tl.sum(tl.where(rank < TOP, p, 0.0), 0)
        else:
            z = tl.sum(p, 0)
        tl.store(index + place, expert)
        tl.store(weight + place, tl.sum(tl.where(rank == place, p, 0.0), 0) / z)
    base = w + expert.to(tl.int64) * 2 * N * K
    w_row = base + row[:, None] * K + k[None, :]
    w_row2 = w_row + N * K
    acc = tl.zeros([BN, BK], tl.float32)
    acc2 = tl.zeros([BN, BK], tl.float32)
    squares = tl.zeros([BK], tl.float32)
    for start in tl.range(0, K, BK):
        ok = start + k < K
        both = ok[None, :] & row_ok[:, None]
        a = tl.load(w_row + start, mask=both, other=0.0, eviction_policy="evict_first")
        c = tl.load(w_row2 + start, mask=both, other=0.0, eviction_policy="evict_first")
        v = tl.load(x + start + k, mask=ok, other=0.0)
        squares += v * v
        v = v * tl.load(norm_w + start + k, mask=ok, other=0.0).to(tl.float32)
        acc += a.to(tl.float32) * v[None, :]
        acc2 += c.to(tl.float32) * v[None, :]
    scale = tl.rsqrt(tl.sum(squares, 0) / K + eps)
    y = tl.sum(acc, 1) * scale
    y = y * tl.sigmoid(y) * (tl.sum(acc2, 1) * scale)
    tl.store(out + place * N + row, y.to(out.dtype.element_ty), mask=row_ok)


@triton.jit
def _moe_down(
    h, w, index, weight, out, N, K,
    TOP: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * BN + tl.arange(0, BN)
    row_ok = row < N
    k = tl.arange(0, BK)
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    acc = tl.zeros([BN, BK], tl.float32)
    # Experts in the order of their rank, always: no atomics, the same sum every time.
    for place in tl.static_range(TOP):
        expert = tl.load(index + place).to(tl.int64)
        share = tl.load(weight + place)
        base = w + expert * N * K
        for start in tl.range(0, K, BK):
            ok = start + k < K
            both = ok[None, :] & row_ok[:, None]
            a = tl.load(
                base + row[:, None] * K + start + k[None, :],
                mask=both,
                other=0.0,
                eviction_policy="evict_first",
            )
            v = tl.load(h + place * K + start + k, mask=ok, other=0.0).to(tl.float32) * share
            acc += a.to(tl.float32) * v[None, :]
    y = tl.sum(acc, 1) + tl.load(out + row, mask=row_ok, other=0.0)
    tl.store(out + row, y, mask=row_ok)


@triton.jit
def _ordered(x):
    # float32 bits as int32 in the order of the floats.
    bits = x.to(tl.int32, bitcast=True)
    return tl.where(bits >= 0, bits, bits ^ 0x7FFFFFFF)


@triton.jit
def _noise(seed, step, index):
    word, _, _, _ = tl.philox(seed, index, step, 0, 0)
    uniform = (
        (word.to(tl.uint32, bitcast=True) >> 9).to(tl.float32) + 0.5
    ) * 1.1920928955078125e-07
    return -tl.log(-tl.log(uniform))


@triton.jit
def _sample(
    logits, control, best, arrivals, counter, ring, host_ring, V, blocks,
    RING: tl.constexpr, BLOCK: tl.constexpr, BLOCKS_P: tl.constexpr, ADVANCE: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    pid = tl.program_id(0)
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    step = tl.load(control + 2)
    top_k = tl.load(control + 3)
    low = tl.load(control + 5).to(tl.uint32, bitcast=True).to(tl.uint64)
    high = tl.load(control + 6).to(tl.uint32, bitcast=True).to(tl.uint64)
    seed = low | (high << 32)
    temperature = tl.load(control + 7).to(tl.float32, bitcast=True)
    top_p = tl.load(control + 8).to(tl.float32, bitcast=True)
    index = pid * BLOCK + tl.arange(0, BLOCK)
    score = tl.load(logits + index, mask=index < V, other=float("-inf"))
    if temperature > 0:
        score = score / temperature + _noise(seed, step, index)
    top = tl.max(score, 0)
    first = tl.min(tl.where(score == top, index, V), 0)
    tl.store(best + pid, top)
    tl.store(best + blocks + pid, first.to(tl.float32, bitcast=True))
    tl.debug_barrier()
    before = tl.atomic_add(arrivals + counter, 1, sem="acq_rel", scope="gpu")
    if before == blocks - 1:
        tl.debug_barrier()
        each = tl.arange(0, BLOCKS_P)
        tops = tl.load(best + each, mask=each < blocks, other=float("-inf"), cache_modifier=".cg")
        firsts = tl.load(best + blocks + each, mask=each < blocks, other=0.0, cache_modifier=".cg")
        firsts = firsts.to(tl.int32, bitcast=True)
        top_all = tl.max(tops, 0)
        token = tl.min(tl.where((tops == top_all) & (each < blocks), firsts, V), 0)
        if (temperature > 0) & (((top_k > 0) & (top_k < V)) | (top_p < 1.0)):
            # Filtered: the threshold by bisection on the ordered bits of the logits, exactly.
            lane = tl.arange(0, BLOCK)
            highest = tl.full([BLOCK], float("-inf"), tl.float32)
            for start in tl.range(0, V, BLOCK):
                x = tl.load(logits + start + lane, mask=start + lane < V, other=float("-inf"))
                highest = tl.maximum(highest, x)
            peak = tl.max(highest, 0)
            floor = tl.full((), -2147483647, tl.int64)
            ceiling = _ordered(peak).to(tl.int64)
            if (top_k > 0) & (top_k < V):
                lo = floor
                hi = ceiling
                while lo < hi:
                    middle = (lo + hi + 1) >> 1
                    count = tl.zeros([BLOCK], tl.int32)
                    for start in tl.range(0, V, BLOCK):
                        ok = start + lane < V
                        x = tl.load(logits + start + lane, mask=ok, other=float("-inf"))
                        count += (ok & (_ordered(x).to(tl.int64) >= middle)).to(tl.int32)
                    enough = tl.sum(count, 0) >= top_k
                    lo = tl.where(enough, middle, lo)
                    hi = tl.where(enough, hi, middle - 1)
                floor = lo
            if top_p < 1.0:
                mass = tl.zeros([BLOCK], tl.float32)
                for start in tl.range(0, V, BLOCK):
                    ok = start + lane < V
                    x = tl.load(logits + start + lane, mask=ok, other=float("-inf"))
                    kept = ok & (_ordered(x).to(tl.int64) >= floor)
                    mass += tl.where(kept, tl.exp((x - peak) / temperature), 0.0)
                wanted = tl.sum(mass, 0) * top_p
                lo = floor
                hi = ceiling
                while lo < hi:
                    middle = (lo + hi + 1) >> 1
                    part = tl.zeros([BLOCK], tl.float32)
                    for start in tl.range(0, V, BLOCK):
                        ok = start + lane < V
                        x = tl.load(logits + start + lane, mask=ok, other=float("-inf"))
                        kept = ok & (_ordered(x).to(tl.int64) >= middle)
                        part += tl.where(kept, tl.exp((x - peak) / temperature), 0.0)
                    enough = tl.sum(part, 0) >= wanted
                    lo = tl.where(enough, middle, lo)
                    hi = tl.where(enough, hi, middle - 1)
                floor = lo
            lane_best = tl.full([BLOCK], float("-inf"), tl.float32)
            lane_index = tl.full([BLOCK], 0, tl.int32) + V
            for start in tl.range(0, V, BLOCK):
                at = start + lane
                ok = at < V
                x = tl.load(logits + at, mask=ok, other=float("-inf"))
                kept = ok & (_ordered(x).to(tl.int64) >= floor)
                y = tl.where(kept, x / temperature + _noise(seed, step, at), float("-inf"))
                better = y > lane_best
                lane_best = tl.where(better, y, lane_best)
                lane_index = tl.where(better, at, lane_index)
            top_all = tl.max(lane_best, 0)
            token = tl.min(tl.where(lane_best == top_all, lane_index, V), 0)
        # NaN logits compare with nothing; the token must stay a row of the embedding.
        token = tl.minimum(token, V - 1)
        place = (tl.load(control + 9) + step) % RING
        tl.store(control, token)
        tl.store(control + 2, step + 1)
        if ADVANCE:
            tl.store(control + 1, tl.load(control + 1) + 1)
        tl.store(arrivals + counter, 0)
        tl.store(ring + place, token)
        tl.store(host_ring + place, token)


# ---- kernels for rows ---------------------------------------------------------------------------


@triton.jit(do_not_specialize=["count"])
def _upload(control, staged, count, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    # Not from a cache: the host wrote these bytes a moment ago.
    words = tl.load(staged + i, mask=i < count, other=0, cache_modifier=".cv")
    tl.store(control + i, words, mask=i < count)


@triton.jit
def _norm_rows(
    x, delta, part_stride, weight, bias, out, width, eps,
    PARTS: tl.constexpr, LAYER: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    k = tl.arange(0, BLOCK)
    ok = k < width
    at = row * width + k
    w = tl.load(weight + k, mask=ok, other=0.0).to(tl.float32)
    if PDL:
        gdc_wait()
    v = tl.load(x + at, mask=ok, other=0.0)
    if PARTS > 0:
        for part in tl.static_range(PARTS):
            v += tl.load(delta + part * part_stride + at, mask=ok, other=0.0).to(tl.float32)
        tl.store(x + at, v, mask=ok)
    if LAYER:
        mean = tl.sum(v, 0) / width
        c = tl.where(ok, v - mean, 0.0)
        y = c * tl.rsqrt(tl.sum(c * c, 0) / width + eps) * w
        y += tl.load(bias + k, mask=ok, other=0.0).to(tl.float32)
    else:
        y = v * tl.rsqrt(tl.sum(v * v, 0) / width + eps) * w
    tl.store(out + at, y.to(out.dtype.element_ty), mask=ok)


@triton.jit(do_not_specialize=["M"])
def _linear_rows(
    a, w, bias, out, M, N, K,
    BIAS: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    m = tl.program_id(1) * BM + tl.arange(0, BM)
    n = tl.program_id(0) * BN + tl.arange(0, BN)
    k = tl.arange(0, BK)
    # Rows and columns past the end are clamped, not masked: their results are not stored.
    a_at = a + tl.minimum(m, M - 1)[:, None] * K + k[None, :]
    w_at = w + tl.minimum(n, N - 1)[None, :] * K + k[:, None]
    acc = tl.zeros([BM, BN], tl.float32)
    for start in range(0, K, BK):
        left = start + k < K
        rows = tl.load(a_at + start, mask=left[None, :], other=0.0)
        columns = tl.load(w_at + start, mask=left[:, None], other=0.0)
        acc = tl.dot(rows, columns, acc)
    if BIAS:
        acc += tl.load(bias + n, mask=n < N, other=0.0).to(tl.float32)[None, :]
    ok = (m < M)[:, None] & (n < N)[None, :]
    tl.store(out + m[:, None] * N + n[None, :], acc.to(out.dtype.element_ty), mask=ok)


@triton.jit
def _full_norm_rows(
    qkv, q_norm, k_norm, eps,
    Q: tl.constexpr, K: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    i = tl.arange(0, BLOCK)
    if tl.program_id(1) == 0:
        base = qkv + row * WIDTH
        ok = i < Q
        x = tl.load(base + i, mask=ok, other=0.0).to(tl.float32)
        y = x * tl.rsqrt(tl.sum(x * x, 0) / Q + eps)
        y = y * tl.load(q_norm + i, mask=ok, other=0.0).to(tl.float32)
        tl.store(base + i, y.to(qkv.dtype.element_ty), mask=ok)
    else:
        base = qkv + row * WIDTH + Q
        ok = i < K
        x = tl.load(base + i, mask=ok, other=0.0).to(tl.float32)
        y = x * tl.rsqrt(tl.sum(x * x, 0) / K + eps)
        y = y * tl.load(k_norm + i, mask=ok, other=0.0).to(tl.float32)
        tl.store(base + i, y.to(qkv.dtype.element_ty), mask=ok)


@triton.jit
def _halves(at, place, ok, cos, sin, norm, eps,
            HALF: tl.constexpr, ROPE: tl.constexpr, NORMED: tl.constexpr):  # fmt: skip
    # Rotary pairs element i of the first half with element i of the second: two tiles, no shuffle.
    h = tl.arange(0, HALF)
    both = ok[:, None] & (h >= 0)[None, :]
    a = tl.load(at + h[None, :], mask=both, other=0.0).to(tl.float32)
    b = tl.load(at + HALF + h[None, :], mask=both, other=0.0).to(tl.float32)
    if NORMED:
        rstd = tl.rsqrt((tl.sum(a * a, 1) + tl.sum(b * b, 1)) / (2 * HALF) + eps)[:, None]
        a = a * rstd * tl.load(norm + h).to(tl.float32)[None, :]
        b = b * rstd * tl.load(norm + HALF + h).to(tl.float32)[None, :]
    if ROPE:
        c = tl.load(cos + place[:, None] * HALF + h[None, :], mask=both, other=0.0)
        s = tl.load(sin + place[:, None] * HALF + h[None, :], mask=both, other=0.0)
        first = a * c - b * s
        b = b * c + a * s
        a = first
    return a, b


@triton.jit(do_not_specialize=["rows"])
def _attend_rows(
    qkv, k_cache, v_cache, cos, sin, q_norm, out, rows, slots, scale, eps,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, HALF: tl.constexpr, ROPE: tl.constexpr,
    HEAD_NORM: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    # Causal attention of a prompt. Keys and values are in the cache, rotated; queries are not yet.
    block = tl.num_programs(0) - 1 - tl.program_id(0)  # the longest first
    head = tl.program_id(1)
    group: tl.constexpr = HEADS // KV_HEADS
    DIM: tl.constexpr = 2 * HALF
    WIDTH: tl.constexpr = (HEADS + 2 * KV_HEADS) * DIM
    kv_head = head // group
    kind = qkv.dtype.element_ty
    m = block * BM + tl.arange(0, BM)
    d = tl.arange(0, DIM)
    h = tl.arange(0, HALF)
    if PDL:
        gdc_wait()
    q_at = qkv + m[:, None] * WIDTH + head * DIM
    q1, q2 = _halves(q_at, m, m < rows, cos, sin, q_norm, eps, HALF, ROPE, HEAD_NORM)
    q1 = q1.to(kind)
    q2 = q2.to(kind)
    best = tl.full([BM], float("-inf"), tl.float32)
    total = tl.zeros([BM], tl.float32)
    acc = tl.zeros([BM, DIM], tl.float32)
    stop = tl.minimum((block + 1) * BM, rows)
    for start in tl.range(0, stop, BN):
        n = start + tl.arange(0, BN)
        n_ok = n < rows
        place = kv_head.to(tl.int64) * slots * DIM + n[:, None] * DIM
        k1 = tl.load(k_cache + place + h[None, :], mask=n_ok[:, None], other=0.0)
        k2 = tl.load(k_cache + place + HALF + h[None, :], mask=n_ok[:, None], other=0.0)
        v = tl.load(v_cache + place + d[None, :], mask=n_ok[:, None], other=0.0)
        score = tl.dot(q1, tl.trans(k1))
        score = tl.dot(q2, tl.trans(k2), score) * scale
        score = tl.where((m[:, None] >= n[None, :]) & n_ok[None, :], score, float("-inf"))
        top = tl.maximum(best, tl.max(score, 1))
        p = tl.exp2(score - top[:, None])
        shrink = tl.exp2(best - top)
        total = total * shrink + tl.sum(p, 1)
        acc = tl.dot(p.to(kind), v, acc * shrink[:, None])
        best = top
    y = acc / total[:, None]
    at = out + m[:, None] * (HEADS * DIM) + head * DIM + d[None, :]
    tl.store(at, y.to(out.dtype.element_ty), mask=(m < rows)[:, None])


@triton.jit
def _rotate_rows(
    qkv, k_cache, v_cache, cos, sin, q_norm, k_norm, slots, eps,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, FIRST: tl.constexpr, DIM: tl.constexpr,
    DIM_P: tl.constexpr, ROPE: tl.constexpr, HEAD_NORM: tl.constexpr, BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    # BLOCK divides both head counts, so a program holds heads of one kind only.
    row = tl.program_id(0)
    first_head = FIRST + tl.program_id(1) * BLOCK
    if PDL:
        gdc_launch_dependents()
    head = first_head + tl.arange(0, BLOCK)[:, None]
    d = tl.arange(0, DIM_P)[None, :]
    ok = (d < DIM) & (head >= 0)
    base = qkv + row * (HEADS + 2 * KV_HEADS) * DIM
    at = base + head * DIM
    if PDL:
        gdc_wait()
    x = tl.load(at + d, mask=ok, other=0.0)
    if first_head < HEADS + KV_HEADS:
        v = x.to(tl.float32)
        half: tl.constexpr = DIM // 2
        first = d < half
        other = tl.where(first, d + half, d - half)
        w = q_norm
        rstd = tl.zeros([BLOCK, 1], tl.float32) + 1.0
        if HEAD_NORM:
            if first_head >= HEADS:
                w = k_norm
            rstd = tl.rsqrt(tl.sum(v * v, 1) / DIM + eps)[:, None]
            v = v * rstd * tl.load(w + d, mask=d < DIM, other=0.0).to(tl.float32)
        if ROPE:
            y = tl.load(at + other, mask=ok, other=0.0).to(tl.float32)
            if HEAD_NORM:
                y = y * rstd * tl.load(w + other, mask=d < DIM, other=0.0).to(tl.float32)
            angle = tl.where(first, d, d - half)
            c = tl.load(cos + row * half + angle, mask=d < DIM, other=0.0)
            s = tl.load(sin + row * half + angle, mask=d < DIM, other=0.0)
            v = v * c + tl.where(first, -y, y) * s
        x = v.to(qkv.dtype.element_ty)
        if FIRST == 0:
            # Both halves of a head are read by all lanes before one is overwritten.
            tl.debug_barrier()
            tl.store(at + d, x, mask=ok)
        if first_head >= HEADS:
            place = (head - HEADS).to(tl.int64) * slots * DIM + row * DIM
            tl.store(k_cache + place + d, x, mask=ok & (row < slots))
    else:
        place = (head - HEADS - KV_HEADS).to(tl.int64) * slots * DIM + row * DIM
        tl.store(v_cache + place + d, x, mask=ok & (row < slots))


@triton.jit
def _activate_rows(
    up, out, width, GELU: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr
):  # fmt: skip
    row = tl.program_id(0)
    k = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    ok = k < width
    if PDL:
        gdc_wait()
    if GELU:
        x = tl.load(up + row * width + k, mask=ok, other=0.0).to(tl.float32)
        y = x * tl.sigmoid(1.5957691216057308 * (x + 0.044715 * x * x * x))
    else:
        x = tl.load(up + row * 2 * width + k, mask=ok, other=0.0).to(tl.float32)
        y = x * tl.sigmoid(x)
        y = y * tl.load(up + row * 2 * width + width + k, mask=ok, other=0.0).to(tl.float32)
    tl.store(out + row * width + k, y.to(out.dtype.element_ty), mask=ok)


@triton.jit
def _route_rows(
    logits, index, weight, width,
    E: tl.constexpr, E_P: tl.constexpr, TOP: tl.constexpr, RENORM: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    base = logits + row * width
    rank = _ranks(base, E, E_P)
    e = tl.arange(0, E_P)
    score = tl.load(base + e, mask=e < E, other=float("-inf")).to(tl.float32)
    p = tl.exp(score - tl.max(score, 0))
    if RENORM:
        z = tl.sum(tl.where(rank < TOP, p, 0.0), 0)
    else:
        z = tl.sum(p, 0)
    tl.store(index + row * TOP + rank, e, mask=rank < TOP)
    tl.store(weight + row * TOP + rank, p / z, mask=rank < TOP)


@triton.jit
def _experts_rows(
    a, w, out, pair_of_row, expert_of_block, weight, N, K,
    E: tl.constexpr, TOP: tl.constexpr, UP: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    block = tl.program_id(1)
    expert = tl.load(expert_of_block + block)
    if expert < E:
        pair = tl.load(pair_of_row + block * BM + tl.arange(0, BM))
        real = pair >= 0
        n = tl.program_id(0) * BN + tl.arange(0, BN)
        k = tl.arange(0, BK)
        safe = tl.where(real, pair, 0)
        if UP:
            a_at = a + (safe // TOP)[:, None] * K + k[None, :]
            base = w + expert.to(tl.int64) * 2 * N * K
        else:
            a_at = a + safe[:, None] * K + k[None, :]
            base = w + expert.to(tl.int64) * N * K
        w_at = base + tl.minimum(n, N - 1)[None, :] * K + k[:, None]
        acc = tl.zeros([BM, BN], tl.float32)
        acc2 = tl.zeros([BM, BN], tl.float32)
        for start in range(0, K, BK):
            left = start + k < K
            rows = tl.load(a_at + start, mask=left[None, :], other=0.0)
            acc = tl.dot(rows, tl.load(w_at + start, mask=left[:, None], other=0.0), acc)
            if UP:
                second = tl.load(w_at + N * K + start, mask=left[:, None], other=0.0)
                acc2 = tl.dot(rows, second, acc2)
        if UP:
            y = acc * tl.sigmoid(acc) * acc2
        else:
            y = acc * tl.load(weight + safe)[:, None]
        ok = real[:, None] & (n < N)[None, :]
        tl.store(out + safe[:, None] * N + n[None, :], y.to(out.dtype.element_ty), mask=ok)


@triton.jit
def _sum_pairs(pairs, out, width, TOP: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    k = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    ok = k < width
    y = tl.zeros([BLOCK], tl.float32)
    for place in tl.static_range(TOP):
        y += tl.load(pairs + (row * TOP + place) * width + k, mask=ok, other=0.0).to(tl.float32)
    tl.store(out + row * width + k, y.to(out.dtype.element_ty), mask=ok)


@triton.jit
def _gate_rows(delta, y, logits, width, gate_row, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    k = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    ok = k < width
    share = tl.sigmoid(tl.load(logits + row * (gate_row + 1) + gate_row).to(tl.float32))
    at = row * width + k
    v = tl.load(delta + at, mask=ok, other=0.0).to(tl.float32)
    v += tl.load(y + at, mask=ok, other=0.0).to(tl.float32) * share
    tl.store(delta + at, v.to(delta.dtype.element_ty), mask=ok)


@triton.jit
def _take_row(x, attention, control, x_out, attention_out, width, attention_width,
              BLOCK: tl.constexpr):  # fmt: skip
    last = tl.load(control + 4) - 1
    k = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + last * width + k, mask=k < width, other=0.0)
    tl.store(x_out + k, v, mask=k < width)
    a = tl.load(attention + last * attention_width + k, mask=k < attention_width, other=0.0)
    tl.store(attention_out + k, a, mask=k < attention_width)
