"""The Graph Generator: a thread that captures what requests miss, while requests run.

It owns a stream and scratch state. A capture records live addresses and executes nothing; the
warm-up before it does execute, so it runs on the scratch. A failed capture is noted, backed off and
never seen by the request that asked for it.
"""

from __future__ import annotations

import atexit
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from .config import Options
from .graphs import Entry, GraphStore
from .shapes import Key

_BACKOFF_S = 5.0
_MIN_AGE_S = 2.0
_GRACE_S = 0.2


@dataclass
class Activity:
    """What the serving thread and the Graph Generator see of each other; plain reads and writes.

    Attributes:
        serving: A request is being served.
        first_token_due: It waits for its first token.
        capturing: The Graph Generator is at work on a capture.
    """

    serving: bool = False
    first_token_due: bool = False
    capturing: bool = False

    def wait_for_first_token(self) -> None:
        """Return when no request waits for its first token: a capture can wait, a user not."""
        while self.first_token_due:
            time.sleep(1e-4)


class GraphGenerator:
    """Background capture after misses, with budget, eviction and back-off; idle until started."""

    def __init__(
        self,
        store: GraphStore,
        options: Options,
        activity: Activity,
        *,
        capture: Callable[[Key], Entry],
        drain: Callable[[], None],
        is_pinned: Callable[[Key], bool],
        prepare: Callable[[], None],
    ) -> None:
        """Take what it works with; `start` begins to work.

        Args:
            capture: Warms up and captures one key; runs on this thread.
            drain: Returns when the work that is queued on the serving stream now is done.
            is_pinned: Whether a key must not be evicted.
            prepare: What this thread needs once (scratch state, library handles), before requests.
        """
        self._store, self._options, self._activity = store, options, activity
        self._capture, self._drain, self._is_pinned = capture, drain, is_pinned
        self._prepare, self._prepared = prepare, threading.Event()
        self._misses: dict[Key, int] = {}
        self._failed: dict[tuple[str, int], tuple[int, float, str]] = {}
        self._retired: list[tuple[float, Entry]] = []
        self._wake = threading.Condition()
        self._stop = False
        self._thread: threading.Thread | None = None
        self.captures = 0
        self.failures = 0
        self.evictions = 0
        self.capture_ms: list[float] = []

    def start(self) -> None:
        """Start the thread; return when it is prepared."""
        self._thread = threading.Thread(target=self._work, name="graph-generator", daemon=True)
        self._thread.start()
        # A program that ends without closing its engine would end this thread inside a driver call,
        # and itself with an abort.
        atexit.register(self.close)
        self._prepared.wait()

    def close(self) -> None:
        """End the thread, after the capture that it is at."""
        atexit.unregister(self.close)
        with self._wake:
            self._stop = True
            self._wake.notify()
        if self._thread is not None:
            self._thread.join(timeout=30)
            self._thread = None
        self._retired.clear()

    def missed(self, key: Key) -> None:
        """Note that a request wanted `key`; returns at once."""
        if self._thread is None:
            return
        with self._wake:
            self._misses[key] = self._misses.get(key, 0) + 1
            if self._misses[key] >= self._options.capture_after_misses:
                self._wake.notify()

    def wait_idle(self, timeout_s: float) -> bool:
        """Return True once nothing is left to capture, False after the timeout."""
        end = time.monotonic() + timeout_s
        while time.monotonic() < end:
            with self._wake:
                if self._next() is None and not self._activity.capturing:
                    return True
            time.sleep(0.002)
        return False

    def failed(self) -> dict[str, str]:
        """Return the reason of each key whose last capture failed."""
        return {f"{kind}:{size}": why for (kind, size), (_, _, why) in self._failed.items()}

    def _next(self) -> Key | None:
        now = time.monotonic()
        best: Key | None = None
        for key, misses in self._misses.items():
            if misses < self._options.capture_after_misses or self._store.get(key) is not None:
                continue
            if key in self._failed and now < self._failed[key][1]:
                continue
            if best is None or misses > self._misses[best]:
                best = key
        return best

    def _work(self) -> None:
        try:
            self._prepare()
        except Exception as error:  # the first capture tries again, and is backed off if it fails
            self._failed[("prepare", 0)] = (1, 0.0, f"{type(error).__name__}: {error}")
        finally:
            self._prepared.set()
        while True:
            with self._wake:
                key = self._next()
                while key is None and not self._stop:
                    self._wake.wait(timeout=1.0)
                    key = self._next()
                    if self._retired:
                        break
                if self._stop:
                    return
                self._activity.capturing = key is not None
            try:
                if key is not None:
                    self._capture_one(key)
                self._evict()
            finally:
                self._activity.capturing = False

    def _capture_one(self, key: Key) -> None:
        try:
            entry = self._capture(key)
        except Exception as error:  # whatever a capture raises, the service must go on
            count = self._failed.get(key, (0, 0.0, ""))[0] + 1
            retry = time.monotonic() + _BACKOFF_S * 2 ** min(count, 8)
            self._failed[key] = (count, retry, f"{type(error).__name__}: {error}")
            self.failures += 1
            return
        self._failed.pop(key, None)
        self._misses.pop(key, None)
        self._store.publish(entry)
        self.captures += 1
        self.capture_ms.append(entry.capture_ms)

    def _evict(self) -> None:
        now = time.monotonic()
        # Destroyed here, never on the request path, and only after its last replay.
        kept = [(since, entry) for since, entry in self._retired if now - since < _GRACE_S]
        if len(kept) != len(self._retired):
            self._drain()
        self._retired = kept
        while self._is_full():
            candidates = [
                entry
                for entry in self._store.by_kind("prefill")
                if not self._is_pinned(entry.key) and now - entry.created >= _MIN_AGE_S
            ]
            if not candidates:
                return
            worst = min(candidates, key=lambda entry: (entry.hits / (entry.bytes + 1), entry.used))
            self._store.withdraw(worst.key)
            self._retired.append((time.monotonic(), worst))
            self.evictions += 1

    def _is_full(self) -> bool:
        store, options = self._store, self._options
        return store.bytes > options.graph_budget_bytes or len(store) > options.max_graphs
