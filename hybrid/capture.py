"""Capture: from a key to a ready graph, on the thread that asks.

A capture records live addresses and executes nothing. The warm-up before it does execute; beside
requests it therefore runs on scratch state, one operation at a time.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Protocol

import torch

from . import graphs
from .config import Options
from .generator import Activity
from .graphs import Entry, Graph
from .network import Cut, Network, no_pause
from .ops.interface import Ops
from .shapes import Key, Shapes
from .state import control as slot
from .state.buffers import Buffers
from .state.kv_cache import KVCache
from .streams import CudaStreams
from .token_ring import TokenRing

# Asked for; about 70 us slept. See docs/decisions/0104.
_PAUSE_S = 2e-5


class Capturer(Protocol):
    """What makes graphs over the live state of one engine."""

    def capture(self, key: Key, scratch: bool) -> Entry:
        """Return the graph of a key, warmed up on scratch state if `scratch`."""
        ...

    def prepare(self) -> None:
        """Give the Graph Generator's thread what it needs, before requests."""
        ...

    def close(self) -> None:
        """Drop what graphs share."""
        ...


class HostCapturer:
    """On the CPU nothing can be captured: a graph is the call itself."""

    def __init__(self, network: Network, b: Buffers, cache: KVCache) -> None:
        self._network, self._b, self._cache = network, b, cache

    def capture(self, key: Key, scratch: bool) -> Entry:
        began = time.perf_counter()
        graph = graphs.host_graph(lambda cut: self._network.run(*key, self._b, self._cache, cut))
        return Entry(key, graph, 0, (time.perf_counter() - began) * 1e3)

    def prepare(self) -> None:
        return None

    def close(self) -> None:
        return None


class CudaCapturer:
    """Captures on the side stream, into one memory pool, one graph at a time."""

    def __init__(
        self,
        network: Network,
        b: Buffers,
        cache: KVCache,
        streams: CudaStreams,
        shapes: Shapes,
        options: Options,
        activity: Activity,
        ring: TokenRing,
    ) -> None:
        self._network, self._b, self._cache = network, b, cache
        self._streams, self._shapes, self._options = streams, shapes, options
        self._activity, self._ring = activity, ring
        self._device = b.control.device
        self._lock = threading.Lock()
        self._scratch: tuple[Buffers, KVCache] | None = None
        self._scratch_ops: Ops | None = None
        self._pool = torch.cuda.graph_pool_handle()

        def idle(_: Cut) -> None:
            b.x_D.zero_()

        # The pool goes with its last graph, and cannot be captured into again: one graph stays.
        self._anchor: Graph | None = graphs.capture(idle, False, self._pool, streams.side)

    @torch.no_grad()
    def capture(self, key: Key, scratch: bool) -> Entry:
        wait = self._activity.wait_for_first_token if scratch else no_pause
        # A capture is Python from end to end; a serving thread that asks for the interpreter lock
        # would otherwise wait out the switch interval (5 ms) several times a token.
        network = self._with_pause(_PAUSE_S) if scratch else self._network
        torch.cuda.set_device(self._device)
        if scratch and self._activity.serving:
            # The reader has seen `capturing`; let the steps queued before it drain.
            time.sleep(min(0.05, (self._options.run_ahead + 1) * self._ring.token_ms / 1e3))
        with self._lock:
            self._warm_up(key, scratch)
            free_before, _ = torch.cuda.mem_get_info(self._device)
            began = time.perf_counter()
            graph = graphs.capture(
                lambda cut: network.run(*key, self._b, self._cache, cut),
                self._options.mode == "piecewise",
                self._pool,
                self._streams.side,
                wait,
            )
            taken = (time.perf_counter() - began) * 1e3
            free_after, _ = torch.cuda.mem_get_info(self._device)
        return Entry(key, graph, max(0, free_before - free_after), taken)

    @torch.no_grad()
    def prepare(self) -> None:
        """Make scratch state and handles: allocating stops the device."""
        torch.cuda.set_device(self._device)
        self._warm_up(("prefill", (self._shapes.prompts or (16,))[0]), scratch=True)

    def close(self) -> None:
        self._anchor = None

    def _warm_up(self, key: Key, scratch: bool) -> None:
        """Make this thread's library handles and plans for the length, on the side stream.

        Two layers (the last one takes another path) are all shapes there are. A whole pass would
        take a prefill's worth of device time from the running request. Sampling stays out: the
        host ring of scratch buffers is not mapped, its kernel is compiled and has no handles.
        """
        kind, size = key
        b, cache = self._scratch_state() if scratch else (self._b, self._cache)
        pause = no_pause
        if scratch and self._activity.serving:
            # One operation beside each step: a warm-up in one piece makes one token 0.6 ms late.
            pause = self._pause(self._ring.token_ms / 1e3)
        network = self._network
        ops = self._ops_beside() if scratch else network.ops
        network = Network(network.spec, network.weights, ops, pause=pause, sample=False)
        layers = self._distinct_layers()
        with torch.cuda.stream(self._streams.side):
            if kind == "prefill":
                network.prefill(b, cache, size, layers=layers)
            else:
                network.decode(b, cache, size, layers=layers)
            done = torch.cuda.Event()
            done.record()
        done.synchronize()

    def _scratch_state(self) -> tuple[Buffers, KVCache]:
        if self._scratch is None:
            spec, dtype = self._network.spec, self._network.weights.dtype
            rows = self._shapes.max_context
            self._scratch = (
                Buffers(spec, rows, dtype, self._device, False),
                KVCache(spec, rows, dtype, self._device, layers=1),
            )
            self._scratch[0].control[slot.LENGTH] = 8
            self._streams.synchronize_current()
        return self._scratch

    def _ops_beside(self) -> Ops:
        """The operations as warm-ups use them, beside the steps of a request."""
        if self._scratch_ops is None:
            self._scratch_ops = self._network.ops.clone_for_stream()
        return self._scratch_ops

    def _distinct_layers(self) -> tuple[int, ...]:
        """The first layer, the last, and each at which dense and sparse ones alternate."""
        sparse = self._network.spec.sparse
        turns = (i for i in range(1, len(sparse)) if sparse[i] != sparse[i - 1])
        some = tuple(sorted({0, *turns, self._network.spec.layers - 1}))
        return some if len(some) > 1 else (0, 0)

    def _with_pause(self, seconds: float) -> Network:
        network, pause = self._network, self._pause(seconds)
        return Network(network.spec, network.weights, network.ops, pause=pause, whole=network.whole)

    def _pause(self, seconds: float) -> Callable[[], None]:
        def pause() -> None:
            time.sleep(seconds)
            self._activity.wait_for_first_token()

        return pause
