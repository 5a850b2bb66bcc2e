"""Launches of the Triton kernels of one token.

A decode step takes five a dense layer: norm + QKV product; rotary + cache write + attention + its
reduction; output product + residual; norm + gate and up products + activation; down product +
residual.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from hybrid.model.spec import Spec
from hybrid.model.weights import Experts, Linear, Norm, Weights
from hybrid.state.buffers import MAX_SPLITS, RING, SAMPLE_BLOCK, Buffers, splits
from hybrid.state.kv_cache import KVCache

from . import kernels
from .interface import Kind
from .tuning import Tuning


class TritonDecode:
    """The operations of one token; `pdl` turns programmatic dependent launch on."""

    def __init__(self, pdl: bool, mapped: bool, tuning: Tuning) -> None:
        """Take the switches.

        Args:
            mapped: Tokens are also written to the pinned host ring, through its mapping.
        """
        self.pdl, self.mapped, self.tuning = pdl, mapped, tuning
        self._launch: dict[str, Any] = {"launch_pdl": True} if pdl else {}

    def embed(self, b: Buffers, weights: Weights) -> None:
        width = b.x_D.numel()
        learned = weights.position_PD
        block = min(1024, kernels.next_power_of_2(width))
        kernels.embed[(kernels.cdiv(width, block), 1)](
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
        kind: Kind,
        norm: Norm | None = None,
        eps: float = 0.0,
        gate: Tensor | None = None,
    ) -> None:
        rows, width = linear.weight_NK.shape
        outputs = rows // 2 if kind == "swiglu" else rows
        block_n, block_k, warps, depth = self.tuning.gemv(kind, outputs, width)
        norm_kind = "none" if norm is None else "rms" if norm.bias_K is None else "layer"
        kernels.gemv[(kernels.cdiv(outputs, block_n),)](
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
            BX=kernels.next_power_of_2(width) if norm_kind == "layer" else 16,
            NORM=norm_kind,
            KIND=kind,
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
        self, b: Buffers, cache: KVCache, weights: Weights, index: int, spec: Spec, context: int
    ) -> None:
        k_HSD, v_HSD = cache.layer(index)
        layer = weights.layers[index]
        size, count = splits(context)
        table = weights.cos_PH if weights.cos_PH is not None else b.x_D
        kernels.attend[(spec.heads, count)](
            b.qkv_N,
            k_HSD,
            v_HSD,
            b.control,
            table,
            weights.sin_PH if weights.sin_PH is not None else b.x_D,
            layer.q_norm if layer.q_norm is not None else b.x_D,
            layer.k_norm if layer.k_norm is not None else b.x_D,
            b.partial,
            b.arrivals,
            b.attention_N,
            k_HSD.shape[1],
            spec.head_dim**-0.5,
            spec.eps,
            HEADS=spec.heads,
            KV_HEADS=spec.kv_heads,
            DIM=spec.head_dim,
            DIM_P=kernels.next_power_of_2(spec.head_dim),
            ROPE=weights.cos_PH is not None,
            QK_NORM=spec.qk_norm,
            Q_P=kernels.next_power_of_2(spec.attention_width),
            K_P=kernels.next_power_of_2(spec.kv_heads * spec.head_dim),
            SPLIT=size,
            BLOCK=64,
            MAX_SPLITS=MAX_SPLITS,
            PDL=self.pdl,
            num_warps=4,
            **self._launch,
        )

    def moe_up(self, b: Buffers, norm: Norm, experts: Experts, spec: Spec) -> None:
        width, inner = spec.hidden, spec.expert_inner
        block_n, block_k, warps, _ = self.tuning.gemv("swiglu", inner, width)
        kernels.moe_up[(spec.experts_per_token, kernels.cdiv(inner, block_n))](
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
            E_P=kernels.next_power_of_2(spec.experts),
            TOP=spec.experts_per_token,
            RENORM=spec.renormalise,
            BN=block_n,
            BK=block_k,
            PDL=self.pdl,
            num_warps=warps,
            **self._launch,
        )

    def moe_down(self, b: Buffers, experts: Experts, spec: Spec) -> None:
        block_n, block_k, warps, _ = self.tuning.gemv("experts", spec.hidden, spec.expert_inner)
        kernels.moe_down[(kernels.cdiv(spec.hidden, block_n),)](
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
        blocks = kernels.cdiv(vocabulary, SAMPLE_BLOCK)
        kernels.draw[(blocks,)](
            b.logits_V,
            b.control,
            b.best,
            b.arrivals,
            b.arrivals.numel() - 1,
            b.ring,
            b.host_ring if self.mapped else b.ring,
            vocabulary,
            blocks,
            RING=RING,
            BLOCK=SAMPLE_BLOCK,
            BLOCKS_P=kernels.next_power_of_2(blocks),
            ADVANCE=advance,
            PDL=self.pdl,
            num_warps=8,
            **self._launch,
        )
