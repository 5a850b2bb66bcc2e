"""A call of transformers' `generate` as a request of ours; what we do not do is refused by name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from hybrid.errors import HybridError
from hybrid.state.sampling import Sampling

# What else may be given, and the value that asks for nothing.
_NEUTRAL: dict[str, Any] = {
    "num_beams": 1,
    "num_return_sequences": 1,
    "repetition_penalty": 1.0,
    "no_repeat_ngram_size": 0,
    "encoder_no_repeat_ngram_size": 0,
    "encoder_repetition_penalty": 1.0,
    "length_penalty": 1.0,
    "diversity_penalty": 0.0,
    "num_beam_groups": 1,
    "penalty_alpha": 0.0,
    "min_length": 0,
    "min_new_tokens": 0,
    "min_p": 0.0,
    "typical_p": 1.0,
    "epsilon_cutoff": 0.0,
    "eta_cutoff": 0.0,
    "guidance_scale": 1.0,
    "remove_invalid_values": False,
    "output_scores": False,
    "output_logits": False,
    "output_attentions": False,
    "output_hidden_states": False,
    "return_dict_in_generate": False,
    "bad_words_ids": None,
    "sequence_bias": None,
    "suppress_tokens": None,
    "begin_suppress_tokens": None,
    "forced_bos_token_id": None,
    "forced_eos_token_id": None,
    "exponential_decay_length_penalty": None,
    "stop_strings": None,
    "max_time": None,
}
_KNOWN = (
    "max_new_tokens", "max_length", "do_sample", "temperature", "top_k", "top_p", "eos_token_id",
)  # fmt: skip
# They change how transformers works, not what comes out.
_WITHOUT_EFFECT = ("pad_token_id", "bos_token_id", "use_cache", "cache_implementation")
_DEFAULT_LENGTH = 20  # transformers' own, of prompt and new tokens together


class Streamer(Protocol):
    """What transformers calls a streamer."""

    def put(self, value: Tensor) -> None: ...

    def end(self) -> None: ...


@dataclass(frozen=True)
class Request:
    """What `Engine.generate` takes.

    Attributes:
        ids: The prompt's token ids.
        new: New tokens at most.
        stop: Token ids that end the request.
    """

    ids: list[int]
    new: int
    sampling: Sampling
    stop: tuple[int, ...]


def request_of(
    input_ids: Tensor, attention_mask: Tensor | None, config: Any, given: Mapping[str, Any]
) -> Request:
    """Return the request that a call means.

    Args:
        input_ids: (1, T) token ids. attention_mask: (1, T), all ones, or None.
        config: The model's generation config, or None; `given` goes before it.

    Raises:
        HybridError: More than one sequence, padding, or something that the runtime does not do.
    """
    if input_ids.dim() != 2 or input_ids.shape[0] != 1:
        raise HybridError(
            f"input_ids has shape {tuple(input_ids.shape)}; the engine serves one sequence, (1, T)"
        )
    if attention_mask is not None and not bool(attention_mask.bool().all()):
        raise HybridError("the prompt is padded; give one sequence without padding")
    unknown = sorted(set(given) - {*_NEUTRAL, *_KNOWN, *_WITHOUT_EFFECT})
    if unknown:
        raise HybridError(f"generate's {unknown} are not implemented in hybrid")

    def value(name: str) -> Any:
        found = given.get(name)
        return getattr(config, name, None) if found is None else found

    for name, neutral in _NEUTRAL.items():
        found = value(name)
        if found is not None and found != neutral:
            raise HybridError(f"generate's {name}={found!r} is not implemented in hybrid")
    length = input_ids.shape[1]
    most: int = value("max_length") or _DEFAULT_LENGTH
    new: int = value("max_new_tokens") or most - length
    end: Any = value("eos_token_id")
    stop = () if end is None else (end,) if isinstance(end, int) else tuple(end)
    sampling = Sampling()
    if value("do_sample"):
        # transformers draws by torch's generator: so does its seed, from the CPU's.
        seed = int(torch.randint(1 << 62, ()))
        temperature, top_k, top_p = (value(name) for name in ("temperature", "top_k", "top_p"))
        sampling = Sampling(
            temperature=1.0 if temperature is None else float(temperature),
            top_k=50 if top_k is None else int(top_k),
            top_p=1.0 if top_p is None else float(top_p),
            seed=seed,
        )
    ids: Any = input_ids[0]
    return Request(ids.tolist(), new, sampling, stop)


def followed(input_ids: Tensor, tokens: Iterable[int], streamer: Streamer | None) -> Tensor:
    """Return the prompt and the tokens behind it, (1, T); the streamer gets each as it comes."""
    new: list[int] = []
    if streamer is not None:
        streamer.put(input_ids.cpu())
    for token in tokens:
        new.append(token)
        if streamer is not None:
            streamer.put(torch.tensor([token]))
    if streamer is not None:
        streamer.end()
    return torch.cat([input_ids, input_ids.new_tensor([new])], dim=1)
