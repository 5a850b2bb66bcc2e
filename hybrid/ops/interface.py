"""What every implementation of the operations does: names, arguments, effects in place.

Letters as in `state/buffers.py`; H heads, S cache slots. Arithmetic is float32; what is stored has
the dtype of its buffer. Capture-safe on CUDA: no allocation that outlives the call, no host sync.
"""

from __future__ import annotations

from typing import Literal, Protocol

from torch import Tensor

from hybrid.model.spec import Activation, Spec
from hybrid.model.weights import Experts, Linear, Norm, Weights
from hybrid.state.buffers import Buffers
from hybrid.state.kv_cache import KVCache

# What a matrix-vector product does with its result.
Kind = Literal["store", "add", "swiglu", "gelu"]


class WholeStep(Protocol):
    """A decode step in one piece: embedding to logits, over the live buffers and cache."""

    def enqueue(self) -> None:
        """Enqueue it for the token and position in the control block. Capture-safe."""
        ...


class Ops(Protocol):
    """The operations of a network over the static buffers of one sequence."""

    def clone_for_stream(self) -> Ops:
        """Return these operations for another stream, which may run at the same time."""
        ...

    # ---- one token ------------------------------------------------------------------------------

    def embed(self, b: Buffers, weights: Weights) -> None:
        """x_D = embedding of the control block's token (+ learned position)."""
        ...

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
        """Matrix times vector, with what stands before and after it.

        Args:
            kind: "store": out = y; "add": out += y (times sigmoid(gate) if a gate scalar is
                given); "swiglu": out = silu(first half of y) * second half; "gelu": out = gelu(y).
            norm: Applied to x first, with eps.
        """
        ...

    def attend(
        self, b: Buffers, cache: KVCache, weights: Weights, index: int, spec: Spec, context: int
    ) -> None:
        """Layer `index`: rotate, write the new key and value at the device-side position, attend.

        Result in attention_N. Reads rows 0 .. position of the cache, never more than `context`.
        """
        ...

    def moe_up(self, b: Buffers, norm: Norm, experts: Experts, spec: Spec) -> None:
        """expert_KF = silu(gate) * up of the normalised x_D, for the K experts of router_E."""
        ...

    def moe_down(self, b: Buffers, experts: Experts, spec: Spec) -> None:
        """x_D += the weighted sum of the K experts' down projections."""
        ...

    def sample(self, b: Buffers, advance: bool) -> None:
        """Draw a token from logits_V as the control block says; write it to control and both rings.

        step += 1, and position += 1 if `advance` (a decode step; prefill set the position itself).
        """
        ...

    # ---- the rows of a prompt -------------------------------------------------------------------

    def upload(self, b: Buffers, rows: int) -> None:
        """control = the staged request, with `rows` token ids."""
        ...

    def embed_rows(self, b: Buffers, weights: Weights, rows: int) -> None:
        """x_TD of the first `rows` ids; rows at and past LENGTH hold garbage that nothing reads."""
        ...

    def norm_rows(self, b: Buffers, norm: Norm, eps: float, rows: int, parts: int) -> None:
        """x_TD += what `delta_rows` left, if there are `parts`; normed_TD = norm(x_TD)."""
        ...

    def delta_rows(self, b: Buffers, a_TK: Tensor, linear: Linear, rows: int) -> int:
        """Leave a @ weight.T (+ bias) for the next norm to add; return in how many parts."""
        ...

    def linear_rows(self, a_TK: Tensor, linear: Linear, out_TN: Tensor) -> None:
        """out = a @ weight.T (+ bias)."""
        ...

    def attend_rows(
        self, b: Buffers, cache: KVCache, weights: Weights, index: int, spec: Spec, rows: int
    ) -> Tensor:
        """Layer `index`: return causal attention over qkv_TN, (T, H * D).

        Writes keys and values into rows 0 .. T-1 of the cache. Queries and keys are normalised and
        rotated first. Pads stand right, so no mask is needed.
        """
        ...

    def activate_rows(self, up_TF: Tensor, out_TF: Tensor, kind: Activation) -> None:
        """out = silu(first half) * second half ("swiglu"), or gelu ("gelu")."""
        ...

    def moe_rows(self, b: Buffers, experts: Experts, spec: Spec, rows: int) -> None:
        """delta_TD = the weighted expert outputs of normed_TD, routed by router_TE."""
        ...

    def gate_rows(self, b: Buffers, y_TD: Tensor, spec: Spec, rows: int) -> None:
        """delta_TD += sigmoid(router_TE[:, E]) * y: the shared expert's gate."""
        ...

    def take_row(self, b: Buffers, attention_TN: Tensor) -> None:
        """x_D and attention_N = row LENGTH - 1 of x_TD and attention_TN."""
        ...
