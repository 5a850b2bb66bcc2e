"""The static runner: our operations on static state, replayed as graphs where there are some."""

from __future__ import annotations

import time
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .capture import Capturer, CudaCapturer, HostCapturer
from .config import Options
from .dispatcher import Dispatcher
from .errors import HybridError, OutOfMemory, UnsupportedDevice
from .generator import Activity, GraphGenerator
from .graphs import Entry, GraphStore
from .model.spec import Spec
from .model.weights import adopt
from .network import Network
from .ops.cublaslt import CublasLt
from .ops.interface import Ops
from .ops.persistent.sizes import PROVEN
from .ops.persistent.step import NotPersistent, PersistentStep
from .ops.reference import ReferenceOps
from .runner import Runner, Stats
from .shapes import Key, Shapes
from .state import control as slot
from .state.buffers import Buffers, Ids
from .state.kv_cache import KVCache
from .state.sampling import Sampling
from .streams import CudaStreams, HostStreams, Streams
from .token_ring import CopiedRing, PolledRing, TokenRing

# A difference between two orders of bfloat16 rounding is a few hundredths of the logits' norm with
# random weights, one between two computations is above 1.
_AGREES = 0.2


class StaticRunner(Runner):
    """Steps over weights, buffers and a cache at fixed addresses."""

    def __init__(
        self, model: Any, spec: Spec, options: Options, shapes: Shapes, activity: Activity
    ) -> None:
        """Adopt the weights, allocate, compile, and capture the graphs of the start.

        Raises:
            UnsupportedDevice: The device cannot run the kernels.
            OutOfMemory: Weights, KV cache or buffers do not fit.
        """
        super().__init__(options.run_ahead)
        began = time.perf_counter()
        device: torch.device = model.device
        self._options, self._shapes = options, shapes
        ops = _operations(device, options)
        try:
            weights = adopt(model, spec, shapes.max_context)
        except torch.OutOfMemoryError as error:
            raise OutOfMemory(f"no room to fuse the weights on {device}: {error}") from error
        dtype, on_cuda = weights.dtype, device.type == "cuda"
        self.network = Network(spec, weights, ops)
        self.cache = KVCache(spec, shapes.max_context, dtype, device)
        self.buffers = Buffers(spec, shapes.max_context, dtype, device, pinned=on_cuda)
        self.store = GraphStore()
        self._persistent: PersistentStep | None = None
        self._streams, self._ring, self.capturer = (
            self._on_cuda(device, activity) if on_cuda else self._on_host()
        )
        self.generator = GraphGenerator(
            self.store,
            options,
            activity,
            capture=lambda key: self.capturer.capture(key, scratch=True),
            drain=self._streams.drain,
            is_pinned=shapes.is_pinned,
            prepare=self.capturer.prepare,
        )
        self.dispatcher = Dispatcher(
            self.network, self.buffers, self.cache, self.store, self.generator.missed
        )
        self.timings["adopt_s"] = time.perf_counter() - began
        with torch.no_grad():
            self._compile()
            self._decode_step = self._make_persistent()
            if options.has_graphs:
                self._capture_now(shapes.at_start())

    def _on_host(self) -> tuple[Streams, TokenRing, Capturer]:
        capturer = HostCapturer(self.network, self.buffers, self.cache)
        return HostStreams(), TokenRing(self.buffers), capturer

    def _on_cuda(
        self, device: torch.device, activity: Activity
    ) -> tuple[Streams, TokenRing, Capturer]:
        options, b = self._options, self.buffers
        streams = CudaStreams(device)
        streams.synchronize_current()
        ring = (
            PolledRing(b, streams, activity, options.run_ahead)
            if options.mapped_ring
            else CopiedRing(b)
        )
        capturer = CudaCapturer(
            self.network, b, self.cache, streams, self._shapes, options, activity, ring
        )
        return streams, ring, capturer

    # ---- steps ----------------------------------------------------------------------------------

    def prefill(self, ids: Ids, sampling: Sampling) -> None:
        # The request before has received its first token or was drained: its upload is over.
        self.buffers.stage(ids, sampling, self._ring.begin())
        self._ring.expect(0)
        with self._streams.serving():
            try:
                self.dispatcher.run(self._shapes.prefill(len(ids)))
            except torch.OutOfMemoryError as error:
                raise OutOfMemory(
                    f"out of memory in a prefill of {len(ids)} tokens: {error}; "
                    "free memory or lower max_context; the engine is still usable"
                ) from error
            self._ring.enqueued(0)

    def decode(self, step: int, position: int) -> None:
        self._ring.expect(step)
        with self._streams.serving():
            self.dispatcher.run(self._shapes.decode(position + 1))
            self._ring.enqueued(step)

    def receive(self, step: int, check: Callable[[], None]) -> int:
        token = self._ring.receive(step, check)
        if self._persistent is not None:
            self._watch(self._persistent)
        return token

    def drain(self) -> None:
        self._streams.drain()

    def logits(self) -> Tensor:
        self.drain()
        return self.buffers.logits_V.clone()

    # ---- graphs ---------------------------------------------------------------------------------

    def start(self) -> None:
        if self._options.background and self._options.has_graphs:
            self.generator.start()

    def capture_all(self, prompt_len: int, max_new_tokens: int) -> None:
        if not self._options.has_graphs:
            return
        self.drain()
        with torch.no_grad():
            self._capture_now(self._shapes.request(prompt_len, max_new_tokens))

    def request_capture(self, prompt_len: int) -> None:
        for _ in range(self._options.capture_after_misses):
            self.generator.missed(self._shapes.prefill(prompt_len))

    def wait_for_captures(self, timeout_s: float) -> bool:
        return self.generator.wait_idle(timeout_s)

    def close(self) -> None:
        self.drain()
        self.generator.close()
        self.capturer.close()
        self.store.clear()

    def stats(self) -> Stats:
        generator, store = self.generator, self.store
        return Stats(
            tiers=dict(self.dispatcher.tiers),
            captures=generator.captures,
            capture_failures=generator.failures,
            failed=generator.failed(),
            evictions=generator.evictions,
            capture_ms=list(generator.capture_ms),
            stalls=self._ring.stalls,
            graph_bytes=store.bytes,
            prefill_graphs=[entry.key[1] for entry in store.by_kind("prefill")],
            decode_graphs=[entry.key[1] for entry in store.by_kind("decode")],
            kv_cache_bytes=self.cache.bytes,
            jit_prefill_ms=self.dispatcher.jit_ms,
            decode_step=self._decode_step,
        )

    def _compile(self) -> None:
        """Compile every kernel and measure the jit tier. No requests yet."""
        network, b, cache = self.network, self.buffers, self.cache
        b.staging_array[: slot.IDS] = 0
        b.stage(np.zeros(8, dtype=np.int32), Sampling(), 0)
        prompts = self._shapes.prompts or (16,)
        with self._streams.serving():
            network.ops.upload(b, b.rows)
            for rows in prompts:
                network.prefill(b, cache, rows)
            for context in self._shapes.contexts or (self._shapes.decode(1)[1],):
                network.decode(b, cache, context)
        self.drain()
        began = time.perf_counter()
        with self._streams.serving():
            network.prefill(b, cache, prompts[0])
        self.drain()
        self.timings["compile_s"] = time.perf_counter() - began
        self.dispatcher.jit_ms = self.timings["compile_s"] * 1e3

    def _make_persistent(self) -> str:
        """Put one kernel in place of a decode step's, once it agrees with them; return what is."""
        options, network = self._options, self.network
        if options.mode != "full" or self.buffers.control.device.type == "cpu":
            return "kernels: the persistent kernel needs CUDA and mode 'full'"
        family = network.spec.family
        if options.persistent is False or (options.persistent is None and family not in PROVEN):
            return f"kernels: persistent={options.persistent} leaves {family} to them"
        began = time.perf_counter()
        try:
            step = PersistentStep(network.spec, network.weights, self.buffers, self.cache)
            self._verify(step)
        except NotPersistent as reason:
            return f"kernels: {reason}"
        network.whole = self._persistent = step
        self.timings["persistent_s"] = time.perf_counter() - began
        return "persistent kernel"

    def _verify(self, step: PersistentStep) -> None:
        """Compare a step's logits with the jit tier's, over a cache of noise. No requests yet.

        Raises:
            NotPersistent: They differ, or the step did not end.
        """
        b, cache = self.buffers, self.cache
        error = 0.0
        noise = torch.Generator(b.control.device).manual_seed(1)
        quiet = Network(self.network.spec, self.network.weights, self.network.ops, sample=False)
        with self._streams.serving():
            cache.storage_L2HSD.normal_(generator=noise)
            for position in (5, self._shapes.limit * 3 // 4):
                b.control[slot.TOKEN], b.control[slot.POSITION] = 1, position
                quiet.decode(b, cache, self._shapes.decode(position + 1)[1])
                wanted = b.logits_V.clone()
                b.logits_V.fill_(float("nan"))
                step.enqueue()
                apart = (b.logits_V - wanted).square().sum() / wanted.square().sum()
                error = float(apart) ** 0.5
                if step.fault or not error < _AGREES:
                    break
            cache.storage_L2HSD.zero_()
        self.drain()
        if step.fault or not error < _AGREES:
            raise NotPersistent(
                f"its logits differ from the other kernels' by {error:.2g} of their norm "
                f"(barrier {step.fault} given up; 0: none)"
            )

    def _watch(self, step: PersistentStep) -> None:
        if not step.fault:
            return
        self.drain()
        self._persistent = self.network.whole = None
        self._decode_step = f"kernels: barrier {step.fault} of the persistent kernel did not come"
        for entry in self.store.by_kind("decode"):
            self.store.withdraw(entry.key)
        raise HybridError(
            f"barrier {step.fault} of the persistent decode kernel did not come in time; this "
            "request is lost, and the engine goes on without that kernel: reset, and ask again"
        )

    def _capture_now(self, keys: list[Key]) -> None:
        for key in keys:
            if self.store.get(key) is not None:
                continue
            entry = self.capturer.capture(key, scratch=False)
            self.store.publish(entry)
            if key[0] == "prefill":
                self._measure(entry)

    def _measure(self, entry: Entry) -> None:
        with self._streams.serving():
            entry.graph.replay()
            self.drain()
            began = time.perf_counter()
            entry.graph.replay()
            self.drain()
        entry.replay_ms = (time.perf_counter() - began) * 1e3


def _operations(device: torch.device, options: Options) -> Ops:
    if device.type == "cpu":
        return ReferenceOps()
    major, minor = torch.cuda.get_device_capability(device)
    if major < 8:
        raise UnsupportedDevice(
            f"{torch.cuda.get_device_name(device)} has compute capability {major}.{minor}; "
            "the kernels need 8.0 or newer (bfloat16). Use mode='eager'"
        )
    if find_spec("triton") is None:
        raise UnsupportedDevice(
            "Triton is not installed, and the kernels need it: pip install triton, "
            "or use mode='eager'"
        )
    from .ops.triton_ops import TritonOps  # deferred: needs Triton, which a CPU host may lack

    pdl = major >= 9 if options.pdl is None else options.pdl
    return TritonOps(pdl, options.mapped_ring, _cublaslt(device))


def _cublaslt(device: torch.device) -> CublasLt | None:
    """The library by its own interface; None where that does not work (torch's way then does)."""
    one = torch.zeros(1, 1, device=device)
    torch.mm(one, one)  # loads it
    try:
        return CublasLt(device)
    except OSError:
        return None
