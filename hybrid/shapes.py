"""Buckets: the prompt lengths and contexts that graphs are captured for.

A graph has fixed sizes, so a prompt is padded to the next bucket of lengths, and a decode step
attends over the next bucket of contexts.
"""

from __future__ import annotations

from dataclasses import dataclass

from .config import Options
from .errors import ContextOverflow
from .model.spec import Spec
from .network import Kind

# What a graph is for: a prefill of so many rows, or a decode step over so many cache rows.
Key = tuple[Kind, int]

_DEFAULT_CONTEXT = 2048
_DEFAULT_PROMPTS = (32, 64, 128, 256, 512)
_FIRST_CONTEXT = 512


def bucket(length: int) -> int:
    """Return the prefill length that `length` is padded to.

    Below about 100 tokens a prefill of 7B reads weights and padding is free; above, a padded token
    costs its share of arithmetic (16 us), so steps stay small: the 8 columns of the tensor cores.
    """
    step = 8 if 96 < length <= 512 else 16 if length <= 1024 else 64
    return -(-length // step) * step


@dataclass(frozen=True)
class Shapes:
    """The buckets of one engine.

    Attributes:
        max_context: Rows of the KV cache, a multiple of 128.
        limit: Tokens that a sequence may have: the cache's rows or the model's positions.
        prompts: Prefill lengths captured at start, shortest first.
        contexts: Contexts of decode steps captured at start, shortest first.
    """

    max_context: int
    limit: int
    prompts: tuple[int, ...]
    contexts: tuple[int, ...]

    @classmethod
    def choose(cls, options: Options, spec: Spec) -> Shapes:
        """Return the buckets that the options ask for.

        Raises:
            ContextOverflow: max_context is beyond the model's positions.
        """
        wanted = options.max_context or min(_DEFAULT_CONTEXT, spec.max_positions)
        if wanted > spec.max_positions:
            raise ContextOverflow(
                f"max_context {wanted} is beyond the model's {spec.max_positions} positions"
            )
        most = -(-wanted // 128) * 128
        lengths = _DEFAULT_PROMPTS if options.prefill_lengths is None else options.prefill_lengths
        contexts = (_FIRST_CONTEXT, most) if options.contexts is None else options.contexts
        return cls(
            max_context=most,
            limit=min(most, spec.max_positions),
            prompts=tuple(sorted({min(bucket(n), most) for n in lengths})),
            contexts=tuple(sorted({_context(min(n, most), most) for n in contexts})),
        )

    def prefill(self, length: int) -> Key:
        """Return what serves a prompt of `length` tokens."""
        return ("prefill", min(bucket(length), self.max_context))

    def decode(self, length: int) -> Key:
        """Return what serves a decode step after which the cache has `length` tokens."""
        return ("decode", _context(length, self.max_context))

    def request(self, prompt_len: int, new_tokens: int) -> list[Key]:
        """Return all that a request needs, each once, in the order of need."""
        lengths = range(prompt_len + 1, prompt_len + new_tokens + 1)
        keys = [self.prefill(prompt_len), *(self.decode(length) for length in lengths)]
        return list(dict.fromkeys(keys))

    def at_start(self) -> list[Key]:
        """Return what is captured before the first request, the longest prompts first."""
        keys: list[Key] = [("prefill", rows) for rows in reversed(self.prompts)]
        return keys + [("decode", context) for context in self.contexts]

    def is_pinned(self, key: Key) -> bool:
        """Return whether a graph must stay: decode's, and that of the longest prompts."""
        return key[0] == "decode" or key[1] == max(self.prompts, default=0)


def _context(length: int, most: int) -> int:
    size = _FIRST_CONTEXT
    while size < length:
        size *= 2
    return min(size, most)
