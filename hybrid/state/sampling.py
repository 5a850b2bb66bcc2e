"""What a request may choose about sampling, and Philox, the random numbers behind it.

The numbers are a pure function of (seed, step, vocabulary index): no generator state exists, so
the graph, jit and eager tiers draw the same ones and a request can be repeated from its seed.
Source: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (Philox-4x32-10).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from hybrid.errors import HybridError

_MASK = 0xFFFFFFFF
_ROUND_A, _ROUND_B = 0xD2511F53, 0xCD9E8D57
_KEY_A, _KEY_B = 0x9E3779B9, 0xBB67AE85


@dataclass(frozen=True)
class Sampling:
    """How the next token is drawn.

    Attributes:
        temperature: 0 is greedy (highest logit, lowest index on ties).
        top_k: Keep the k highest logits; 0 keeps all. Logits equal to the k-th are all kept.
        top_p: Keep the smallest set of most probable tokens whose mass reaches p; 1 keeps all.
        seed: 64-bit key of the random numbers.

    Raises:
        HybridError: A value is outside its range.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.temperature >= 0 or self.temperature > 1e4:
            raise HybridError(f"temperature is {self.temperature}; it must be in 0 .. 10000")
        if self.top_k < 0:
            raise HybridError(f"top_k is {self.top_k}; it must be 0 (off) or positive")
        if not 0 < self.top_p <= 1:
            raise HybridError(f"top_p is {self.top_p}; it must be above 0 and at most 1 (off)")


def philox(seed: int, c0: Tensor, c1: int) -> Tensor:
    """Return the first of Philox-4x32-10's four words for counters (c0, c1, 0, 0), as int64.

    Args:
        seed: The 64-bit key.
        c0: int64 counters below 2**32, any shape; c1 is the same for all of them.
    """
    k0, k1 = seed & _MASK, (seed >> 32) & _MASK
    zero = torch.zeros_like(c0)
    w0, w1, w2, w3 = c0, zero + (c1 & _MASK), zero, zero
    for _ in range(10):
        high_a, low_a = _multiply(w0, _ROUND_A)
        high_b, low_b = _multiply(w2, _ROUND_B)
        w0, w1, w2, w3 = high_b ^ w1 ^ k0, low_b, high_a ^ w3 ^ k1, low_a
        k0, k1 = (k0 + _KEY_A) & _MASK, (k1 + _KEY_B) & _MASK
    return w0


def gumbel(seed: int, step: int, size: int, device: torch.device) -> Tensor:
    """Return `size` float32 Gumbel numbers for one step."""
    word = philox(seed, torch.arange(size, device=device, dtype=torch.int64), step)
    uniform = ((word >> 9).float() + 0.5) * 2.0**-23
    return -torch.log(-torch.log(uniform))


def draw(logits_V: Tensor, sampling: Sampling, step: int) -> Tensor:
    """Return the drawn token, an int64 scalar tensor, from float32 logits (V,).

    The reference of the sampling kernel, and the sampler of the eager tier. Capture-safe only for
    greedy sampling.
    """
    logits_V = logits_V.float()
    if sampling.temperature == 0:
        return _first_max(logits_V)
    keep_V = torch.ones_like(logits_V, dtype=torch.bool)
    if 0 < sampling.top_k < logits_V.numel():
        keep_V &= logits_V >= torch.topk(logits_V, sampling.top_k).values[-1]
    if sampling.top_p < 1:
        weight_V = torch.exp((logits_V - logits_V.max()) / sampling.temperature) * keep_V
        sorted_V, order_V = torch.sort(weight_V, descending=True, stable=True)
        before_V = torch.cumsum(sorted_V, 0) - sorted_V
        kept = int((before_V < sampling.top_p * weight_V.sum()).sum())
        keep_V &= logits_V >= logits_V[order_V[max(kept, 1) - 1]]
    noise_V = gumbel(sampling.seed, step, logits_V.numel(), logits_V.device)
    score_V = logits_V / sampling.temperature + noise_V
    return _first_max(torch.where(keep_V, score_V, float("-inf")))


def _first_max(score_V: Tensor) -> Tensor:
    index_V = torch.arange(score_V.numel(), device=score_V.device)
    return torch.where(score_V == score_V.max(), index_V, score_V.numel()).min()


def _multiply(word: Tensor, constant: int) -> tuple[Tensor, Tensor]:
    # 32 x 32 bits in int64: in halves, since the product of two 32-bit numbers may pass 2**63.
    low = (word & 0xFFFF) * constant
    high = (word >> 16) * constant + (low >> 16)
    return (high >> 16) & _MASK, ((high & 0xFFFF) << 16) | (low & 0xFFFF)
