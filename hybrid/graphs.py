"""Capture, graph replay and the store of ready graphs: the only module that knows CUDAGraph.

A `Graph` is what the dispatcher replays: one CUDA graph (full), graphs with dynamic calls between
them (piecewise), or on the CPU, where nothing can be captured, the call itself: dispatcher,
generator and eviction then run the same way without a GPU.
"""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from .network import Cut, Kind, inline, no_pause
from .shapes import Key

Run = Callable[[Cut], None]


class Graph:
    """Parts in the order they run: replays of captured graphs, and plain calls."""

    def __init__(self, calls: list[Callable[[], None]]) -> None:
        self._calls = calls

    def replay(self) -> None:
        """Enqueue on the current stream; returns before the device is done."""
        for call in self._calls:
            call()


@dataclass
class Entry:
    """A published graph. Only the counters change after publication.

    Attributes:
        bytes: Device memory that the capture took, by the driver's count.
        replay_ms: Measured time of one replay, None until measured.
    """

    key: Key
    graph: Graph
    bytes: int
    capture_ms: float
    replay_ms: float | None = None
    hits: int = 0
    created: float = field(default_factory=time.monotonic)
    used: float = 0.0


def host_graph(run: Run) -> Graph:
    """Return the call itself as a graph (CPU)."""
    return Graph([lambda: run(inline)])


def capture(
    run: Run,
    piecewise: bool,
    pool: Any,
    stream: torch.cuda.Stream,
    wait: Callable[[], None] = no_pause,
) -> Graph:
    """Capture `run` on `stream` and return its graph, instantiated; nothing is executed.

    Raw begin and end calls, thread_local mode: torch.cuda.graph() would synchronise the device and
    empty the allocator's caches, and global mode would fail while another thread works.

    Args:
        wait: Called before the driver calls that take milliseconds and keep other threads from
            launching; may wait for a better moment.

    Raises:
        RuntimeError: An operation is not capture-safe. The stream is out of capture again.
    """
    pieces = _Pieces(pool, wait)
    # A collection would destroy graphs of engines long gone, which a capture does not survive.
    collecting = gc.isenabled()
    gc.disable()
    try:
        with torch.cuda.stream(stream):
            pieces.begin()
            try:
                run(pieces.cut if piecewise else inline)
            finally:
                pieces.end()
    finally:
        if collecting:
            gc.enable()
    return Graph(pieces.calls)


class _Pieces:
    def __init__(self, pool: Any, wait: Callable[[], None]) -> None:
        self.calls: list[Callable[[], None]] = []
        self._pool, self._wait = pool, wait
        self._current: torch.cuda.CUDAGraph | None = None

    def begin(self) -> None:
        graph = torch.cuda.CUDAGraph(keep_graph=True)
        graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
        self._current = graph

    def end(self) -> None:
        graph, self._current = self._current, None
        if graph is not None:
            self._wait()
            graph.capture_end()
            self._wait()
            # With keep_graph the first replay would instantiate, on the serving thread.
            graph.instantiate()
            self.calls.append(graph.replay)

    def cut(self, dynamic: Callable[[], None]) -> None:
        self.end()
        # Not called: it would change live state. Its buffers are static, so nothing needs its
        # result at capture time.
        self.calls.append(dynamic)
        self.begin()


class GraphStore:
    """Ready graphs by key; reads take no lock (one dict read), changes do."""

    def __init__(self) -> None:
        self._entries: dict[Key, Entry] = {}
        self._lock = threading.Lock()

    def get(self, key: Key) -> Entry | None:
        return self._entries.get(key)

    def publish(self, entry: Entry) -> None:
        with self._lock:
            self._entries = {**self._entries, entry.key: entry}

    def withdraw(self, key: Key) -> Entry | None:
        with self._lock:
            entries = dict(self._entries)
            entry = entries.pop(key, None)
            self._entries = entries
            return entry

    def by_kind(self, kind: Kind) -> list[Entry]:
        """Return the entries of one kind, smallest size first."""
        found = [entry for key, entry in self._entries.items() if key[0] == kind]
        return sorted(found, key=lambda entry: entry.key[1])

    def at_least(self, kind: Kind, size: int) -> Entry | None:
        """Return the smallest ready graph of that size or larger."""
        return next((entry for entry in self.by_kind(kind) if entry.key[1] >= size), None)

    @property
    def bytes(self) -> int:
        return sum(entry.bytes for entry in self._entries.values())

    def __len__(self) -> int:
        return len(self._entries)

    def clear(self) -> None:
        with self._lock:
            self._entries = {}
        gc.collect()
