"""Mode `hybrid`: the hybrid runtime's engine, batch 1."""

from __future__ import annotations

from typing import Any

import torch

from collector.errors import CollectorError
from collector.workloads.models import LoadedModel


class HybridWorkload:
    """The hybrid runtime's engine, batch 1."""

    def __init__(self, model: LoadedModel, ids_BT: torch.Tensor) -> None:
        if ids_BT.shape[0] != 1:
            raise CollectorError("the hybrid runtime is batch 1; record with --batch-size 1.")
        from hybrid import Engine  # only this mode needs the runtime

        # No graphs at start: each one that the request needs is captured under the profiler, so
        # that its replays find their operators. A decode step as one kernel would have none.
        self.engine = Engine.from_model(
            model.module,
            mode="full",
            prefill_lengths=(),
            contexts=(),
            background=False,
            persistent=False,
        )
        ids_T: Any = ids_BT[0]
        self._ids: list[int] = ids_T.tolist()

    def prefill(self) -> list[int]:
        self.engine.reset()
        return [self.engine.prefill(self._ids)]

    def decode(self) -> list[int]:
        return [self.engine.decode()]
