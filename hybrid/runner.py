"""The runner: what an engine drives one sequence by, step by step.

The engine knows requests and tokens; a runner knows how a step is run. Steps are numbered from 0,
the prefill, which draws the first token.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field

from torch import Tensor

from .state.buffers import Ids
from .state.sampling import Sampling


@dataclass(frozen=True)
class Stats:
    """Counters of a runner.

    Attributes:
        tiers: Steps by "kind:tier".
        captures, capture_failures, evictions: Of the Graph Generator.
        failed: Why the last capture of a "kind:size" failed.
        capture_ms: Times of the background captures.
        stalls: Tokens that came late during a capture.
        graph_bytes: Device memory that graphs take.
        prefill_graphs, decode_graphs: Sizes that are ready.
        jit_prefill_ms: Measured time of a short prefill in the jit tier.
        decode_step: "persistent kernel", or "kernels" and why it is not one.
    """

    tiers: dict[str, int]
    captures: int = 0
    capture_failures: int = 0
    failed: dict[str, str] = field(default_factory=dict[str, str])
    evictions: int = 0
    capture_ms: list[float] = field(default_factory=list[float])
    stalls: int = 0
    graph_bytes: int = 0
    prefill_graphs: list[int] = field(default_factory=list[int])
    decode_graphs: list[int] = field(default_factory=list[int])
    kv_cache_bytes: int = 0
    jit_prefill_ms: float = 0.0
    decode_step: str = ""


class Runner(ABC):
    """One sequence at a time. Without graphs, unless a subclass has them.

    Attributes:
        run_ahead: Decode steps that may be queued behind the one whose token is waited for.
        timings: Seconds by what they were spent on at start.
    """

    def __init__(self, run_ahead: int = 0) -> None:
        self.run_ahead = run_ahead
        self.timings: dict[str, float] = {}

    @abstractmethod
    def prefill(self, ids: Ids, sampling: Sampling) -> None:
        """Begin a sequence: enqueue step 0.

        Raises:
            OutOfMemory: The device ran out of memory; the runner stays usable.
        """

    @abstractmethod
    def decode(self, step: int, position: int) -> None:
        """Enqueue a step after the first; `position` tokens are in the cache before it."""

    @abstractmethod
    def receive(self, step: int, check: Callable[[], None]) -> int:
        """Return the token of an enqueued step, waited for; `check` may raise to end the wait."""

    @abstractmethod
    def logits(self) -> Tensor:
        """Return a copy of the last step's float32 logits (V,), after waiting for it."""

    @abstractmethod
    def stats(self) -> Stats:
        """Return the counters so far."""

    def drain(self) -> None:
        """Wait for all steps that are enqueued."""
        return None

    def forget(self) -> None:
        """Drop what the last sequence left."""
        return None

    def start(self) -> None:
        """Begin to capture in the background."""
        return None

    def capture_all(self, prompt_len: int, max_new_tokens: int) -> None:
        """Capture, now, the graphs that a request of these sizes needs."""
        return None

    def request_capture(self, prompt_len: int) -> None:
        """Ask for the graph of a prompt length, in the background."""
        return None

    def wait_for_captures(self, timeout_s: float) -> bool:
        """Return True once nothing is left to capture, False after the timeout."""
        return True

    def close(self) -> None:
        """Drop graphs and end threads."""
        return None
