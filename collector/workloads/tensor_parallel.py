"""A dense transformers model split over the ranks of a job, as serving engines split it.

Each rank keeps its part of the heads and of the MLP: the matrices before are cut by output, those
behind by input, and what the latter give is added up over the ranks, twice a layer. Embeddings,
norms and the head stay whole. Source: Megatron-LM (arXiv:1909.08053), section 3.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from collector.errors import CollectorError

BY_OUTPUT = ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj")
BY_INPUT = ("o_proj", "down_proj")


def split(module: Any, rank: int, ranks: int, name: str) -> None:
    """Keep this rank's part of a model's layers, in place.

    Raises:
        CollectorError: It is no dense model of the Llama family, or its heads cannot be shared out.
    """
    config = module.config
    parts: dict[str, list[Any]] = {word: [] for word in (*BY_OUTPUT, *BY_INPUT)}
    for path, linear in module.named_modules():
        word = path.rpartition(".")[2]
        if word in parts and isinstance(linear, torch.nn.Linear):
            parts[word].append(linear)
    if any(len(own) != config.num_hidden_layers for own in parts.values()):
        raise CollectorError(
            f"--tp splits dense models of the Llama family, and {name} is none; try llama-3.2-1b."
        )
    for what in ("num_attention_heads", "num_key_value_heads", "intermediate_size"):
        if getattr(config, what) % ranks:
            raise CollectorError(
                f"--tp {ranks} does not share out the {getattr(config, what)} "
                f"{what.removeprefix('num_').replace('_', ' ')} of {name} evenly."
            )
    for word, linears in parts.items():
        for linear in linears:
            _keep(linear, 0 if word in BY_OUTPUT else 1, rank, ranks)
            if word in BY_INPUT:
                linear.register_forward_hook(_add_up)


def _keep(linear: Any, dimension: int, rank: int, ranks: int) -> None:
    own = linear.weight.data.chunk(ranks, dimension)[rank].contiguous()
    linear.weight = torch.nn.Parameter(own, requires_grad=False)
    linear.out_features, linear.in_features = own.shape
    if linear.bias is None:
        return
    if dimension == 0:
        bias = linear.bias.data.chunk(ranks)[rank].contiguous()
    else:  # added once, not by each rank
        bias = linear.bias.data if rank == 0 else torch.zeros_like(linear.bias.data)
    linear.bias = torch.nn.Parameter(bias, requires_grad=False)


def _add_up(_module: Any, _inputs: Any, output_BTD: torch.Tensor) -> torch.Tensor:
    dist.all_reduce(output_BTD)  # pyright: ignore[reportUnknownMemberType]
    return output_BTD
