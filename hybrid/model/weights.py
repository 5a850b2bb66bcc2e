"""Weights adopted from a transformers model: fused where one kernel reads them, never held twice.

Letters: N output width, K input width, D hidden, F inner, E experts, V vocabulary, P positions.
Query, key and value become one matrix, gate and up another. The transformers parameters are then
set to views of the fused storage, so the model still runs (it is the oracle and the eager tier)
and nothing is stored twice.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from hybrid.errors import UnsupportedModel

from .spec import Spec


@dataclass(frozen=True)
class Norm:
    """Weight (K,) and, for LayerNorm, bias (K,)."""

    weight_K: Tensor
    bias_K: Tensor | None = None


@dataclass(frozen=True)
class Linear:
    """Weight (N, K), contiguous, and bias (N,) or None."""

    weight_NK: Tensor
    bias_N: Tensor | None = None


@dataclass(frozen=True)
class Experts:
    """Router rows (E or E+1, D): the shared expert's gate is row E; stacked expert weights."""

    router_ED: Tensor
    up_EFD: Tensor
    down_EDF: Tensor
    shared_up: Linear | None
    shared_down: Linear | None


@dataclass(frozen=True)
class LayerWeights:
    attention_norm: Norm
    qkv: Linear
    q_norm: Tensor | None
    k_norm: Tensor | None
    output: Linear
    mlp_norm: Norm
    up: Linear | None
    down: Linear | None
    experts: Experts | None


@dataclass(frozen=True)
class Weights:
    """A whole model; rotary tables are float32 (P, head_dim / 2), None with learned positions."""

    embedding_VD: Tensor
    position_PD: Tensor | None
    cos_PH: Tensor | None
    sin_PH: Tensor | None
    layers: tuple[LayerWeights, ...]
    norm: Norm
    head_VD: Tensor

    @property
    def dtype(self) -> torch.dtype:
        return self.embedding_VD.dtype

    @property
    def device(self) -> torch.device:
        return self.embedding_VD.device


@torch.no_grad()
def adopt(model: Any, spec: Spec, positions: int) -> Weights:
    """Return the weights of a transformers model, fusing them in place.

    Args:
        model: The transformers model; its parameters become views of the fused weights.
        positions: Rows of the rotary tables.

    Raises:
        UnsupportedModel: Parameters have several dtypes or devices, or a bias is not expected.
    """
    kinds = {(p.dtype, p.device) for p in model.parameters()}
    if len(kinds) != 1:
        raise UnsupportedModel(
            f"the weights have {len(kinds)} kinds of dtype and device, such as {list(kinds)[:3]}; "
            "load the model in one dtype on one device (quantised weights are not implemented)"
        )
    return _gpt2(model, spec) if spec.family == "gpt2" else _llama_like(model, spec, positions)


def _gpt2(model: Any, spec: Spec) -> Weights:
    body = model.transformer
    layers = [
        LayerWeights(
            attention_norm=_layer_norm(block.ln_1),
            qkv=_conv1d(block.attn.c_attn),
            q_norm=None,
            k_norm=None,
            output=_conv1d(block.attn.c_proj),
            mlp_norm=_layer_norm(block.ln_2),
            up=_conv1d(block.mlp.c_fc),
            down=_conv1d(block.mlp.c_proj),
            experts=None,
        )
        for block in body.h
    ]
    return Weights(
        embedding_VD=body.wte.weight.data,
        position_PD=body.wpe.weight.data,
        cos_PH=None,
        sin_PH=None,
        layers=tuple(layers),
        norm=_layer_norm(body.ln_f),
        head_VD=model.lm_head.weight.data,
    )


def _llama_like(model: Any, spec: Spec, positions: int) -> Weights:
    body = model.model
    layers: list[LayerWeights] = []
    for index, block in enumerate(body.layers):
        attention, mlp = block.self_attn, block.mlp
        sparse = spec.sparse[index]
        layers.append(
            LayerWeights(
                attention_norm=Norm(block.input_layernorm.weight.data),
                qkv=_fuse(attention.q_proj, attention.k_proj, attention.v_proj),
                q_norm=attention.q_norm.weight.data if spec.qk_norm != "none" else None,
                k_norm=attention.k_norm.weight.data if spec.qk_norm != "none" else None,
                output=_linear(attention.o_proj),
                mlp_norm=Norm(block.post_attention_layernorm.weight.data),
                up=None if sparse else _fuse(mlp.gate_proj, mlp.up_proj),
                down=None if sparse else _linear(mlp.down_proj),
                experts=_experts(mlp, spec) if sparse else None,
            )
        )
    rotary = body.rotary_emb
    inverse_H = rotary.inv_freq.detach().double().cpu()
    angle_PH = torch.arange(positions, dtype=torch.float64)[:, None] * inverse_H[None, :]
    scale, device = float(rotary.attention_scaling), model.device
    return Weights(
        embedding_VD=body.embed_tokens.weight.data,
        position_PD=None,
        cos_PH=(angle_PH.cos() * scale).float().to(device),
        sin_PH=(angle_PH.sin() * scale).float().to(device),
        layers=tuple(layers),
        norm=Norm(body.norm.weight.data),
        head_VD=model.lm_head.weight.data,
    )


def _experts(block: Any, spec: Spec) -> Experts:
    router_ED = block.gate.weight.data
    shared_up = shared_down = None
    if spec.shared_inner:
        router_ED = torch.cat([router_ED, block.shared_expert_gate.weight.data])
        block.gate.weight.data = router_ED[:-1]
        block.shared_expert_gate.weight.data = router_ED[-1:]
        shared_up = _fuse(block.shared_expert.gate_proj, block.shared_expert.up_proj)
        shared_down = _linear(block.shared_expert.down_proj)
    experts = block.experts
    if not hasattr(experts, "gate_up_proj"):
        raise UnsupportedModel(
            "the experts are not stacked into gate_up_proj; transformers 5 or newer is needed"
        )
    up_EFD, down_EDF = experts.gate_up_proj.data, experts.down_proj.data
    return Experts(router_ED, up_EFD.contiguous(), down_EDF.contiguous(), shared_up, shared_down)


def _layer_norm(module: nn.LayerNorm) -> Norm:
    return Norm(module.weight.data, module.bias.data)


def _linear(module: nn.Linear) -> Linear:
    return Linear(module.weight.data.contiguous(), _bias(module))


def _bias(module: nn.Linear) -> Tensor | None:
    # torch's annotation knows no layer without one.
    bias = cast("nn.Parameter | None", module.bias)
    return None if bias is None else bias.data


def _conv1d(module: Any) -> Linear:
    # GPT-2 stores (K, N); a GEMV reads rows of (N, K). The module keeps a transposed view.
    weight_NK = module.weight.data.t().contiguous()
    module.weight.data = weight_NK.t()
    return Linear(weight_NK, module.bias.data)


def _fuse(*modules: nn.Linear) -> Linear:
    weight_NK = torch.cat([module.weight.data for module in modules])
    biases = [_bias(module) for module in modules]
    bias_N = None
    if all(bias is not None for bias in biases):
        bias_N = torch.cat([bias for bias in biases if bias is not None])
    elif any(bias is not None for bias in biases):
        raise UnsupportedModel("some of the projections to be fused have a bias and others do not")
    start = 0
    for module in modules:
        stop = start + module.weight.shape[0]
        module.weight.data = weight_NK[start:stop]
        if bias_N is not None:
            module.bias.data = bias_N[start:stop]
        start = stop
    return Linear(weight_NK, bias_N)
