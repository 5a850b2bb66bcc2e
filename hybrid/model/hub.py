"""The built-in models: real sizes, random weights, and the one place that imports transformers.

A run on random weights costs the same time as one on trained weights of the same sizes, and needs
no download. Sizes are those of the published configurations.
"""

from __future__ import annotations

from typing import Any

import torch

from hybrid.errors import HybridError

_LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}

BUILTIN: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("GPT2Config", {}),
    "llama-2-7b": ("LlamaConfig", {"max_position_embeddings": 4096, "rms_norm_eps": 1e-5}),
    "llama-3.2-1b": (
        "LlamaConfig",
        {
            "vocab_size": 128256,
            "hidden_size": 2048,
            "intermediate_size": 8192,
            "num_hidden_layers": 16,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "head_dim": 64,
            "max_position_embeddings": 131072,
            "rms_norm_eps": 1e-5,
            "tie_word_embeddings": True,
            "rope_parameters": _LLAMA3_ROPE,
        },
    ),
    "llama-3.2-3b": (
        "LlamaConfig",
        {
            "vocab_size": 128256,
            "hidden_size": 3072,
            "intermediate_size": 8192,
            "num_hidden_layers": 28,
            "num_attention_heads": 24,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "max_position_embeddings": 131072,
            "rms_norm_eps": 1e-5,
            "tie_word_embeddings": True,
            "rope_parameters": _LLAMA3_ROPE,
        },
    ),
    "olmoe-1b-7b": (
        "OlmoeConfig",
        {"intermediate_size": 1024, "num_experts": 64, "num_experts_per_tok": 8},
    ),
    "qwen1.5-moe-a2.7b": (
        "Qwen2MoeConfig",
        {
            "max_position_embeddings": 8192,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1000000.0},
        },
    ),
}


def names() -> tuple[str, ...]:
    """Return the built-in names, sorted."""
    return tuple(sorted(BUILTIN))


def build(
    name: str,
    dtype: torch.dtype = torch.bfloat16,
    device: str | torch.device = "cpu",
    seed: int = 0,
    attention: str = "sdpa",
) -> Any:
    """Return a transformers model of a built-in name with seeded random weights, in eval mode.

    Args:
        dtype, device: Where the weights are made; nothing is made elsewhere and moved.
        seed: Seed of torch's generators while the weights are drawn.
        attention: transformers' attn_implementation: "sdpa" or "eager".

    Raises:
        HybridError: There is no such name; the message lists those that exist.
    """
    if name not in BUILTIN:
        raise HybridError(f"no built-in model {name!r}; there are: {', '.join(names())}")
    class_name, overrides = BUILTIN[name]
    config = getattr(_transformers(), class_name)(**overrides)
    return build_config(config, dtype, device, seed, attention)


def build_config(
    config: Any,
    dtype: torch.dtype = torch.bfloat16,
    device: str | torch.device = "cpu",
    seed: int = 0,
    attention: str = "sdpa",
) -> Any:
    """Return a transformers model of any config with seeded random weights, as `build` does."""
    before = torch.get_default_dtype()
    torch.manual_seed(seed)  # pyright: ignore[reportUnknownMemberType]  # torch types no parameter
    try:
        torch.set_default_dtype(dtype)
        with torch.device(device):
            model = _transformers().AutoModelForCausalLM.from_config(
                config, dtype=dtype, attn_implementation=attention
            )
    finally:
        torch.set_default_dtype(before)
    return model.to(device=device, dtype=dtype).eval()


def load(path: str, dtype: torch.dtype, device: str | torch.device) -> Any:
    """Return the transformers model saved at `path`, on `device`.

    Raises:
        HybridError: transformers found no model there.
    """
    try:
        model = _transformers().AutoModelForCausalLM.from_pretrained(path, dtype=dtype)
    except (OSError, ValueError) as error:
        raise HybridError(
            f"no model at {path!r}: {error}. Give a folder that transformers saved, "
            f"or a built-in name: {', '.join(names())}"
        ) from error
    return model.to(device).eval()


def tokenizer(path: str) -> Any:
    """Return the tokenizer saved at `path`.

    Raises:
        HybridError: transformers found none there.
    """
    try:
        return _transformers().AutoTokenizer.from_pretrained(path)
    except (OSError, ValueError) as error:
        why = str(error).splitlines()[0].rstrip(": ")
        raise HybridError(
            f"no tokenizer at {path!r} ({why}); give a checkpoint's folder or a model id."
        ) from error


def _transformers() -> Any:
    import transformers  # deferred: importing hybrid must stay cheap

    return transformers
