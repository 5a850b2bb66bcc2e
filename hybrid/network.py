"""The network: which operation follows which. No graph, no cache policy, no timing in it.

One code path for every mode and device. `ops` is `kernels` (CUDA) or `reference` (CPU). `cut`
marks the dynamic domain (rotary + cache write + attention, and sampling): run in place by default,
between graphs when the piecewise recorder passes its own.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import Tensor

from .buffers import Buffers
from .config import Spec
from .kv_cache import KVCache
from .weights import LayerWeights, Linear, Weights

Cut = Callable[[Callable[[], None]], None]


def inline(dynamic: Callable[[], None]) -> None:
    """The cut of the modes without pieces."""
    dynamic()


class Network:
    """A model's forward passes over static buffers."""

    def __init__(self, spec: Spec, weights: Weights, ops: Any) -> None:
        self.spec, self.weights, self.ops = spec, weights, ops
        self._head = Linear(weights.head_VD)

    def decode(
        self,
        b: Buffers,
        cache: KVCache,
        context: int,
        cut: Cut = inline,
        layers: tuple[int, ...] | None = None,
    ) -> None:
        """One token: read control, write its key and value, draw the next one.

        Capture-safe: no allocation, no host sync. The cache rows read are 0 .. position, which
        must be below `context`.
        """
        self.ops.embed(b, self.weights)
        for index in layers if layers is not None else range(self.spec.layers):
            layer = self.weights.layers[index]
            self.ops.gemv(
                b.x_D, layer.qkv, b.qkv_N, "store", norm=layer.attention_norm, eps=self.spec.eps
            )
            cut(partial(self._attend, b, cache, index, context))
            self._after_attention(b, layer)
        self._finish(b, advance=True, cut=cut)

    def prefill(
        self,
        b: Buffers,
        cache: KVCache,
        rows: int,
        cut: Cut = inline,
        layers: tuple[int, ...] | None = None,
    ) -> None:
        """The prompt in control, padded right to `rows`: fill the cache, draw the first token.

        The last layer needs its MLP for one row only, row LENGTH - 1, and takes decode's path.
        """
        spec, ops = self.spec, self.ops
        ops.embed_rows(b, self.weights, rows)
        order = layers if layers is not None else tuple(range(spec.layers))
        parts = 0
        for index in order[:-1]:
            layer = self.weights.layers[index]
            ops.norm_rows(b, layer.attention_norm, spec.eps, rows, parts)
            ops.linear_rows(b.normed_TD[:rows], layer.qkv, b.qkv_TN[:rows])
            held = self._held(b, rows, cut)
            cut(partial(self._attend_rows, b, cache, index, rows, held))
            parts = ops.delta_rows(b, held[0], layer.output, rows)
            ops.norm_rows(b, layer.mlp_norm, spec.eps, rows, parts)
            parts = self._mlp_rows(b, layer, rows)
        last = self.weights.layers[order[-1]]
        ops.norm_rows(b, last.attention_norm, spec.eps, rows, parts)
        ops.linear_rows(b.normed_TD[:rows], last.qkv, b.qkv_TN[:rows])
        held = self._held(b, rows, cut)
        cut(partial(self._attend_rows, b, cache, order[-1], rows, held))
        ops.take_row(b, held[0])
        self._after_attention(b, last)
        self._finish(b, advance=False, cut=cut)

    def _held(self, b: Buffers, rows: int, cut: Cut) -> list[Tensor]:
        # Between two graphs the attention result must stand at a fixed address; within one, the
        # tensor that attention returns is taken as it is.
        return [] if cut is inline else [b.attention_TN[:rows]]

    def _attend(self, b: Buffers, cache: KVCache, index: int, context: int) -> None:
        layer = self.weights.layers[index]
        k_HSD, v_HSD = cache.layer(index)
        self.ops.attend(
            b,
            k_HSD,
            v_HSD,
            self.weights,
            layer.q_norm,
            layer.k_norm,
            self.spec,
            context,
        )

    def _attend_rows(
        self, b: Buffers, cache: KVCache, index: int, rows: int, held: list[Tensor]
    ) -> None:
        layer = self.weights.layers[index]
        k_HSD, v_HSD = cache.layer(index)
        attention_TN = self.ops.attend_rows(
            b,
            k_HSD,
            v_HSD,
            self.weights,
            layer.q_norm,
            layer.k_norm,
            self.spec,
            rows,
        )
        if held:
            if held[0].data_ptr() != attention_TN.data_ptr():
                held[0].copy_(attention_TN)
        else:
            held.append(attention_TN)

    def _after_attention(self, b: Buffers, layer: LayerWeights) -> None:
        spec, ops = self.spec, self.ops
        ops.gemv(b.attention_N, layer.output, b.x_D, "add")
        if layer.experts is None:
            assert layer.up is not None
            assert layer.down is not None
            inner_F = b.inner_F[: spec.inner]
            ops.gemv(b.x_D, layer.up, inner_F, spec.activation, norm=layer.mlp_norm, eps=spec.eps)
            ops.gemv(inner_F, layer.down, b.x_D, "add")
            return
        experts = layer.experts
        router_E = b.router_E[: experts.router_ED.shape[0]]
        ops.gemv(
            b.x_D, Linear(experts.router_ED), router_E, "store", norm=layer.mlp_norm, eps=spec.eps
        )
        ops.moe_up(b, layer.mlp_norm, experts, spec)
        if experts.shared_up is not None and experts.shared_down is not None:
            shared_F = b.inner_F[: spec.shared_inner]
            # Before x_D changes: both projections up read the same residual.
            ops.gemv(
                b.x_D, experts.shared_up, shared_F, "swiglu", norm=layer.mlp_norm, eps=spec.eps
            )
            ops.moe_down(b, experts, spec)
            gate = b.router_E[spec.experts : spec.experts + 1]
            ops.gemv(shared_F, experts.shared_down, b.x_D, "add", gate=gate)
        else:
            ops.moe_down(b, experts, spec)

    def _mlp_rows(self, b: Buffers, layer: LayerWeights, rows: int) -> int:
        """Leave MLP of normed_TD for the next norm to add; returns in how many parts."""
        spec, ops = self.spec, self.ops
        if layer.experts is None:
            assert layer.up is not None
            assert layer.down is not None
            inner_TF = self._inner_rows(b, layer.up, spec.activation, rows)
            return ops.delta_rows(b, inner_TF, layer.down, rows)
        experts = layer.experts
        ops.linear_rows(b.normed_TD[:rows], Linear(experts.router_ED), b.router_TE[:rows])
        ops.moe_rows(b, experts, spec, rows)
        if experts.shared_up is not None and experts.shared_down is not None:
            # qkv_TN is free between two attentions and wide enough for a (T, D) result.
            y_TD = b.qkv_TN.view(-1)[: rows * spec.hidden].view(rows, spec.hidden)
            inner_TF = self._inner_rows(b, experts.shared_up, "swiglu", rows)
            ops.linear_rows(inner_TF, experts.shared_down, y_TD)
            ops.gate_rows(b, y_TD, spec, rows)
        return 1

    def _inner_rows(self, b: Buffers, up: Linear, kind: str, rows: int) -> Tensor:
        width = up.weight_NK.shape[0]
        inner = width // 2 if kind == "swiglu" else width
        up_TF = b.up_TF.view(-1)[: rows * width].view(rows, width)
        inner_TF = b.inner_TF.view(-1)[: rows * inner].view(rows, inner)
        self.ops.linear_rows(b.normed_TD[:rows], up, up_TF)
        self.ops.activate_rows(up_TF, inner_TF, kind)
        return inner_TF

    def _finish(self, b: Buffers, advance: bool, cut: Cut) -> None:
        self.ops.gemv(
            b.x_D, self._head, b.logits_V, "store", norm=self.weights.norm, eps=self.spec.eps
        )
        cut(partial(self.ops.sample, b, advance))
