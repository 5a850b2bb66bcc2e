"""Mode `graph`: the transformers model as it is, each step of the request a CUDA graph of its own.

Step k has the same shapes in every request, so its graph is captured once and replayed in order:
prefill, then each decode step at its own length, on the cache that the step before left. The
kernels are those of mode `eager`, and so are the tokens; only how they are launched differs. On a
CPU there are no graphs and the steps are run as in `eager`.
"""

from __future__ import annotations

import importlib
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import torch

from collector.errors import CollectorError
from collector.workloads.models import LoadedModel
from collector.workloads.transformers import TransformersWorkload


class GraphWorkload:
    """Captures on the first request, or when told to (`capture_all`), so that it can be recorded.

    The graphs share one pool of memory: they are replayed in the order of their capture, on one
    stream, so that what a step reads is never overwritten before.
    """

    def __init__(
        self, model: LoadedModel, ids_BT: torch.Tensor, new_tokens: int, device: str
    ) -> None:
        self._model = model
        self._eager = TransformersWorkload(model, ids_BT, device, compiled=False)
        self._ids_host_BT = ids_BT
        self._ids_BT = ids_BT.to(device)
        self._new_tokens = new_tokens
        self._device = device
        self._steps: list[tuple[Any, torch.Tensor]] = []  # graph, tokens (B, 1)
        self._next = 0
        self._cache: Any = None

    def prefill(self) -> list[int]:
        if not self._device.startswith("cuda"):
            return self._eager.prefill()
        if not self._steps:
            self.capture_all(self._ids_BT.shape[1], self._new_tokens)
        self._ids_BT.copy_(self._ids_host_BT, non_blocking=True)
        self._next = 0
        return self._replay()

    def decode(self) -> list[int]:
        if not self._device.startswith("cuda"):
            return self._eager.decode()
        if not 0 < self._next < len(self._steps):
            raise CollectorError(
                f"{len(self._steps)} steps are captured as graphs and step {self._next} was asked "
                "for; begin with a prefill and decode no more than --new-tokens."
            )
        return self._replay()

    def capture_all(self, prompt_len: int, new_tokens: int) -> None:
        """Capture every step of a request; raises CollectorError if the model cannot be captured.

        The arguments are the runtime's (`hybrid.Engine.capture_all`); they must be this request's.
        """
        if not self._device.startswith("cuda"):
            return
        if (prompt_len, new_tokens) != (self._ids_BT.shape[1], self._new_tokens):
            raise CollectorError("graphs of another prompt or length were asked for than recorded.")
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):  # handles, workspaces and plans of this stream
            self._eager.prefill()
            if new_tokens > 1:
                self._eager.decode()
        torch.cuda.synchronize()
        pool = torch.cuda.graph_pool_handle()
        inputs: dict[str, Any] = {"input_ids": self._ids_BT}
        steps: list[tuple[Any, torch.Tensor]] = []
        for number in range(new_tokens):
            graph = torch.cuda.CUDAGraph()
            try:
                with (
                    kernels_as_in_eager(),
                    torch.cuda.graph(
                        graph, pool=pool, stream=stream, capture_error_mode="thread_local"
                    ),
                ):
                    output = self._model.module(**inputs, use_cache=True, logits_to_keep=1)
                    token_B1 = output.logits[:, -1].argmax(-1, keepdim=True)
            except RuntimeError as error:
                raise CollectorError(
                    f"step {number} of {self._model.name} cannot be captured as a CUDA graph: "
                    f"{_reason(error)} A model that asks the device for values while it runs "
                    "cannot be; for a mixture of experts try --experts grouped_mm."
                ) from error
            steps.append((graph, token_B1))
            self._cache = output.past_key_values
            inputs = {"input_ids": token_B1, "past_key_values": self._cache}
        torch.cuda.synchronize()
        self._steps = steps

    def _replay(self) -> list[int]:
        graph, token_B1 = self._steps[self._next]
        self._next += 1
        graph.replay()
        tokens: Any = token_B1.flatten()
        return tokens.tolist()


def _reason(error: RuntimeError) -> str:
    """The first cause: the end of a failed capture only says that it failed."""
    first: BaseException = error
    while first.__context__ is not None:
        first = first.__context__
    lines = str(first).strip().splitlines()
    return lines[0] if lines else type(first).__name__


@contextmanager
def kernels_as_in_eager() -> Generator[None, None, None]:
    """Let transformers choose attention as if no capture were going on.

    Some versions (5.17 among them) build an explicit mask while they see one, so as not to read
    a padding mask's values; that brings other kernels. Without a padding mask nothing would be
    read, so what eager mode does is right here too.
    """
    try:
        masking_utils: Any = importlib.import_module("transformers.masking_utils")
    except ImportError:
        yield
        return
    original = getattr(masking_utils, "is_tracing", None)
    if original is None:
        yield
        return

    def is_tracing(tensor: Any = None) -> bool:
        return tensor is not None and bool(original(tensor))

    masking_utils.is_tracing = is_tracing
    try:
        yield
    finally:
        masking_utils.is_tracing = original
