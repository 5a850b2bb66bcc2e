"""What the runtime knows of a model: sizes and switches, read from a transformers config.

A feature that is not understood is refused by name: a wrong guess would give fluent, wrong text.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from hybrid.errors import UnsupportedModel

FAMILIES = ("llama", "gpt2", "qwen2", "qwen3", "olmoe", "qwen2_moe", "qwen3_moe")
Activation = Literal["swiglu", "gelu"]
QkNorm = Literal["none", "head", "full"]
_QK_NORMS: dict[str, QkNorm] = {"qwen3": "head", "qwen3_moe": "head", "olmoe": "full"}
_ROPE_TYPES = ("default", "linear", "llama3", "yarn")


@dataclass(frozen=True)
class Spec:
    """One decoder-only model, in sizes and switches.

    Attributes:
        norm: "rms" or "layer". positions: "rope" or "learned".
        activation: "swiglu" (gate and up projection) or "gelu" (tanh form, one projection).
        qk_norm: "none", "head" (each head alone) or "full" (over all heads together).
        inner: Width of the dense MLP. sparse: One flag a layer, True where experts stand.
        shared_inner: Width of the shared expert, 0 without one.
    """

    family: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    max_positions: int
    norm: str
    eps: float
    positions: str
    activation: Activation
    inner: int
    tied: bool
    qk_norm: QkNorm = "none"
    experts: int = 0
    experts_per_token: int = 0
    expert_inner: int = 0
    shared_inner: int = 0
    renormalise: bool = False
    sparse: tuple[bool, ...] = ()

    @property
    def qkv_width(self) -> int:
        return (self.heads + 2 * self.kv_heads) * self.head_dim

    @property
    def attention_width(self) -> int:
        return self.heads * self.head_dim


def spec_of(config: Any) -> Spec:
    """Return the Spec of a transformers config.

    Raises:
        UnsupportedModel: The family, or a feature of the config, is not implemented.
    """
    family = getattr(config, "model_type", "")
    if family not in FAMILIES:
        raise UnsupportedModel(
            f"model type {family!r} is not implemented; these are: {', '.join(FAMILIES)}"
        )
    return _gpt2(config) if family == "gpt2" else _llama_like(config, family)


def _gpt2(config: Any) -> Spec:
    _refuse(config, "scale_attn_by_inverse_layer_idx", False)
    _refuse(config, "scale_attn_weights", True)
    _refuse(config, "add_cross_attention", False)
    if config.activation_function not in ("gelu_new", "gelu_pytorch_tanh"):
        raise _unsupported(config, "activation_function", config.activation_function)
    return Spec(
        family="gpt2",
        layers=config.n_layer,
        hidden=config.n_embd,
        heads=config.n_head,
        kv_heads=config.n_head,
        head_dim=config.n_embd // config.n_head,
        vocab=config.vocab_size,
        max_positions=config.n_positions,
        norm="layer",
        eps=config.layer_norm_epsilon,
        positions="learned",
        activation="gelu",
        inner=config.n_inner or 4 * config.n_embd,
        tied=bool(config.tie_word_embeddings),
        sparse=(False,) * config.n_layer,
    )


def _llama_like(config: Any, family: str) -> Spec:
    if config.hidden_act not in ("silu", "swish"):
        raise _unsupported(config, "hidden_act", config.hidden_act)
    rope: dict[str, Any] = (
        getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    )
    rope_type = rope.get("rope_type", rope.get("type", "default"))
    if rope_type not in _ROPE_TYPES:
        raise _unsupported(config, "rope_type", rope_type)
    if rope.get("partial_rotary_factor", 1.0) != 1.0:
        raise _unsupported(config, "partial_rotary_factor", rope["partial_rotary_factor"])
    _refuse(config, "clip_qkv", None)
    _refuse(config, "use_sliding_window", False)
    kinds = set(getattr(config, "layer_types", None) or ()) - {"full_attention"}
    if kinds:
        raise _unsupported(config, "layer_types", sorted(kinds))
    heads = config.num_attention_heads
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // heads
    if head_dim % 2:
        raise _unsupported(config, "head_dim", head_dim)
    layers = config.num_hidden_layers
    experts = 0
    if family.endswith("moe"):
        # Named num_experts or num_local_experts, by family and transformers version.
        experts = getattr(config, "num_experts", None) or config.num_local_experts
    step = getattr(config, "decoder_sparse_step", 1) or 1
    dense_only: set[int] = set(getattr(config, "mlp_only_layers", None) or ())
    sparse = tuple(
        bool(experts) and index not in dense_only and (index + 1) % step == 0
        for index in range(layers)
    )
    expert_inner = 0
    if experts:
        expert_inner = getattr(config, "moe_intermediate_size", None) or config.intermediate_size
    return Spec(
        family=family,
        layers=layers,
        hidden=config.hidden_size,
        heads=heads,
        kv_heads=config.num_key_value_heads or heads,
        head_dim=head_dim,
        vocab=config.vocab_size,
        max_positions=config.max_position_embeddings,
        norm="rms",
        eps=config.rms_norm_eps,
        positions="rope",
        activation="swiglu",
        inner=config.intermediate_size,
        tied=bool(config.tie_word_embeddings),
        qk_norm=_QK_NORMS.get(family, "none"),
        experts=experts,
        experts_per_token=config.num_experts_per_tok if experts else 0,
        expert_inner=expert_inner,
        shared_inner=config.shared_expert_intermediate_size if family == "qwen2_moe" else 0,
        renormalise=bool(getattr(config, "norm_topk_prob", False)) if experts else False,
        sparse=sparse,
    )


def _refuse(config: Any, name: str, allowed: Any) -> None:
    value = getattr(config, name, allowed)
    if value != allowed:
        raise _unsupported(config, name, value)


def _unsupported(config: Any, name: str, value: Any) -> UnsupportedModel:
    return UnsupportedModel(
        f"{config.model_type}: {name}={value!r} is not implemented in hybrid; "
        "run this model with transformers itself"
    )
