"""A model by name or path, as transformers builds it: random weights of real sizes, or a
checkpoint.

The built-in sizes are `hybrid.model.hub`'; transformers is imported there and in `load` only.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from collector.errors import CollectorError
from schemas.errors import HostboundError

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


@dataclass
class LoadedModel:
    """A causal language model in eval mode on its device; `tokenizer` for checkpoints only."""

    module: Any
    name: str
    vocabulary: int
    longest: int
    tokenizer: Any = None


def load(
    name: str,
    dtype: str,
    device: str,
    seed: int,
    attention: str,
    experts: str | None = None,
) -> LoadedModel:
    """Build a built-in model from a seed, or load a checkpoint folder.

    Args:
        experts: transformers' experts implementation for MoE ("eager", "grouped_mm"), None: its
        default.

    Raises:
        CollectorError: No such model or dtype; the message lists what there is.
    """
    from hybrid.model import hub as builtin

    if dtype not in DTYPES:
        raise CollectorError(f"dtype {dtype!r} is not known; there are: {', '.join(DTYPES)}.")
    tokenizer = None
    try:
        if name in builtin.names():
            module = builtin.build(name, DTYPES[dtype], device, seed, attention)
        elif Path(name).is_dir():
            module, tokenizer = _checkpoint(name, DTYPES[dtype], device, attention)
        else:
            raise CollectorError(
                f"there is no model {name!r}; built in are {', '.join(builtin.names())}, or give "
                f"the "
                "path of a folder that transformers saved. Nothing is downloaded."
            )
    except torch.cuda.OutOfMemoryError as error:
        raise CollectorError(
            f"{name} does not fit on {device}: {str(error).splitlines()[0]} Free the GPU or "
            f"choose a "
            "smaller model."
        ) from error
    except HostboundError:
        raise
    except RuntimeError as error:
        raise CollectorError(
            f"{name} cannot be put on {device}: {str(error).splitlines()[0]}"
        ) from error
    if experts:
        setter = getattr(module, "set_experts_implementation", None)
        if setter is None:
            raise CollectorError(
                f"this transformers cannot choose how experts are run ({experts})."
            )
        setter(experts)
    config = module.config
    longest = getattr(config, "max_position_embeddings", None) or getattr(
        config, "n_positions", 1 << 30
    )
    return LoadedModel(module, Path(name).name, config.vocab_size, longest, tokenizer)


def _checkpoint(path: str, dtype: torch.dtype, device: str, attention: str) -> tuple[Any, Any]:
    import transformers  # heavy: only here

    library: Any = (
        transformers  # its stubs know neither what is loaded nor that `to` takes a device
    )
    try:
        module = library.AutoModelForCausalLM.from_pretrained(
            path, dtype=dtype, attn_implementation=attention, local_files_only=True
        )
    except (OSError, ValueError) as error:
        first = str(error).splitlines()[0]
        raise CollectorError(f"{path} is no model that transformers can load: {first}") from error
    try:
        tokenizer = library.AutoTokenizer.from_pretrained(path, local_files_only=True)
    except (OSError, ValueError):
        tokenizer = None
    return module.to(device).eval(), tokenizer
