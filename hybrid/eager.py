"""The eager runner: the transformers model as it is, with its own cache and our sampler."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .errors import HybridError
from .runner import Runner, Stats
from .state.buffers import Ids
from .state.sampling import Sampling, draw


class EagerRunner(Runner):
    """Runs a step when it is asked for: nothing is queued, so nothing is waited for."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self._model = model
        # transformers 5.2x renames the argument.
        renamed = "cache" in inspect.signature(model.forward).parameters
        self._cache_name = "cache" if renamed else "past_key_values"
        self._cache: Any = None
        self._sampling = Sampling()
        self._token = 0
        self._tiers: Counter[str] = Counter()

    def prefill(self, ids: Ids, sampling: Sampling) -> None:
        self._sampling = sampling
        self._cache = None  # lets the model make a cache of its own
        self._step(ids.tolist(), 0)
        self._tiers["prefill:eager"] += 1

    def decode(self, step: int, position: int) -> None:
        self._step([self._token], step)
        self._tiers["decode:eager"] += 1

    @torch.no_grad()
    def _step(self, ids: list[int], step: int) -> None:
        input_ids = torch.tensor([ids], device=self._model.device)
        result = self._model(
            input_ids, use_cache=True, logits_to_keep=1, **{self._cache_name: self._cache}
        )
        self._cache = getattr(result, "cache", None) or result.past_key_values
        self._token = int(draw(result.logits[0, -1].float(), self._sampling, step))

    def receive(self, step: int, check: Callable[[], None]) -> int:
        check()
        return self._token

    def logits(self) -> Tensor:
        raise HybridError("the eager mode keeps no logits; call the transformers model itself")

    def forget(self) -> None:
        self._cache = None

    def stats(self) -> Stats:
        return Stats(dict(self._tiers))
