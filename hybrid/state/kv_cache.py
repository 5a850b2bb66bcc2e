"""Static key-value storage: allocated once, at fixed addresses, outside every graph pool.

Letters: L layers, H kv heads, S slots, D head dim. Contiguous per head along S, so that a split of
the decode attention reads one stretch.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hybrid.errors import OutOfMemory
from hybrid.model.spec import Spec


class KVCache:
    """Keys and values of one sequence, (L, 2, H, S, D)."""

    def __init__(
        self, spec: Spec, slots: int, dtype: torch.dtype, device: torch.device, layers: int = 0
    ) -> None:
        """Allocate zeros.

        Args:
            layers: Layers really held; layer i uses storage i % layers. 0: all of them. Warm-ups
                use a cache of one layer.

        Raises:
            OutOfMemory: The device refused; the message has the size.
        """
        self.slots = slots
        self._held = layers or spec.layers
        shape = (self._held, 2, spec.kv_heads, slots, spec.head_dim)
        try:
            # Zeros, not empty: attention of the reference path multiplies masked rows by 0, and
            # 0 x NaN is NaN.
            self.storage_L2HSD = torch.zeros(shape, dtype=dtype, device=device)
        except torch.OutOfMemoryError as error:
            size = torch.Size(shape).numel() * dtype.itemsize
            raise OutOfMemory(
                f"no room for a KV cache of {slots} tokens ({size / 1e9:.2f} GB) on {device}: "
                "give a smaller max_context"
            ) from error

    @property
    def bytes(self) -> int:
        return self.storage_L2HSD.numel() * self.storage_L2HSD.element_size()

    def layer(self, index: int) -> tuple[Tensor, Tensor]:
        """Return keys and values of one layer, each (H, S, D), as views."""
        k_HSD, v_HSD = self.storage_L2HSD[index % self._held]
        return k_HSD, v_HSD
