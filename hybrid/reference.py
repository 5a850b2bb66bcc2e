"""The runtime's operations in plain torch: the CPU path, and what the Triton kernels are tested by.

Same names, arguments and in-place effects as `kernels.py`. Letters as in `buffers.py`; H heads,
S cache slots. Arithmetic is float32; what is stored has the dtype of its buffer.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from . import buffers as slot
from .buffers import Buffers
from .config import Spec
from .sampling import Sampling, draw
from .weights import Experts, Linear, Norm, Weights


def normalise(x: Tensor, norm: Norm, eps: float) -> Tensor:
    """Return RMSNorm or LayerNorm of the last dimension, float32."""
    x = x.float()
    if norm.bias_K is not None:
        return F.layer_norm(x, x.shape[-1:], norm.weight_K.float(), norm.bias_K.float(), eps)
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * norm.weight_K.float()


# ---- one token ----------------------------------------------------------------------------------


def embed(b: Buffers, weights: Weights) -> None:
    """x_D = embedding of the control block's token (+ learned position)."""
    x_D = weights.embedding_VD[b.control[slot.TOKEN].long()].float()
    if weights.position_PD is not None:
        last = weights.position_PD.shape[0] - 1
        x_D = x_D + weights.position_PD[b.control[slot.POSITION].long().clamp(max=last)].float()
    b.x_D.copy_(x_D)


def gemv(
    x_K: Tensor,
    linear: Linear,
    out_N: Tensor,
    kind: str,
    norm: Norm | None = None,
    eps: float = 0.0,
    gate: Tensor | None = None,
) -> None:
    """Matrix times vector, with what stands before and after it.

    Args:
        kind: "store": out = y; "add": out += y (times sigmoid(gate) if a gate scalar is given);
            "swiglu": out = silu(first half of y) * second half; "gelu": out = gelu(y).
        norm: Applied to x first, with eps.
    """
    x_K = x_K.float() if norm is None else normalise(x_K, norm, eps)
    y_N = linear.weight_NK.float() @ x_K
    if linear.bias_N is not None:
        y_N = y_N + linear.bias_N.float()
    if kind == "add":
        out_N.add_(y_N if gate is None else y_N * torch.sigmoid(gate.float()))
    elif kind == "swiglu":
        first, second = y_N.chunk(2)
        out_N.copy_(F.silu(first) * second)
    elif kind == "gelu":
        out_N.copy_(F.gelu(y_N, approximate="tanh"))
    else:
        out_N.copy_(y_N)


def _rotate(x_HD: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x_HD.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


def _split_heads(
    qkv: Tensor, spec: Spec, q_norm: Tensor | None, k_norm: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """(T, N) to q (T, H, D), k and v (T, Hkv, D), float32, q and k normalised."""
    rows = qkv.shape[0]
    kv = spec.kv_heads * spec.head_dim
    q, k, v = qkv.float().split([spec.attention_width, kv, kv], dim=-1)
    if spec.qk_norm == "full" and q_norm is not None and k_norm is not None:
        q, k = normalise(q, Norm(q_norm), spec.eps), normalise(k, Norm(k_norm), spec.eps)
    q, k = q.view(rows, -1, spec.head_dim), k.view(rows, -1, spec.head_dim)
    if spec.qk_norm == "head" and q_norm is not None and k_norm is not None:
        q, k = normalise(q, Norm(q_norm), spec.eps), normalise(k, Norm(k_norm), spec.eps)
    return q, k, v.view(rows, -1, spec.head_dim)


def attend(
    b: Buffers,
    k_HSD: Tensor,
    v_HSD: Tensor,
    weights: Weights,
    q_norm: Tensor | None,
    k_norm: Tensor | None,
    spec: Spec,
    context: int,
) -> None:
    """Rotate, write the new key and value at the device-side position, attend; to attention_N.

    Reads rows 0 .. position of the cache, never more than `context`.
    """
    position = int(b.control[slot.POSITION])
    q, k, v = _split_heads(b.qkv_N[None], spec, q_norm, k_norm)
    if weights.cos_PH is not None and weights.sin_PH is not None:
        cos, sin = weights.cos_PH[position], weights.sin_PH[position]
        q, k = _rotate(q, cos, sin), _rotate(k, cos, sin)
    if position < k_HSD.shape[1]:
        k_HSD[:, position] = k[0].to(k_HSD.dtype)
        v_HSD[:, position] = v[0].to(v_HSD.dtype)
    length = min(position + 1, context)
    group = spec.heads // spec.kv_heads
    keys = k_HSD[:, :length].float().repeat_interleave(group, 0)
    values = v_HSD[:, :length].float().repeat_interleave(group, 0)
    score = torch.einsum("hd,hsd->hs", q[0], keys) * spec.head_dim**-0.5
    b.attention_N.copy_(torch.einsum("hs,hsd->hd", score.softmax(-1), values).reshape(-1))


def _route(logits: Tensor, spec: Spec) -> tuple[Tensor, Tensor]:
    """(.., E) router logits to expert ids and weights (.., K); ties go to the lower index."""
    probability = logits[..., : spec.experts].float().softmax(-1)
    order = torch.sort(probability, dim=-1, descending=True, stable=True)
    k = spec.experts_per_token
    value, index = order.values[..., :k], order.indices[..., :k]
    if spec.renormalise:
        value = value / value.sum(-1, keepdim=True)
    return index, value


def moe_up(b: Buffers, norm: Norm, experts: Experts, spec: Spec) -> None:
    """expert_KF = silu(gate) * up of the normalised x_D, for the K experts of router_E."""
    index_K, _ = _route(b.router_E[: spec.experts], spec)
    x_D = normalise(b.x_D, norm, spec.eps)
    y_KF = experts.up_EFD[index_K].float() @ x_D
    first, second = y_KF.chunk(2, dim=-1)
    b.expert_KF.copy_(F.silu(first) * second)


def moe_down(b: Buffers, experts: Experts, spec: Spec) -> None:
    """x_D += the weighted sum of the K experts' down projections."""
    index_K, weight_K = _route(b.router_E[: spec.experts], spec)
    y_KD = torch.einsum("kdf,kf->kd", experts.down_EDF[index_K].float(), b.expert_KF.float())
    b.x_D.add_((y_KD * weight_K[:, None]).sum(0))


def sample(b: Buffers, advance: bool) -> None:
    """Draw a token from logits_V as the control block says; write it to control and both rings.

    step += 1, and position += 1 if `advance` (a decode step; prefill set the position itself).
    """
    control = b.control
    floats = control.view(torch.float32)
    low, high = int(control[slot.SEED_LOW]), int(control[slot.SEED_HIGH])
    sampling = Sampling(
        temperature=float(floats[slot.TEMPERATURE]),
        top_k=int(control[slot.TOP_K]),
        top_p=float(floats[slot.TOP_P]),
        seed=(low & 0xFFFFFFFF) | (high & 0xFFFFFFFF) << 32,
    )
    step = int(control[slot.STEP])
    token = int(draw(b.logits_V, sampling, step))
    place = (int(control[slot.RING_BASE]) + step) % slot.RING
    control[slot.TOKEN] = token
    control[slot.STEP] += 1
    if advance:
        control[slot.POSITION] += 1
    b.ring[place] = token
    b.host_ring[place] = token


# ---- the rows of a prompt -----------------------------------------------------------------------


def embed_rows(b: Buffers, weights: Weights, rows: int) -> None:
    """x_TD of the first `rows` ids; rows at and past LENGTH hold garbage that nothing reads."""
    ids_T = b.control[slot.IDS : slot.IDS + rows].long()
    x_TD = weights.embedding_VD[ids_T].float()
    if weights.position_PD is not None:
        x_TD = x_TD + weights.position_PD[:rows].float()
    b.x_TD[:rows].copy_(x_TD)


def upload(b: Buffers, rows: int) -> None:
    """control = the staged request, with `rows` token ids."""
    b.upload(rows)


def norm_rows(b: Buffers, norm: Norm, eps: float, rows: int, parts: int) -> None:
    """x_TD += delta_TD if there are `parts`; normed_TD = norm(x_TD)."""
    if parts:
        b.x_TD[:rows].add_(b.delta_TD[:rows])
    b.normed_TD[:rows].copy_(normalise(b.x_TD[:rows], norm, eps))


def delta_rows(b: Buffers, a_TK: Tensor, linear: Linear, rows: int) -> int:
    """delta_TD = a @ weight.T (+ bias), for the next norm to add; in one part."""
    linear_rows(a_TK, linear, b.delta_TD[:rows])
    return 1


def linear_rows(a_TK: Tensor, linear: Linear, out_TN: Tensor) -> None:
    """out = a @ weight.T (+ bias)."""
    if linear.bias_N is None:
        torch.mm(a_TK, linear.weight_NK.t(), out=out_TN)
    else:
        torch.addmm(linear.bias_N, a_TK, linear.weight_NK.t(), out=out_TN)


def attend_rows(
    b: Buffers,
    k_HSD: Tensor,
    v_HSD: Tensor,
    weights: Weights,
    q_norm: Tensor | None,
    k_norm: Tensor | None,
    spec: Spec,
    rows: int,
) -> Tensor:
    """Return causal attention over qkv_TN, (T, H * D); write k and v into cache rows 0 .. rows-1.

    Queries and keys are normalised and rotated first. Pads stand right, so no mask is needed.
    """
    q, k, v = _split_heads(b.qkv_TN[:rows], spec, q_norm, k_norm)
    if weights.cos_PH is not None and weights.sin_PH is not None:
        cos, sin = weights.cos_PH[:rows, None], weights.sin_PH[:rows, None]
        q, k = _rotate(q, cos, sin), _rotate(k, cos, sin)
    width, kv = spec.attention_width, spec.kv_heads * spec.head_dim
    b.qkv_TN[:rows, :width] = q.reshape(rows, -1).to(b.qkv_TN.dtype)
    b.qkv_TN[:rows, width : width + kv] = k.reshape(rows, -1).to(b.qkv_TN.dtype)
    k_HSD[:, :rows] = k.transpose(0, 1).to(k_HSD.dtype)
    v_HSD[:, :rows] = v.transpose(0, 1).to(v_HSD.dtype)
    q, k, v = _heads_of(b, spec, rows)
    group = spec.heads // spec.kv_heads
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    return out[0].transpose(0, 1).reshape(rows, spec.attention_width)


def _heads_of(b: Buffers, spec: Spec, rows: int) -> tuple[Tensor, Tensor, Tensor]:
    width, kv, dim = spec.attention_width, spec.kv_heads * spec.head_dim, spec.head_dim
    qkv = b.qkv_TN[:rows]
    parts = (qkv[:, :width], qkv[:, width : width + kv], qkv[:, width + kv :])
    q, k, v = (part.view(rows, -1, dim).transpose(0, 1)[None] for part in parts)
    return q, k, v


def activate_rows(up_TF: Tensor, out_TF: Tensor, kind: str) -> None:
    """out = silu(first half) * second half ("swiglu"), or gelu ("gelu")."""
    if kind == "gelu":
        out_TF.copy_(F.gelu(up_TF.float(), approximate="tanh"))
    else:
        first, second = up_TF.float().chunk(2, dim=-1)
        out_TF.copy_(F.silu(first) * second)


def moe_rows(b: Buffers, experts: Experts, spec: Spec, rows: int) -> None:
    """delta_TD = the weighted expert outputs of normed_TD, routed by router_TE."""
    normed_TD = b.normed_TD[:rows].float()
    index_TK, weight_TK = _route(b.router_TE[:rows], spec)
    delta_TD = torch.zeros_like(normed_TD)
    for k in range(spec.experts_per_token):
        for expert in range(spec.experts):
            here_T = (index_TK[:, k] == expert).nonzero()[:, 0]
            if not here_T.numel():
                continue
            first, second = (normed_TD[here_T] @ experts.up_EFD[expert].float().t()).chunk(2, -1)
            inner = (F.silu(first) * second).to(b.normed_TD.dtype).float()
            y = inner @ experts.down_EDF[expert].float().t()
            delta_TD[here_T] += y * weight_TK[here_T, k, None]
    b.delta_TD[:rows].copy_(delta_TD)


def gate_rows(b: Buffers, y_TD: Tensor, spec: Spec, rows: int) -> None:
    """delta_TD += sigmoid(router_TE[:, E]) * y: the shared expert's gate."""
    gate_T = torch.sigmoid(b.router_TE[:rows, spec.experts].float())
    b.delta_TD[:rows].add_((y_TD.float() * gate_T[:, None]).to(b.delta_TD.dtype))


def take_row(b: Buffers, attention_TN: Tensor) -> None:
    """x_D and attention_N = row LENGTH - 1 of x_TD and attention_TN."""
    last = b.control[slot.LENGTH].long() - 1
    b.x_D.copy_(b.x_TD.index_select(0, last[None])[0])
    b.attention_N.copy_(attention_TN.index_select(0, last[None])[0])
