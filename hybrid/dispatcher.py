"""The dispatcher: which tier runs a step.

Tiers: the graph of the step's bucket (exact); a ready graph of a larger one; or the same kernels,
launched one by one (jit). Without graphs in the store all steps are jit.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable

import torch

from .graphs import Entry, GraphStore
from .network import Network
from .shapes import Key
from .state.buffers import Buffers
from .state.kv_cache import KVCache


class Dispatcher:
    """Runs steps over live state.

    Attributes:
        tiers: Steps by "kind:tier".
        jit_ms: Measured time of a short prefill in the jit tier.
    """

    def __init__(
        self,
        network: Network,
        b: Buffers,
        cache: KVCache,
        store: GraphStore,
        missed: Callable[[Key], None],
    ) -> None:
        """Take what it runs.

        Args:
            missed: Told of each key that has no graph of its own; returns at once.
        """
        self._network, self._b, self._cache = network, b, cache
        self._store, self._missed = store, missed
        self._jit_rows: set[int] = set()
        self.tiers: Counter[str] = Counter()
        self.jit_ms = 0.0

    def run(self, key: Key) -> None:
        """Enqueue a step on the current stream."""
        entry = self._choose(key)
        if entry is not None:
            entry.graph.replay()  # a prefill's uploads the request itself
            return
        with torch.no_grad():
            self._network.run(*key, self._b, self._cache)
        if key[0] == "prefill":
            self._jit_rows.add(key[1])

    def _choose(self, key: Key) -> Entry | None:
        """Return the graph to replay for `key`, or None for the jit tier."""
        kind, size = key
        entry = self._store.get(key)
        tier = "exact"
        if entry is None:
            self._missed(key)
            entry, tier = self._store.at_least(kind, size), "larger"
            # A much larger bucket can cost more than launching the kernels one by one.
            if (
                entry is not None
                and kind == "prefill"
                and entry.replay_ms is not None
                and entry.replay_ms > self._jit_estimate(size)
            ):
                entry = None
        if entry is None:
            self.tiers[f"{kind}:jit"] += 1
            return None
        entry.hits += 1
        entry.used = time.monotonic()
        self.tiers[f"{kind}:{tier}"] += 1
        return entry

    def _jit_estimate(self, rows: int) -> float:
        """Launch-bound time of the jit tier, or the time of the next graph below if larger.

        Twice that for a length that the tier has not run: libraries load kernels on first use.
        """
        below = [e.replay_ms or 0.0 for e in self._store.by_kind("prefill") if e.key[1] <= rows]
        return max([self.jit_ms, *below]) * (1 if rows in self._jit_rows else 2)
