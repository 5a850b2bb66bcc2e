"""What is recorded: one request of prefill and decode steps, driven step by step, in one of the
modes.

Every step ends with its tokens' values in host memory, so a step's wall time is what a user waits
for. Greedy. Token ids are a seeded random prompt unless a text is given. (B, T) is batch and prompt
length.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch

from collector.errors import CollectorError
from collector.models import LoadedModel

MODES = ("eager", "compile", "graph", "hybrid")


class Workload(Protocol):
    """One request; `prefill` starts it, `decode` goes one token on. Both return B token ids."""

    def prefill(self) -> list[int]: ...

    def decode(self) -> list[int]: ...


def prompt_ids(
    model: LoadedModel, batch_size: int, prompt_len: int, seed: int, text: str | None
) -> torch.Tensor:
    """Token ids (B, T) in host memory: of a text, or drawn from a seed.

    Raises:
        CollectorError: A text was given but the model has no tokenizer, or it is empty.
    """
    if text is None:
        generator = torch.Generator().manual_seed(seed)
        return torch.randint(0, model.vocabulary, (batch_size, prompt_len), generator=generator)
    if model.tokenizer is None:
        raise CollectorError(
            "--prompt needs a checkpoint with a tokenizer; leave it out for random ids."
        )
    ids = model.tokenizer(text, return_tensors="pt")["input_ids"]
    if not ids.shape[1]:
        raise CollectorError("--prompt is empty; give some text or @FILE.")
    return ids.expand(batch_size, -1).contiguous()


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
        self._forward = torch.compile(model.module) if compiled else model.module
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


class HybridWorkload:
    """The hybrid runtime's engine, batch 1."""

    def __init__(self, engine: Any, ids_BT: torch.Tensor) -> None:
        self._engine = engine
        self._ids = ids_BT[0].tolist()

    def prefill(self) -> list[int]:
        self._engine.reset()
        return [self._engine.prefill(self._ids)]

    def decode(self) -> list[int]:
        return [self._engine.decode()]


def make(
    model: LoadedModel,
    mode: str,
    ids_BT: torch.Tensor,
    new_tokens: int,
    device: str,
    all_logits: bool = False,
) -> tuple[Workload, Any]:
    """The workload of a mode, and what captures its graphs if it has any.

    Args:
        all_logits: Logits of every position of the prompt, not of its last one only (eager and
            compile).

    Raises:
        CollectorError: The mode is not known, or cannot run this request.
    """
    if mode not in MODES:
        raise CollectorError(f"mode {mode!r} is not known; there are: {', '.join(MODES)}.")
    length = ids_BT.shape[1] + new_tokens
    if length > model.longest:
        raise CollectorError(
            f"prompt and new tokens are {length} positions, {model.name} has {model.longest}; "
            "shorten --prompt-len or --new-tokens."
        )
    if mode == "graph":
        from collector.graph_steps import GraphWorkload  # it builds on this module

        graphs = GraphWorkload(model, ids_BT, new_tokens, device)
        return graphs, graphs if device.startswith("cuda") else None
    if mode != "hybrid":
        return TransformersWorkload(model, ids_BT, device, mode == "compile", all_logits), None
    if ids_BT.shape[0] != 1:
        raise CollectorError("the hybrid runtime is batch 1; record with --batch-size 1.")
    from hybrid import Engine  # only this mode needs the runtime

    # No graphs at start: each one that the request needs is captured under the profiler, so that
    # its replays find their operators.
    engine = Engine.from_model(
        model.module, mode="full", prefill_lengths=(), contexts=(), background=False
    )
    return HybridWorkload(engine, ids_BT), engine
