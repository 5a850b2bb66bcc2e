"""The engine: requests in, tokens out. Context Generator (dispatcher and jit tier) of the runtime.

A request's decode steps are queued ahead of the token that is waited for: a step leaves its token
in device memory for the next one, and in a ring in host memory for us. The host launches and reads
the ring; it synchronises nothing. Times are milliseconds unless a name says otherwise.
"""

from __future__ import annotations

import inspect
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import fields
from importlib.util import find_spec
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from . import buffers as slot
from . import models, reference
from .buffers import Buffers
from .config import Options, Spec, spec_of
from .cublaslt import CublasLt
from .errors import (
    Cancelled,
    ContextOverflow,
    HybridError,
    OutOfMemory,
    UnsupportedDevice,
)
from .generator import GraphGenerator
from .graphs import Entry, Graph, GraphStore, Key, capture, host_graph
from .kv_cache import KVCache
from .network import Cut, Network
from .sampling import Sampling, draw
from .weights import adopt

GREEDY = Sampling()
Ids = npt.NDArray[np.integer[Any]]
_DEFAULT_CONTEXT = 2048
_DEFAULT_LADDER = (32, 64, 128, 256, 512)
_FIRST_CONTEXT = 512


def bucket(length: int) -> int:
    """Return the prefill length that `length` is padded to.

    Below about 100 tokens a prefill of 7B reads weights and padding is free; above, a padded token
    costs its share of arithmetic (16 us), so steps stay small: the 8 columns of the tensor cores.
    """
    step = 8 if 96 < length <= 512 else 16 if length <= 1024 else 64
    return -(-length // step) * step


class TokenStream:
    """The tokens of one request, as they come. Iterate, or `close()` to cancel.

    The engine serves no other request until this one is exhausted or closed.
    """

    def __init__(self, tokens: Iterator[int], engine: Engine) -> None:
        self._tokens, self._engine = tokens, engine

    def __iter__(self) -> TokenStream:
        return self

    def __next__(self) -> int:
        return next(self._tokens)

    def close(self) -> None:
        """Stop; steps already queued are let run and their tokens dropped."""
        self._tokens.close()  # type: ignore[attr-defined]

    def __enter__(self) -> TokenStream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Engine:
    """One model, one sequence at a time. Made by `from_model`; close it to end its thread."""

    def __init__(self, model: Any, options: Options) -> None:
        began = time.perf_counter()
        self.options = options
        self.spec: Spec = spec_of(model.config)
        self.device: torch.device = model.device
        self._cuda = self.device.type == "cuda"
        _check_device(self.device, options.mode)
        wanted = options.max_context or min(_DEFAULT_CONTEXT, self.spec.max_positions)
        self.max_context = -(-wanted // 128) * 128
        if wanted > self.spec.max_positions:
            raise ContextOverflow(
                f"max_context {wanted} is beyond the model's {self.spec.max_positions} positions"
            )
        self._limit = min(self.max_context, self.spec.max_positions)
        self._model = model
        self._busy = False
        self._first_due = False
        self._cancel = threading.Event()
        self._position = 0
        self._step = 0
        self._base = 0
        self._token_ms = 0.0
        self._arrived = 0.0
        self._stalls = 0
        self._tiers: dict[str, int] = {}
        self._sampling = GREEDY
        self._store = GraphStore()
        self._generator: GraphGenerator | None = None
        self._past: Any = None
        self._jit_ms = 0.0
        self._jit_rows: set[int] = set()
        self._anchor: Graph | None = None
        self.timings: dict[str, float] = {}
        self._eager_arguments = frozenset(inspect.signature(model.forward).parameters)
        if options.mode == "eager":
            self.timings["startup_s"] = time.perf_counter() - began
            return
        self._build()
        self.timings["adopt_s"] = time.perf_counter() - began
        with torch.no_grad():
            self._warm()
        self.timings["startup_s"] = time.perf_counter() - began
        if options.background and options.mode in ("full", "piecewise"):
            self._start_generator()

    @classmethod
    def from_model(
        cls,
        model: Any,
        *,
        dtype: torch.dtype | None = None,
        device: str | torch.device | None = None,
        seed: int = 0,
        **options: Any,
    ) -> Engine:
        """Return an engine for a transformers model, a built-in name or a saved model's folder.

        Args:
            model: The model's weights are adopted: its projections become views of fused ones.
            dtype, device: For a name or path; None: bfloat16 on CUDA if there is one, else
                float32 on the CPU.
            options: Fields of `Options`.

        Raises:
            UnsupportedModel: A feature of the model is not implemented; named.
            UnsupportedDevice: The device cannot run the mode.
            ContextOverflow: max_context is beyond the model's positions.
            OutOfMemory: KV cache or buffers do not fit.
        """
        known = {field.name for field in fields(Options)}
        unknown = sorted(set(options) - known)
        if unknown:
            raise HybridError(f"unknown options {unknown}; there are: {', '.join(sorted(known))}")
        chosen = Options(**options)
        if isinstance(model, str):
            cuda = torch.cuda.is_available()
            device = device or ("cuda" if cuda else "cpu")
            dtype = dtype or (torch.bfloat16 if cuda else torch.float32)
            if model in models.BUILTIN:
                model = models.build(model, dtype, device, seed)
            else:
                model = models.load(model, dtype, device)
        return cls(model, chosen)

    # ---- requests -------------------------------------------------------------------------------

    def generate(
        self,
        ids: Sequence[int],
        max_new_tokens: int,
        sampling: Sampling | None = None,
        *,
        stream: bool = False,
        stop: Sequence[int] = (),
    ) -> Any:
        """Return the generated tokens: a list, or a `TokenStream` if `stream`.

        Args:
            ids: Prompt token ids, at least one.
            stop: Token ids that end the request; the one met is the last token returned.

        Raises:
            HybridError: An id is outside the vocabulary, or another request is being served.
            ContextOverflow: Prompt and new tokens do not fit.
            OutOfMemory: The device ran out of memory; the engine stays usable.
        """
        checked = self._check(ids, max_new_tokens)
        if self._busy:
            raise HybridError("the engine is serving a request; exhaust or close its stream first")
        # Starts when first iterated: a stream that nobody reads must not block the engine.
        tokens = self._tokens(checked, max_new_tokens, sampling or GREEDY, frozenset(stop))
        made = TokenStream(tokens, self)
        return made if stream else list(made)

    def prefill(self, ids: Sequence[int], sampling: Sampling | None = None) -> int:
        """Read a prompt and return its first token, waited for. Starts a sequence anew."""
        checked = self._check(ids, 1)
        self._take()
        try:
            self._begin(checked, sampling or GREEDY)
            return self._receive(0)
        except BaseException:
            self._drain()
            raise
        finally:
            self._busy = self._first_due = False

    def decode(self) -> int:
        """Run one step after `prefill` and return its token, waited for.

        Raises:
            HybridError: There was no prefill.
            ContextOverflow: The KV cache is full.
        """
        if self._step == 0:
            raise HybridError("decode without a sequence; call prefill first")
        if self._position >= self._limit:
            raise ContextOverflow(
                f"the KV cache holds {self._limit} tokens and is full; reset and prefill again"
            )
        self._take()
        try:
            self._advance()
            return self._receive(self._step - 1)
        finally:
            self._busy = False

    def reset(self) -> None:
        """Forget the sequence and let queued work finish; graphs stay."""
        self._drain()
        self._busy = False
        self._cancel.clear()
        self._position = self._step = 0
        self._past = None

    def cancel(self) -> None:
        """End the request that is being served, from any thread; its stream raises Cancelled."""
        self._cancel.set()

    def _take(self) -> None:
        if self._busy:
            raise HybridError("the engine is serving a request; exhaust or close its stream first")
        self._busy = True
        self._cancel.clear()

    def _check(self, ids: Sequence[int], new: int) -> Ids:
        try:
            # One conversion and one reduction: this stands before the first token.
            prompt = np.asarray(ids.cpu() if isinstance(ids, torch.Tensor) else ids)
        except ValueError as error:
            raise HybridError(f"the prompt is not one sequence of token ids: {error}") from error
        if prompt.ndim == 2:
            if prompt.shape[0] != 1:
                raise HybridError(
                    f"got {prompt.shape[0]} sequences; the engine serves one at a time"
                )
            prompt = prompt[0]
        n = prompt.size
        if not n:
            raise HybridError("the prompt is empty; give at least one token id")
        if prompt.ndim != 1 or prompt.dtype.kind not in "iu":
            raise HybridError(
                f"the prompt is an array of {prompt.dtype} with {prompt.ndim} dimensions; "
                "give a sequence of token ids"
            )
        if new < 1:
            raise HybridError(f"max_new_tokens is {new}; it must be at least 1")
        low, high = int(prompt.min()), int(prompt.max())
        if low < 0 or high >= self.spec.vocab:
            raise HybridError(
                f"token ids run from {low} to {high}, "
                f"but the vocabulary is 0 .. {self.spec.vocab - 1}"
            )
        # The last token is returned, never read back in: it needs no row.
        if n + new - 1 > self._limit:
            raise ContextOverflow(
                f"{n} prompt tokens and {new} new ones need {n + new - 1} rows "
                f"of the KV cache, which has {self._limit}: shorten them or raise max_context"
            )
        return prompt

    def _tokens(
        self, ids: Ids, new: int, sampling: Sampling, stop: frozenset[int]
    ) -> Iterator[int]:
        self._take()
        received = 0
        try:
            self._begin(ids, sampling)
            ahead = 0 if self.options.mode == "eager" else self.options.run_ahead
            while received < new:
                # The first round queues decode steps right behind prefill, before its token.
                # A capture can hold a launch back until the queue is empty: a short queue then
                # costs the reader nothing, a long one all its steps. See docs/decisions/0104.
                now_ahead = min(ahead, 1) if self.capturing else ahead
                while self._step < new and self._step - received <= now_ahead:
                    self._advance()
                token = self._receive(received)
                self._first_due = False
                received += 1
                yield token
                if token in stop:
                    return
        finally:
            self._first_due = False
            if self._step > received:
                self._drain()
            self._busy = False

    # ---- steps ----------------------------------------------------------------------------------

    def _begin(self, ids: Ids, sampling: Sampling) -> None:
        self._sampling = sampling
        n = len(ids)
        if self.options.mode == "eager":
            self._past = None
            self._step, self._position = 0, n
            self._eager(ids.tolist())
            return
        b = self._b
        self._base = (self._base + self._step) % slot.RING
        self._step = 0
        self._first_due = True
        # The request before has received its first token or was drained: its upload is over.
        b.stage(ids, sampling, self._base)
        b.ring_array[self._base] = -1
        with self._serving():
            try:
                self._prefill_tier(n)
            except torch.OutOfMemoryError as error:
                self._step = 0
                raise OutOfMemory(
                    f"out of memory in a prefill of {n} tokens: {error}; "
                    "free memory or lower max_context; the engine is still usable"
                ) from error
            self._ring_copy(self._base)
        self._step, self._position = 1, n

    def _advance(self) -> None:
        if self.options.mode == "eager":
            self._eager([self._last])
            return
        place = (self._base + self._step) % slot.RING
        self._b.ring_array[place] = -1
        context = self._context(self._position + 1)
        with self._serving():
            entry = self._dispatch(("decode", context))
            if entry is not None:
                entry.graph.replay()
            else:
                with torch.no_grad():
                    self._network.decode(self._b, self._cache, context)
            self._ring_copy(place)
        self._step += 1
        self._position += 1

    def _prefill_tier(self, n: int) -> None:
        rows = min(bucket(n), self.max_context)
        entry = self._dispatch(("prefill", rows))
        if entry is not None:
            entry.graph.replay()  # uploads the request itself
        else:
            with torch.no_grad():
                self.ops.upload(self._b, rows)
                self._network.prefill(self._b, self._cache, rows)
            self._jit_rows.add(rows)

    def _dispatch(self, key: Key) -> Entry | None:
        """Return the graph to replay for `key`, or None for the jit tier."""
        kind, size = key
        if self.options.mode == "jit":
            self._count(f"{kind}:jit")
            return None
        entry = self._store.get(key)
        tier = "exact"
        if entry is None:
            if self._generator is not None:
                self._generator.missed(key)
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
            self._count(f"{kind}:jit")
            return None
        entry.hits += 1
        entry.used = time.monotonic()
        self._count(f"{kind}:{tier}")
        return entry

    def _jit_estimate(self, rows: int) -> float:
        """Launch-bound time of the jit tier, or the time of the next graph below if larger.

        Twice that for a length that the tier has not run: libraries load kernels on first use.
        """
        below = [e.replay_ms or 0.0 for e in self._store.of("prefill") if e.key[1] <= rows]
        return max([self._jit_ms, *below]) * (1 if rows in self._jit_rows else 2)

    def _context(self, length: int) -> int:
        size = _FIRST_CONTEXT
        while size < length:
            size *= 2
        return min(size, self.max_context)

    def _receive(self, step: int) -> int:
        if self.options.mode == "eager":
            return self._last
        array = self._b.ring_array
        place = (self._base + step) % slot.RING
        if not self._cuda:
            self._if_cancelled()
            return int(array[place])
        if not self.options.mapped_ring:
            self._if_cancelled()
            self._ring_events[place % len(self._ring_events)].synchronize()
            return int(array[place])
        generator = self._generator
        capturing = False
        spins = 0
        while array[place] < 0:
            spins += 1
            if generator is not None and generator.capturing:
                capturing = True
                time.sleep(0)  # hand over the interpreter lock: the capture needs it too
            if not spins % 256:
                self._if_cancelled()
                if not spins % 65536 and self._stream.query() and array[place] < 0:
                    raise HybridError(
                        "the device finished its queue without writing a token; reset the engine"
                    )
        now = time.perf_counter()
        gap, self._arrived = (now - self._arrived) * 1e3, now
        # The first gaps are not steady: those steps were queued behind the prefill.
        if step > self.options.run_ahead + 1:
            if capturing and self._token_ms and gap > 1.5 * self._token_ms:
                self._stalls += 1
            elif not capturing:
                self._token_ms = 0.9 * self._token_ms + 0.1 * gap if self._token_ms else gap
        self._if_cancelled()
        return int(array[place])

    def _if_cancelled(self) -> None:
        if self._cancel.is_set():
            raise Cancelled("the request was cancelled; the engine is ready for the next")

    @torch.no_grad()
    def _eager(self, ids: list[int]) -> None:
        """One pass of the untouched transformers model, its own cache, our sampler."""
        input_ids = torch.tensor([ids], device=self.device)
        # transformers 5.2x renames the argument; None lets the model make a cache of its own.
        name = "cache" if "cache" in self._eager_arguments else "past_key_values"
        result = self._model(input_ids, use_cache=True, logits_to_keep=1, **{name: self._past})
        self._past = getattr(result, "cache", None) or result.past_key_values
        self._last = int(draw(result.logits[0, -1].float(), self._sampling, self._step))
        self._count("prefill:eager" if self._step == 0 else "decode:eager")
        self._position += self._step > 0
        self._step += 1

    # ---- building -------------------------------------------------------------------------------

    def _build(self) -> None:
        options = self.options
        try:
            weights = adopt(self._model, self.spec, self.max_context)
        except torch.OutOfMemoryError as error:
            raise OutOfMemory(f"no room to fuse the weights on {self.device}: {error}") from error
        if self._cuda:
            from .kernels import Kernels  # deferred: needs Triton, which a CPU host may lack

            major, _ = torch.cuda.get_device_capability(self.device)
            pdl = major >= 9 if options.pdl is None else options.pdl
            ops: Any = Kernels(pdl, options.mapped_ring, _cublaslt(self.device))
            # Serving comes first on the device; captures and their warm-ups take what is left.
            self._stream = torch.cuda.Stream(self.device, priority=-1)
            self._side_stream = torch.cuda.Stream(self.device, priority=0)
            self._ring_events = [torch.cuda.Event() for _ in range(64)]
            self._pool = torch.cuda.graph_pool_handle()
        else:
            ops = reference
        self.ops = ops
        self.weights = weights
        self._network = Network(self.spec, weights, ops)
        dtype = weights.dtype
        self._cache = KVCache(self.spec, self.max_context, dtype, self.device)
        self._b = Buffers(self.spec, self.max_context, dtype, self.device, self._cuda)
        self._capture_lock = threading.Lock()
        self._settle()
        if self._cuda:
            # The pool goes with its last graph, and cannot be captured into again: one graph stays.
            self._anchor = capture(self._idle, False, self._pool, self._side_stream)
        self._scratch: tuple[Buffers, KVCache] | None = None
        self._beside: Any = None

    def _idle(self, _: Cut) -> None:
        self._b.x_D.zero_()

    def _settle(self) -> None:
        """Wait for the fills that allocation queued on this thread's current stream.

        The engine's own streams do not wait for that one: a step that overtook the fill of its
        control block would read old memory as token ids.
        """
        if self._cuda:
            torch.cuda.current_stream(self.device).synchronize()

    def _ladder(self) -> tuple[int, ...]:
        chosen = self.options.prefill_lengths
        lengths = _DEFAULT_LADDER if chosen is None else chosen
        return tuple(sorted({min(bucket(n), self.max_context) for n in lengths}))

    def _contexts(self) -> tuple[int, ...]:
        chosen = self.options.contexts
        lengths = (_FIRST_CONTEXT, self.max_context) if chosen is None else chosen
        return tuple(sorted({self._context(min(n, self.max_context)) for n in lengths}))

    def _warm(self) -> None:
        """Compile every kernel, measure the jit tier, capture the first graphs. No requests yet."""
        self._b.staging_array[: slot.IDS] = 0
        self._b.stage(np.zeros(8, dtype=np.int32), GREEDY, 0)
        with self._serving():
            self.ops.upload(self._b, self._b.rows)
            for rows in self._ladder() or (16,):
                self._network.prefill(self._b, self._cache, rows)
            for context in self._contexts() or (self._context(1),):
                self._network.decode(self._b, self._cache, context)
        self._drain()
        rows = self._ladder()[0] if self._ladder() else 16
        began = time.perf_counter()
        with self._serving():
            self._network.prefill(self._b, self._cache, rows)
        self._drain()
        self._jit_ms = (time.perf_counter() - began) * 1e3
        self.timings["compile_s"] = time.perf_counter() - began
        if self.options.mode not in ("full", "piecewise"):
            return
        keys = [("prefill", rows) for rows in reversed(self._ladder())]
        self._capture_now(keys + [("decode", context) for context in self._contexts()])

    def _capture_now(self, keys: list[Key]) -> None:
        for key in keys:
            if self._store.get(key) is not None:
                continue
            entry = self._capture(key, scratch=False)
            self._store.publish(entry)
            if key[0] == "prefill":
                self._measure(entry)

    def _measure(self, entry: Entry) -> None:
        with self._serving():
            entry.graph.replay()
            self._drain()
            began = time.perf_counter()
            entry.graph.replay()
            self._drain()
        entry.replay_ms = (time.perf_counter() - began) * 1e3

    @torch.no_grad()
    def _capture(self, key: Key, scratch: bool) -> Entry:
        """Warm up (on scratch state if `scratch`) and capture; runs on the calling thread."""
        kind, size = key
        began = time.perf_counter()

        # A piecewise graph keeps calls of its network, which must not sleep when they are replayed.
        gentle = scratch and self._cuda and self.options.mode == "full"
        ops = _Yielding(self.ops, self._hold) if gentle else self.ops
        network = Network(self.spec, self.weights, ops)

        def run(cut: Cut) -> None:
            if kind == "prefill":
                network.ops.upload(self._b, size)
                network.prefill(self._b, self._cache, size, cut)
            else:
                network.decode(self._b, self._cache, size, cut)

        if not self._cuda:
            graph = host_graph(run)
            return Entry(key, graph, 0, (time.perf_counter() - began) * 1e3)
        torch.cuda.set_device(self.device)
        if scratch and self._busy:
            # The reader has seen `capturing`; let the steps queued before it drain.
            time.sleep(min(0.05, (self.options.run_ahead + 1) * self._token_ms / 1e3))
        with self._capture_lock:
            self._warm_thread(key, scratch)
            free_before, _ = torch.cuda.mem_get_info(self.device)
            began = time.perf_counter()
            graph: Graph = capture(
                run,
                self.options.mode == "piecewise",
                self._pool,
                self._side_stream,
                self._hold if scratch else _nothing,
            )
            taken = (time.perf_counter() - began) * 1e3
            free_after, _ = torch.cuda.mem_get_info(self.device)
        return Entry(key, graph, max(0, free_before - free_after), taken)

    def _warm_thread(self, key: Key, scratch: bool) -> None:
        """Make this thread's library handles and plans for the length, on the capture stream.

        Two layers (the last one takes another path) are all shapes there are. A whole pass would
        take a prefill's worth of device time from the running request.
        """
        kind, size = key
        if scratch:
            if self._scratch is None:
                dtype = self.weights.dtype
                rows = self.max_context
                self._scratch = (
                    Buffers(self.spec, rows, dtype, self.device, False),
                    KVCache(self.spec, rows, dtype, self.device, layers=1),
                )
                self._scratch[0].control[slot.LENGTH] = 8
                self._settle()
            b, cache = self._scratch
        else:
            b, cache = self._b, self._cache
        some = tuple(sorted({0, *self._odd_layers(), self.spec.layers - 1}))
        if len(some) == 1:
            some = (0, 0)
        # The mapped host ring of scratch buffers is plain memory, so sampling stays out: its
        # kernel is compiled, and has no handles.
        ops: Any = _WithoutSample(self._side_ops() if scratch else self.ops, _nothing)
        if scratch and self._busy:
            # One operation beside each step: a warm-up in one piece makes one token 0.6 ms late.
            ops = _Yielding(ops, self._hold, self._token_ms / 1e3)
        network = Network(self.spec, self.weights, ops)
        with torch.cuda.stream(self._side_stream):
            if kind == "prefill":
                network.prefill(b, cache, size, layers=some)
            else:
                network.decode(b, cache, size, layers=some)
            done = torch.cuda.Event()
            done.record()
        done.synchronize()

    @torch.no_grad()
    def _prepare(self) -> None:
        """Give the generator's thread scratch state and handles: allocating stops the device."""
        if self._cuda:
            torch.cuda.set_device(self.device)
            self._warm_thread(("prefill", (self._ladder() or (16,))[0]), scratch=True)

    def _hold(self) -> None:
        """Wait while a request waits for its first token; a capture can wait, a user should not."""
        while self._first_due:
            time.sleep(1e-4)

    def _side_ops(self) -> Any:
        """The operations as warm-ups use them, beside the steps of a request."""
        if self._beside is None:
            self._beside = self.ops.beside() if self._cuda else self.ops
        return self._beside

    def _odd_layers(self) -> tuple[int, ...]:
        flags = self.spec.sparse
        return tuple(i for i in range(1, len(flags)) if flags[i] != flags[i - 1])

    def capture_all(self, prompt_len: int, max_new_tokens: int) -> None:
        """Capture, now, the graphs that a request of these sizes needs; return when they are ready.

        Raises:
            ContextOverflow: The request would not fit.
        """
        self._check([0] * prompt_len, max_new_tokens)
        if self.options.mode not in ("full", "piecewise"):
            return
        keys: list[Key] = [("prefill", min(bucket(prompt_len), self.max_context))]
        for length in range(prompt_len + 1, prompt_len + max_new_tokens + 1):
            key = ("decode", self._context(length))
            if key not in keys:
                keys.append(key)
        self._drain()
        with torch.no_grad():
            self._capture_now(keys)

    def request_capture(self, prompt_len: int) -> None:
        """Ask the Graph Generator for a prefill length, in the background; returns at once."""
        if self._generator is not None:
            key = ("prefill", min(bucket(prompt_len), self.max_context))
            for _ in range(self.options.sightings):
                self._generator.missed(key)

    @property
    def capturing(self) -> bool:
        """Whether the Graph Generator is at work on a capture now."""
        return self._generator is not None and self._generator.capturing

    def _start_generator(self) -> None:
        ladder, contexts = self._ladder(), self._contexts()

        def pinned(key: Key) -> bool:
            return key[0] == "decode" or (bool(ladder) and key[1] == ladder[-1])

        del contexts
        self._generator = GraphGenerator(
            self._store,
            # Piecewise graphs hold calls on live buffers; capture itself executes none of them.
            lambda key: self._capture(key, scratch=True),
            self._drain,
            self.options.sightings,
            self.options.graph_budget_bytes,
            self.options.max_graphs,
            pinned,
            self._prepare,
        )
        self._generator.start()

    # ---- small things ---------------------------------------------------------------------------

    def stats(self) -> dict[str, Any]:
        """Return counters: steps by tier, captures, failures, evictions, stalls, bytes, times."""
        generator = self._generator
        return {
            "mode": self.options.mode,
            "tiers": dict(self._tiers),
            "captures": generator.captures if generator else 0,
            "capture_failures": generator.failures if generator else 0,
            "failed": generator.failed() if generator else {},
            "evictions": generator.evictions if generator else 0,
            "capture_ms": list(generator.capture_ms) if generator else [],
            "stalls": self._stalls,
            "graph_bytes": self._store.bytes,
            "prefill_graphs": [entry.key[1] for entry in self._store.of("prefill")],
            "decode_graphs": [entry.key[1] for entry in self._store.of("decode")],
            "kv_cache_bytes": 0 if self.options.mode == "eager" else self._cache.bytes,
            "jit_prefill_ms": self._jit_ms,
            **self.timings,
        }

    def wait_for_captures(self, timeout_s: float = 60.0) -> bool:
        """Return True once the Graph Generator has nothing left to do."""
        return self._generator is None or self._generator.wait_idle(timeout_s)

    def logits(self) -> torch.Tensor:
        """Return a copy of the last step's float32 logits (V,), after waiting for it."""
        if self.options.mode == "eager":
            raise HybridError("the eager mode keeps no logits; call the transformers model itself")
        self._drain()
        return self._b.logits_V.clone()

    def close(self) -> None:
        """End the generator thread and drop graphs; the transformers model stays usable."""
        self._drain()
        if self._generator is not None:
            self._generator.close()
            self._generator = None
        self._anchor = None
        self._store.clear()

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _count(self, tier: str) -> None:
        self._tiers[tier] = self._tiers.get(tier, 0) + 1

    def _serving(self) -> Any:
        if not self._cuda:
            return _Nothing()
        if torch.cuda.current_device() != self._stream.device_index:
            return torch.cuda.stream(self._stream)
        return _OnStream(self._stream)

    def _drain(self) -> None:
        if self._cuda and self.options.mode != "eager":
            self._stream.synchronize()

    def _ring_copy(self, place: int) -> None:
        if self._cuda and not self.options.mapped_ring:
            b = self._b
            b.host_ring[place : place + 1].copy_(b.ring[place : place + 1], non_blocking=True)
            self._ring_events[place % len(self._ring_events)].record()


class _OnStream:
    """torch.cuda.stream() for a stream of the current device, at a third of its host time."""

    __slots__ = ("_before", "_stream")

    def __init__(self, stream: torch.cuda.Stream) -> None:
        self._stream = stream

    def __enter__(self) -> None:
        self._before = torch.cuda.current_stream()
        torch.cuda.set_stream(self._stream)

    def __exit__(self, *_: object) -> None:
        torch.cuda.set_stream(self._before)


class _Nothing:
    def __enter__(self) -> None:
        return None

    def __exit__(self, *_: object) -> None:
        return None


class _Yielding:
    """The operations, each followed by a moment without the interpreter lock.

    A capture is Python from end to end; a serving thread that asks for the lock would otherwise
    wait out the switch interval (5 ms) several times a token. 20 us asked for are about 70 slept.
    """

    def __init__(self, ops: Any, hold: Any, pause_s: float = 2e-5) -> None:
        self._ops, self._hold, self._pause_s = ops, hold, pause_s

    def __getattr__(self, name: str) -> Any:
        operation = getattr(self._ops, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            result = operation(*args, **kwargs)
            time.sleep(self._pause_s)
            self._hold()
            return result

        return call


class _WithoutSample:
    """The operations of a network, sampling left out."""

    def __init__(self, ops: Any, sample: Any) -> None:
        self._ops = ops
        self.sample = sample

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ops, name)


def _nothing(*_: Any) -> None:
    return None


def _cublaslt(device: torch.device) -> CublasLt | None:
    """The library by its own interface; None where that does not work (torch's way then does)."""
    one = torch.zeros(1, 1, device=device)
    torch.mm(one, one)  # loads it
    try:
        return CublasLt(device)
    except OSError:
        return None


def _check_device(device: torch.device, mode: str) -> None:
    if device.type not in ("cuda", "cpu"):
        raise UnsupportedDevice(
            f"the model is on {device}; hybrid runs on CUDA, and for tests on the CPU. "
            "Move the model, or use mode='eager'"
        )
    if device.type == "cpu" or mode == "eager":
        return
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
