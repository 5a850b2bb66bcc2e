"""The runtime's own settings."""

from __future__ import annotations

from dataclasses import dataclass

from .errors import HybridError

MODES = ("full", "piecewise", "jit", "eager")


@dataclass(frozen=True)
class Options:
    """How an engine runs; every field can be given to `Engine.from_model`.

    Attributes:
        mode: "full", "piecewise", "jit" or "eager".
        max_context: Tokens the KV cache holds, rounded up to 128; None: the model's, at most 2048.
        prefill_lengths: Prefill graphs captured at start; None: powers of two from 32 to 512.
        contexts: Decode graphs captured at start; None: 512 and the whole cache.
        background: Let the Graph Generator capture what requests miss.
        capture_after_misses: Requests that miss a length before it is captured.
        run_ahead: Decode steps queued behind the one whose token is waited for.
        graph_budget_bytes, max_graphs: Above either, prefill graphs are evicted.
        pdl: Programmatic dependent launch (Hopper); None: where the device has it.
        persistent: Decode in one persistent kernel (mode "full", Hopper, bfloat16, dense models).
            None: for the families that were measured; True: wherever it can run. Where it does
            not, `stats()["decode_step"]` says why.
        mapped_ring: The sampling kernel writes tokens to host memory, which is polled. False:
            an asynchronous copy and an event for each token.

    Raises:
        HybridError: A value is outside its range.
    """

    mode: str = "full"
    max_context: int | None = None
    prefill_lengths: tuple[int, ...] | None = None
    contexts: tuple[int, ...] | None = None
    background: bool = True
    capture_after_misses: int = 1
    run_ahead: int = 4
    graph_budget_bytes: int = 1 << 30
    max_graphs: int = 48
    pdl: bool | None = None
    persistent: bool | None = None
    mapped_ring: bool = True

    @property
    def has_graphs(self) -> bool:
        """Whether the mode captures graphs at all."""
        return self.mode in ("full", "piecewise")

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise HybridError(f"mode is {self.mode!r}; choose one of {', '.join(MODES)}")
        if self.run_ahead < 0:
            raise HybridError(f"run_ahead is {self.run_ahead}; it must be 0 or more")
        if self.max_context is not None and self.max_context < 1:
            raise HybridError(f"max_context is {self.max_context}; it must be positive")
