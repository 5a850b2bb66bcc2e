"""Every tensor a step reads or writes besides weights and KV cache, at fixed addresses.

What may change between two replays of a graph stands in `control` (its words: `control.py`); a
number that the host reads at capture time would be baked in. Letters: T prompt rows, D hidden,
N width, F inner, V vocabulary, K experts of a token, E experts.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from hybrid.errors import OutOfMemory
from hybrid.model.spec import Spec

from . import control as slot
from .sampling import Sampling

RING = 16384
SPLIT_MIN = 64
MAX_SPLITS = 32
SAMPLE_BLOCK = 2048
# A product of a prompt may be left in parts for the norm behind it, up to so many rows.
MAX_PARTS, PART_ROWS = 4, 512

# Token ids of a prompt, (T,), in host memory.
Ids = npt.NDArray[np.integer[Any]]


class Buffers:
    """The state of one sequence and the scratch of one step.

    Attributes:
        control: int32 (IDS + rows): the control block, then the prompt's token ids.
        ring: int32 (RING,): token of step i at (base + i) % RING.
    """

    def __init__(
        self, spec: Spec, rows: int, dtype: torch.dtype, device: torch.device, pinned: bool
    ) -> None:
        """Allocate for prompts of up to `rows` tokens.

        Raises:
            OutOfMemory: The device refused.
        """
        try:
            self._allocate(spec, rows, dtype, device)
        except torch.OutOfMemoryError as error:
            raise OutOfMemory(
                f"no room for the buffers of a {rows}-token prompt on {device}: "
                "give a smaller max_context"
            ) from error
        self.rows = rows
        self.staging = torch.zeros(slot.IDS + rows, dtype=torch.int32, pin_memory=pinned)
        self.host_ring = torch.full((RING,), -1, dtype=torch.int32, pin_memory=pinned)
        # numpy views: a plain memory write or read, without torch's per-call cost.
        self.staging_array = self.staging.numpy()
        self.staging_floats = self.staging.view(torch.float32).numpy()
        self.ring_array = self.host_ring.numpy()

    def _allocate(self, spec: Spec, rows: int, dtype: torch.dtype, device: torch.device) -> None:
        def make(*shape: int, kind: torch.dtype = dtype) -> Tensor:
            return torch.zeros(shape, dtype=kind, device=device)

        f32, i32 = torch.float32, torch.int32
        widest = max(spec.inner if not all(spec.sparse) else 1, spec.shared_inner, 1)
        gates = 2 if spec.activation == "swiglu" else 1
        self.control = make(slot.IDS + rows, kind=i32)
        self.ring = make(RING, kind=i32)
        self.x_D = make(spec.hidden, kind=f32)
        self.qkv_N = make(spec.qkv_width)
        self.attention_N = make(spec.attention_width)
        self.inner_F = make(widest)
        self.logits_V = make(spec.vocab, kind=f32)
        self.partial = make(spec.heads, MAX_SPLITS, spec.head_dim + 2, kind=f32)
        self.arrivals = make(spec.heads + 1, kind=i32)
        self.best = make(2, -(-spec.vocab // SAMPLE_BLOCK), kind=f32)
        self.x_TD = make(rows, spec.hidden, kind=f32)
        self.normed_TD = make(rows, spec.hidden)
        self.delta_TD = make(rows, spec.hidden)
        self.parts_PTD = make(MAX_PARTS, min(rows, PART_ROWS), spec.hidden, kind=f32)
        self.qkv_TN = make(rows, spec.qkv_width)
        self.attention_TN = make(rows, spec.attention_width)
        self.up_TF = make(rows, gates * widest)
        self.inner_TF = make(rows, widest)
        if spec.experts:
            k, f = spec.experts_per_token, spec.expert_inner
            self.router_E = make(spec.experts + 1, kind=f32)
            self.expert_KF = make(k, f)
            self.route_index_K = make(k, kind=i32)
            self.route_weight_K = make(k, kind=f32)
            self.route_index_TK = make(rows, k, kind=i32)
            self.route_weight_TK = make(rows, k, kind=f32)
            # One row a (token, expert) pair.
            self.expert_inner_PF = make(rows * k, f)
            self.expert_out_PD = make(rows * k, spec.hidden)
            self.router_TE = make(rows, spec.experts + (1 if spec.shared_inner else 0))

    def upload(self, rows: int) -> None:
        """Enqueue the copy of the staged control block, with `rows` token ids, to the device.

        Capture-safe: in a prefill graph it is the first node, and reads what is staged by then.
        """
        count = slot.IDS + rows
        self.control[:count].copy_(self.staging[:count], non_blocking=True)

    def stage(self, ids: Ids, sampling: Sampling, base: int) -> None:
        """Fill the pinned control block for a new request."""
        array = self.staging_array
        n = ids.size
        seed_low, seed_high = sampling.seed & 0xFFFFFFFF, (sampling.seed >> 32) & 0xFFFFFFFF
        array[: slot.IDS] = 0
        array[slot.POSITION] = n
        array[slot.LENGTH] = n
        array[slot.TOP_K] = sampling.top_k
        array[slot.SEED_LOW] = _signed(seed_low)
        array[slot.SEED_HIGH] = _signed(seed_high)
        array[slot.RING_BASE] = base
        self.staging_floats[slot.TEMPERATURE] = sampling.temperature
        self.staging_floats[slot.TOP_P] = sampling.top_p
        array[slot.IDS : slot.IDS + n] = ids

    def addresses(self) -> dict[str, int]:
        """Return the address of every tensor, for the audit of a graph."""
        return {
            name: value.data_ptr()
            for name, value in vars(self).items()
            if isinstance(value, Tensor)
        }


def splits(context: int) -> tuple[int, int]:
    """Return (rows a split, number of splits) of the decode attention for a context bucket."""
    size = SPLIT_MIN
    while size * MAX_SPLITS < context:
        size *= 2
    return size, -(-context // size)


def _signed(word: int) -> int:
    return word - (1 << 32) if word >= 1 << 31 else word
