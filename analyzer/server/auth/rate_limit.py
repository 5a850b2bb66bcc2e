"""How often one client may ask: a bucket of requests a client, refilled by a steady clock."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

_MOST_KEPT = 10_000


class RateLimit:
    """Buckets by client. `burst` seconds' worth of requests may come at once."""

    def __init__(
        self, per_second: float, burst: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._per_second = per_second
        self._full = max(1.0, per_second * burst)
        self._clock = clock
        self._buckets: dict[str, tuple[float, float]] = {}
        self._lock = threading.Lock()

    def take(self, client: str) -> float:
        """Take one request; 0 if it may go on, else the seconds until one may."""
        now = self._clock()
        with self._lock:
            if client not in self._buckets and len(self._buckets) >= _MOST_KEPT:
                self._forget(now)
            level, at = self._buckets.get(client, (self._full, now))
            level = min(self._full, level + max(0.0, now - at) * self._per_second)
            if level >= 1.0:
                self._buckets[client] = (level - 1.0, now)
                return 0.0
            self._buckets[client] = (level, now)
            return (1.0 - level) / self._per_second

    def _forget(self, now: float) -> None:
        refill = self._full / self._per_second
        kept = {c: v for c, v in self._buckets.items() if now - v[1] < refill}
        # All of them busy: the oldest half goes, which can only be to a client's advantage.
        if len(kept) >= _MOST_KEPT:
            kept = dict(sorted(kept.items(), key=lambda item: item[1][1])[_MOST_KEPT // 2 :])
        self._buckets = kept
