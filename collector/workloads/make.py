"""The prompt and the workload of a request, by the names that the command line has for them.

Token ids are a seeded random prompt unless a text is given. (B, T) is batch and prompt length.
"""

from __future__ import annotations

import torch

from collector.errors import CollectorError
from collector.workloads.base import MODES, CapturesGraphs, Workload
from collector.workloads.graph import GraphWorkload
from collector.workloads.hybrid import HybridWorkload
from collector.workloads.models import LoadedModel
from collector.workloads.transformers import TransformersWorkload


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


def make(
    model: LoadedModel,
    mode: str,
    ids_BT: torch.Tensor,
    new_tokens: int,
    device: str,
    all_logits: bool = False,
) -> tuple[Workload, CapturesGraphs | None]:
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
        graphs = GraphWorkload(model, ids_BT, new_tokens, device)
        return graphs, graphs if device.startswith("cuda") else None
    if mode != "hybrid":
        return TransformersWorkload(model, ids_BT, device, mode == "compile", all_logits), None
    workload = HybridWorkload(model, ids_BT)
    return workload, workload.engine
