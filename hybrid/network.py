"""The network: which operation follows which. No graph, no cache policy, no timing in it.

One code path for every mode and device. `cut` marks the dynamic domain (rotary + cache write +
attention, and sampling): run in place by default, between graphs when the piecewise recorder passes
its own. `pause` is called behind every operation, for who must not hold the interpreter for long.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Literal

from torch import Tensor

from hybrid.model.spec import Activation, Spec
from hybrid.model.weights import Experts, LayerWeights, Linear, Norm, Weights
from hybrid.ops.interface import Ops, WholeStep
from hybrid.state.buffers import Buffers
from hybrid.state.kv_cache import KVCache

Cut = Callable[[Callable[[], None]], None]
# What is run: a prompt padded to so many rows, or one token over so many cache rows.
Kind = Literal["prefill", "decode"]


def inline(dynamic: Callable[[], None]) -> None:
    """The cut of the modes without pieces."""
    dynamic()


def no_pause() -> None:
    """The pause of who may hold the interpreter."""


class Network:
    """A model's forward passes over static buffers.

    Attributes:
        whole: Stands for the operations of a decode step up to the logits, if there is one.
    """

    def __init__(
        self,
        spec: Spec,
        weights: Weights,
        ops: Ops,
        *,
        pause: Callable[[], None] = no_pause,
        sample: bool = True,
        whole: WholeStep | None = None,
    ) -> None:
        """Take the parts.

        Args:
            pause: Called behind every operation that is enqueued; never by a cut-out call when a
                graph is replayed.
            sample: False leaves the drawing of tokens out.
        """
        self.spec, self.weights, self.ops, self.whole = spec, weights, ops, whole
        self._pause, self._sample = pause, sample
        self._head = Linear(weights.head_VD)

    def run(self, kind: Kind, size: int, b: Buffers, cache: KVCache, cut: Cut = inline) -> None:
        """A whole step: `decode`, or the upload of the staged request and `prefill`."""
        if kind == "prefill":
            self.ops.upload(b, size)
            self._pause()
            self.prefill(b, cache, size, cut)
        elif self.whole is not None:
            self.whole.enqueue()
            self._pause()
            self._draw(b, advance=True, cut=cut)
        else:
            self.decode(b, cache, size, cut)

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
        self._pause()
        for index in layers if layers is not None else range(self.spec.layers):
            layer = self.weights.layers[index]
            self.ops.gemv(
                b.x_D, layer.qkv, b.qkv_N, "store", norm=layer.attention_norm, eps=self.spec.eps
            )
            self._pause()
            cut(partial(self.ops.attend, b, cache, self.weights, index, self.spec, context))
            self._pause()
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
        order = layers if layers is not None else tuple(range(self.spec.layers))
        self.ops.embed_rows(b, self.weights, rows)
        self._pause()
        parts = 0
        for index in order[:-1]:
            layer = self.weights.layers[index]
            attention_TN = self._attention_rows(b, cache, index, rows, parts, cut)
            parts = self._delta_rows(b, attention_TN, layer.output, rows)
            self._norm_rows(b, layer.mlp_norm, rows, parts)
            parts = self._mlp_rows(b, layer, rows)
        attention_TN = self._attention_rows(b, cache, order[-1], rows, parts, cut)
        self.ops.take_row(b, attention_TN)
        self._pause()
        self._after_attention(b, self.weights.layers[order[-1]])
        self._finish(b, advance=False, cut=cut)

    def _attention_rows(
        self, b: Buffers, cache: KVCache, index: int, rows: int, parts: int, cut: Cut
    ) -> Tensor:
        """Return the attention of one layer, (T, N), not yet projected."""
        layer = self.weights.layers[index]
        self._norm_rows(b, layer.attention_norm, rows, parts)
        self._linear_rows(b.normed_TD[:rows], layer.qkv, b.qkv_TN[:rows])
        # Between two graphs the attention result must stand at a fixed address; within one, the
        # tensor that attention returns is taken as it is.
        held = [] if cut is inline else [b.attention_TN[:rows]]
        cut(partial(self._attend_rows, b, cache, index, rows, held))
        self._pause()
        return held[0]

    def _attend_rows(
        self, b: Buffers, cache: KVCache, index: int, rows: int, held: list[Tensor]
    ) -> None:
        attention_TN = self.ops.attend_rows(b, cache, self.weights, index, self.spec, rows)
        if not held:
            held.append(attention_TN)
        elif held[0].data_ptr() != attention_TN.data_ptr():
            held[0].copy_(attention_TN)

    def _after_attention(self, b: Buffers, layer: LayerWeights) -> None:
        spec, ops = self.spec, self.ops
        ops.gemv(b.attention_N, layer.output, b.x_D, "add")
        self._pause()
        if layer.experts is not None:
            self._experts(b, layer.mlp_norm, layer.experts)
            return
        assert layer.up is not None
        assert layer.down is not None
        inner_F = b.inner_F[: spec.inner]
        ops.gemv(b.x_D, layer.up, inner_F, spec.activation, norm=layer.mlp_norm, eps=spec.eps)
        self._pause()
        ops.gemv(inner_F, layer.down, b.x_D, "add")
        self._pause()

    def _experts(self, b: Buffers, norm: Norm, experts: Experts) -> None:
        spec, ops = self.spec, self.ops
        router_E = b.router_E[: experts.router_ED.shape[0]]
        ops.gemv(b.x_D, Linear(experts.router_ED), router_E, "store", norm=norm, eps=spec.eps)
        self._pause()
        ops.moe_up(b, norm, experts, spec)
        self._pause()
        if experts.shared_up is None or experts.shared_down is None:
            ops.moe_down(b, experts, spec)
            self._pause()
            return
        shared_F = b.inner_F[: spec.shared_inner]
        # Before x_D changes: both projections up read the same residual.
        ops.gemv(b.x_D, experts.shared_up, shared_F, "swiglu", norm=norm, eps=spec.eps)
        self._pause()
        ops.moe_down(b, experts, spec)
        self._pause()
        gate = b.router_E[spec.experts : spec.experts + 1]
        ops.gemv(shared_F, experts.shared_down, b.x_D, "add", gate=gate)
        self._pause()

    def _norm_rows(self, b: Buffers, norm: Norm, rows: int, parts: int) -> None:
        self.ops.norm_rows(b, norm, self.spec.eps, rows, parts)
        self._pause()

    def _linear_rows(self, a_TK: Tensor, linear: Linear, out_TN: Tensor) -> None:
        self.ops.linear_rows(a_TK, linear, out_TN)
        self._pause()

    def _delta_rows(self, b: Buffers, a_TK: Tensor, linear: Linear, rows: int) -> int:
        parts = self.ops.delta_rows(b, a_TK, linear, rows)
        self._pause()
        return parts

    def _mlp_rows(self, b: Buffers, layer: LayerWeights, rows: int) -> int:
        """Leave the MLP of normed_TD for the next norm to add; return in how many parts."""
        spec, ops, experts = self.spec, self.ops, layer.experts
        if experts is None:
            assert layer.up is not None
            assert layer.down is not None
            inner_TF = self._inner_rows(b, layer.up, spec.activation, rows)
            return self._delta_rows(b, inner_TF, layer.down, rows)
        self._linear_rows(b.normed_TD[:rows], Linear(experts.router_ED), b.router_TE[:rows])
        ops.moe_rows(b, experts, spec, rows)
        self._pause()
        if experts.shared_up is not None and experts.shared_down is not None:
            # qkv_TN is free between two attentions and wide enough for a (T, D) result.
            y_TD = b.qkv_TN.view(-1)[: rows * spec.hidden].view(rows, spec.hidden)
            inner_TF = self._inner_rows(b, experts.shared_up, "swiglu", rows)
            self._linear_rows(inner_TF, experts.shared_down, y_TD)
            ops.gate_rows(b, y_TD, spec, rows)
            self._pause()
        return 1

    def _inner_rows(self, b: Buffers, up: Linear, kind: Activation, rows: int) -> Tensor:
        width = up.weight_NK.shape[0]
        inner = width // 2 if kind == "swiglu" else width
        up_TF = b.up_TF.view(-1)[: rows * width].view(rows, width)
        inner_TF = b.inner_TF.view(-1)[: rows * inner].view(rows, inner)
        self._linear_rows(b.normed_TD[:rows], up, up_TF)
        self.ops.activate_rows(up_TF, inner_TF, kind)
        self._pause()
        return inner_TF

    def _finish(self, b: Buffers, advance: bool, cut: Cut) -> None:
        self.ops.gemv(
            b.x_D, self._head, b.logits_V, "store", norm=self.weights.norm, eps=self.spec.eps
        )
        self._pause()
        self._draw(b, advance, cut)

    def _draw(self, b: Buffers, advance: bool, cut: Cut) -> None:
        if self._sample:
            cut(partial(self.ops.sample, b, advance))
            self._pause()
