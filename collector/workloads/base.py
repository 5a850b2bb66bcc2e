"""What is recorded: one request of prefill and decode steps, driven step by step.

Every step ends with its tokens' values in host memory, so a step's wall time is what a user waits
for. Greedy. B is the batch size.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

MODES = ("eager", "compile", "graph", "hybrid")


class Workload(Protocol):
    """One request; `prefill` starts it, `decode` goes one token on. Both return B token ids."""

    def prefill(self) -> list[int]: ...

    def decode(self) -> list[int]: ...


@runtime_checkable
class CapturesGraphs(Protocol):
    """A workload, or the runtime under it, whose steps are CUDA graphs."""

    def capture_all(self, prompt_len: int, new_tokens: int, /) -> object:
        """Capture every graph that a request of this length replays."""
        ...
