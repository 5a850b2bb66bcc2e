"""The operations in plain torch: the CPU path, and what the Triton kernels are tested by."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from hybrid.model.spec import Activation, Spec
from hybrid.model.weights import Experts, Linear, Norm, Weights
from hybrid.state import control as slot
from hybrid.state.buffers import RING, Buffers
from hybrid.state.kv_cache import KVCache
from hybrid.state.sampling import Sampling, draw

from .interface import Kind


class ReferenceOps:
    """`Ops` without kernels and without graphs: it may read the device and allocate."""

    def clone_for_stream(self) -> ReferenceOps:
        return self

    # ---- one token ------------------------------------------------------------------------------

    def embed(self, b: Buffers, weights: Weights) -> None:
        x_D = weights.embedding_VD[b.control[slot.TOKEN].long()].float()
        if weights.position_PD is not None:
            last = weights.position_PD.shape[0] - 1
            x_D = x_D + weights.position_PD[b.control[slot.POSITION].long().clamp(max=last)].float()
        b.x_D.copy_(x_D)

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

    def attend(
        self, b: Buffers, cache: KVCache, weights: Weights, index: int, spec: Spec, context: int
    ) -> None:
        k_HSD, v_HSD = cache.layer(index)
        layer = weights.layers[index]
        position = int(b.control[slot.POSITION])
        q, k, v = split_heads(b.qkv_N[None], spec, layer.q_norm, layer.k_norm)
        if weights.cos_PH is not None and weights.sin_PH is not None:
            cos, sin = weights.cos_PH[position], weights.sin_PH[position]
            q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        if position < k_HSD.shape[1]:
            k_HSD[:, position] = k[0].to(k_HSD.dtype)
            v_HSD[:, position] = v[0].to(v_HSD.dtype)
        length = min(position + 1, context)
        group = spec.heads // spec.kv_heads
        keys = k_HSD[:, :length].float().repeat_interleave(group, 0)
        values = v_HSD[:, :length].float().repeat_interleave(group, 0)
        score = torch.einsum("hd,hsd->hs", q[0], keys) * spec.head_dim**-0.5
        b.attention_N.copy_(torch.einsum("hs,hsd->hd", score.softmax(-1), values).reshape(-1))

    def moe_up(self, b: Buffers, norm: Norm, experts: Experts, spec: Spec) -> None:
        index_K, _ = _route(b.router_E[: spec.experts], spec)
        x_D = normalise(b.x_D, norm, spec.eps)
        y_KF = experts.up_EFD[index_K].float() @ x_D
        first, second = y_KF.chunk(2, dim=-1)
        b.expert_KF.copy_(F.silu(first) * second)

    def moe_down(self, b: Buffers, experts: Experts, spec: Spec) -> None:
        index_K, weight_K = _route(b.router_E[: spec.experts], spec)
        y_KD = torch.einsum("kdf,kf->kd", experts.down_EDF[index_K].float(), b.expert_KF.float())
        b.x_D.add_((y_KD * weight_K[:, None]).sum(0))

    def sample(self, b: Buffers, advance: bool) -> None:
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
        place = (int(control[slot.RING_BASE]) + step) % RING
        control[slot.TOKEN] = token
        control[slot.STEP] += 1
        if advance:
            control[slot.POSITION] += 1
        b.ring[place] = token
        b.host_ring[place] = token

    # ---- the rows of a prompt -------------------------------------------------------------------

    def embed_rows(self, b: Buffers, weights: Weights, rows: int) -> None:
        ids_T = b.control[slot.IDS : slot.IDS + rows].long()
        x_TD = weights.embedding_VD[ids_T].float()
        if weights.position_PD is not None:
            x_TD = x_TD + weights.position_PD[:rows].float()
        b.x_TD[:rows].copy_(x_TD)

    def upload(self, b: Buffers, rows: int) -> None:
        b.upload(rows)

    def norm_rows(self, b: Buffers, norm: Norm, eps: float, rows: int, parts: int) -> None:
        if parts:
            b.x_TD[:rows].add_(b.delta_TD[:rows])
        b.normed_TD[:rows].copy_(normalise(b.x_TD[:rows], norm, eps))

    def delta_rows(self, b: Buffers, a_TK: Tensor, linear: Linear, rows: int) -> int:
        self.linear_rows(a_TK, linear, b.delta_TD[:rows])
        return 1

    def linear_rows(self, a_TK: Tensor, linear: Linear, out_TN: Tensor) -> None:
        if linear.bias_N is None:
            torch.mm(a_TK, linear.weight_NK.t(), out=out_TN)
        else:
            torch.addmm(linear.bias_N, a_TK, linear.weight_NK.t(), out=out_TN)

    def attend_rows(
        self, b: Buffers, cache: KVCache, weights: Weights, index: int, spec: Spec, rows: int
    ) -> Tensor:
        k_HSD, v_HSD = cache.layer(index)
        layer = weights.layers[index]
        q, k, v = split_heads(b.qkv_TN[:rows], spec, layer.q_norm, layer.k_norm)
        if weights.cos_PH is not None and weights.sin_PH is not None:
            cos, sin = weights.cos_PH[:rows, None], weights.sin_PH[:rows, None]
            q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        width, kv = spec.attention_width, spec.kv_heads * spec.head_dim
        b.qkv_TN[:rows, :width] = q.reshape(rows, -1).to(b.qkv_TN.dtype)
        b.qkv_TN[:rows, width : width + kv] = k.reshape(rows, -1).to(b.qkv_TN.dtype)
        k_HSD[:, :rows] = k.transpose(0, 1).to(k_HSD.dtype)
        v_HSD[:, :rows] = v.transpose(0, 1).to(v_HSD.dtype)
        q, k, v = prepared_heads(b, spec, rows)
        group = spec.heads // spec.kv_heads
        k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return out[0].transpose(0, 1).reshape(rows, spec.attention_width)

    def activate_rows(self, up_TF: Tensor, out_TF: Tensor, kind: Activation) -> None:
        if kind == "gelu":
            out_TF.copy_(F.gelu(up_TF.float(), approximate="tanh"))
        else:
            first, second = up_TF.float().chunk(2, dim=-1)
            out_TF.copy_(F.silu(first) * second)

    def moe_rows(self, b: Buffers, experts: Experts, spec: Spec, rows: int) -> None:
        normed_TD = b.normed_TD[:rows].float()
        index_TK, weight_TK = _route(b.router_TE[:rows], spec)
        delta_TD = torch.zeros_like(normed_TD)
        for k in range(spec.experts_per_token):
            for expert in range(spec.experts):
                here_T = (index_TK[:, k] == expert).nonzero()[:, 0]
                if not here_T.numel():
                    continue
                first, second = (normed_TD[here_T] @ experts.up_EFD[expert].float().t()).chunk(
                    2, -1
                )
                inner = (F.silu(first) * second).to(b.normed_TD.dtype).float()
                y = inner @ experts.down_EDF[expert].float().t()
                delta_TD[here_T] += y * weight_TK[here_T, k, None]
        b.delta_TD[:rows].copy_(delta_TD)

    def gate_rows(self, b: Buffers, y_TD: Tensor, spec: Spec, rows: int) -> None:
        gate_T = torch.sigmoid(b.router_TE[:rows, spec.experts].float())
        b.delta_TD[:rows].add_((y_TD.float() * gate_T[:, None]).to(b.delta_TD.dtype))

    def take_row(self, b: Buffers, attention_TN: Tensor) -> None:
        last = b.control[slot.LENGTH].long() - 1
        b.x_D.copy_(b.x_TD.index_select(0, last[None])[0])
        b.attention_N.copy_(attention_TN.index_select(0, last[None])[0])


def normalise(x: Tensor, norm: Norm, eps: float) -> Tensor:
    """Return RMSNorm or LayerNorm of the last dimension, float32."""
    x = x.float()
    if norm.bias_K is not None:
        return F.layer_norm(x, x.shape[-1:], norm.weight_K.float(), norm.bias_K.float(), eps)
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * norm.weight_K.float()


def rotate(x_HD: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x_HD.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


def split_heads(
    qkv: Tensor, spec: Spec, q_norm: Tensor | None, k_norm: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """(T, N) to q (T, H, D), k and v (T, Hkv, D), float32, q and k normalised."""
    rows = qkv.shape[0]
    kv = spec.kv_heads * spec.head_dim
    q, k, v = torch.split(qkv.float(), [spec.attention_width, kv, kv], dim=-1)
    if spec.qk_norm == "full" and q_norm is not None and k_norm is not None:
        q, k = normalise(q, Norm(q_norm), spec.eps), normalise(k, Norm(k_norm), spec.eps)
    q, k = q.view(rows, -1, spec.head_dim), k.view(rows, -1, spec.head_dim)
    if spec.qk_norm == "head" and q_norm is not None and k_norm is not None:
        q, k = normalise(q, Norm(q_norm), spec.eps), normalise(k, Norm(k_norm), spec.eps)
    return q, k, v.view(rows, -1, spec.head_dim)


def _route(logits: Tensor, spec: Spec) -> tuple[Tensor, Tensor]:
    """(.., E) router logits to expert ids and weights (.., K); ties go to the lower index."""
    probability = logits[..., : spec.experts].float().softmax(-1)
    order = torch.sort(probability, dim=-1, descending=True, stable=True)
    k = spec.experts_per_token
    value, index = order.values[..., :k], order.indices[..., :k]
    if spec.renormalise:
        value = value / value.sum(-1, keepdim=True)
    return index, value


def prepared_heads(b: Buffers, spec: Spec, rows: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return queries, keys and values in qkv_TN as views, each (1, H, T, D)."""
    width, kv, dim = spec.attention_width, spec.kv_heads * spec.head_dim, spec.head_dim
    qkv = b.qkv_TN[:rows]
    parts = (qkv[:, :width], qkv[:, width : width + kv], qkv[:, width + kv :])
    q, k, v = (part.view(rows, -1, dim).transpose(0, 1)[None] for part in parts)
    return q, k, v
