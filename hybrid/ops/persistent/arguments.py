"""The kernel's argument: where everything stands that a step reads or writes."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from hybrid.model.weights import LayerWeights, Weights
from hybrid.state.buffers import Buffers
from hybrid.state.kv_cache import KVCache


class Arguments:
    """One step's memory. Lives as long as any graph that was captured with it.

    Attributes:
        step: The argument itself, `Step` of step.cu: pointers, those of the layers first.
        sync: int32 (4,): see `Step` of step.cu.
        fault: int32 (1,) in host memory: the number of the barrier at which a step was given up,
            0 if none was.
    """

    def __init__(self, weights: Weights, b: Buffers, cache: KVCache, parts: int) -> None:
        """Allocate the kernel's own scratch; everything else is adopted.

        Args:
            parts: Into how many parts the context is cut at most.
        """
        device = weights.device
        layers = len(weights.layers)
        table = [at for i in range(layers) for at in _layer(weights.layers[i], *cache.layer(i))]
        widths = (b.qkv_N.numel(), parts * b.attention_N.numel(), b.inner_F.numel())
        heads = b.partial.shape[0]
        # NaN whose lowest bits are those before the first step's: see tagged() in step.cu.
        sizes = (*widths, parts * heads * 2, b.x_D.numel())
        scratch = [
            torch.full((n,), -1, dtype=torch.int32, device=device).view(torch.float32)
            for n in sizes
        ]
        qkv, attended, inner, shares, x = scratch
        self.sync = torch.zeros(4, dtype=torch.int32, device=device)
        self.fault = torch.zeros(1, dtype=torch.int32, pin_memory=device.type == "cuda")
        self._kept = (*scratch, weights, b, cache)
        pointers = (
            *table,
            weights.embedding_VD.data_ptr(),
            _at(weights.position_PD),
            weights.norm.weight_K.data_ptr(),
            _at(weights.norm.bias_K),
            weights.head_VD.data_ptr(),
            _at(weights.cos_PH),
            _at(weights.sin_PH),
            b.control.data_ptr(),
            x.data_ptr(),
            qkv.data_ptr(),
            attended.data_ptr(),
            shares.data_ptr(),
            inner.data_ptr(),
            b.logits_V.data_ptr(),
            self.sync.data_ptr(),
            self.fault.data_ptr(),
        )
        self.step = (ctypes.c_void_p * len(pointers))(*pointers)


def _layer(layer: LayerWeights, keys: Tensor, values: Tensor) -> list[int]:
    """The pointers of `Layer` of step.cu, in their order."""
    assert layer.up is not None
    assert layer.down is not None
    found: list[int] = []
    for linear in (layer.qkv, layer.output, layer.up, layer.down):
        found += [linear.weight_NK.data_ptr(), _at(linear.bias_N)]
    for norm in (layer.attention_norm, layer.mlp_norm):
        found += [norm.weight_K.data_ptr(), _at(norm.bias_K)]
    return [*found, _at(layer.q_norm), _at(layer.k_norm), keys.data_ptr(), values.data_ptr()]


def _at(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()
