"""Modes `eager` and `compile`: the transformers model with its own growing cache.

(B, T) is batch and prompt length.
"""

from __future__ import annotations

from typing import Any

import torch

from collector.workloads.models import LoadedModel


class TransformersWorkload:
    """The transformers model with its own growing cache; `compile` wraps its forward in
    torch.compile."""

    def __init__(
        self,
        model: LoadedModel,
        ids_BT: torch.Tensor,
        device: str,
        compiled: bool,
        all_logits: bool = False,
    ) -> None:
        self._options = {"use_cache": True, "logits_to_keep": 0 if all_logits else 1}
        library: Any = torch
        self._forward = library.compile(model.module) if compiled else model.module
        self._ids_BT = ids_BT
        self._device = device
        self._cache: Any = None
        self._token_B1: Any = None

    def prefill(self) -> list[int]:
        ids_BT = self._ids_BT.to(self._device, non_blocking=True)
        output = self._forward(input_ids=ids_BT, **self._options)
        return self._take(output)

    def decode(self) -> list[int]:
        output = self._forward(
            input_ids=self._token_B1, past_key_values=self._cache, **self._options
        )
        return self._take(output)

    def _take(self, output: Any) -> list[int]:
        self._cache = output.past_key_values
        self._token_B1 = output.logits[:, -1].argmax(-1, keepdim=True)
        return self._token_B1.flatten().tolist()
