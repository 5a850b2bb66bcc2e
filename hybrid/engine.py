"""The engine: requests in, tokens out.

A request's decode steps are queued ahead of the token that is waited for: a step leaves its token
in device memory for the next one, and in a ring in host memory for us. The host launches and reads
the ring; it synchronises nothing. How a step is run is the runner's business.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Generator, Sequence
from dataclasses import asdict, fields
from typing import Any, Literal, overload

import numpy as np
import torch

from .config import Options
from .eager import EagerRunner
from .errors import Cancelled, ContextOverflow, HybridError, UnsupportedDevice
from .generator import Activity
from .model import hub
from .model.spec import Spec, spec_of
from .requests.hf_generate import Streamer, followed, request_of
from .runner import Runner
from .shapes import Shapes
from .state.buffers import Ids
from .state.sampling import Sampling
from .static import StaticRunner

GREEDY = Sampling()


class TokenStream:
    """The tokens of one request, as they come. Iterate, or `close()` to cancel.

    The engine serves no other request until this one is exhausted or closed.
    """

    def __init__(self, tokens: Generator[int, None, None]) -> None:
        self._tokens = tokens

    def __iter__(self) -> TokenStream:
        return self

    def __next__(self) -> int:
        return next(self._tokens)

    def close(self) -> None:
        """Stop; steps already queued are let run and their tokens dropped."""
        self._tokens.close()

    def __enter__(self) -> TokenStream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Engine:
    """One model, one sequence at a time. Made by `from_model`; close it to end its thread.

    Attributes:
        timings: Seconds by what they were spent on at start.
    """

    def __init__(self, model: Any, options: Options) -> None:
        began = time.perf_counter()
        self.options = options
        self.spec: Spec = spec_of(model.config)
        self.device: torch.device = model.device
        if self.device.type not in ("cuda", "cpu"):
            raise UnsupportedDevice(
                f"the model is on {self.device}; hybrid runs on CUDA, and for tests on the CPU. "
                "Move the model, or use mode='eager'"
            )
        self._generation: Any = getattr(model, "generation_config", None)
        self._shapes = Shapes.choose(options, self.spec)
        self.max_context = self._shapes.max_context
        self._activity = Activity()
        self._cancel = threading.Event()
        # Of the sequence: steps that were enqueued, and tokens that the cache has behind them.
        self._step = self._position = 0
        self.runner: Runner = (
            EagerRunner(model)
            if options.mode == "eager"
            else StaticRunner(model, self.spec, options, self._shapes, self._activity)
        )
        self.timings = {**self.runner.timings, "startup_s": time.perf_counter() - began}
        self.runner.start()

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
            if model in hub.BUILTIN:
                model = hub.build(model, dtype, device, seed)
            else:
                model = hub.load(model, dtype, device)
        return cls(model, chosen)

    # ---- requests -------------------------------------------------------------------------------

    @overload
    def generate(
        self,
        ids: Sequence[int],
        max_new_tokens: int,
        sampling: Sampling | None = None,
        *,
        stream: Literal[False] = False,
        stop: Sequence[int] = (),
    ) -> list[int]: ...

    @overload
    def generate(
        self,
        ids: Sequence[int],
        max_new_tokens: int,
        sampling: Sampling | None = None,
        *,
        stream: Literal[True],
        stop: Sequence[int] = (),
    ) -> TokenStream: ...

    def generate(
        self,
        ids: Sequence[int],
        max_new_tokens: int,
        sampling: Sampling | None = None,
        *,
        stream: bool = False,
        stop: Sequence[int] = (),
    ) -> list[int] | TokenStream:
        """Return the generated tokens: a list, or a `TokenStream` if `stream`.

        Args:
            ids: Prompt token ids, at least one.
            stop: Token ids that end the request; the one met is the last token returned.

        Raises:
            HybridError: An id is outside the vocabulary, or another request is being served.
            ContextOverflow: Prompt and new tokens do not fit.
            OutOfMemory: The device ran out of memory; the engine stays usable.
        """
        prompt = self._check(ids, max_new_tokens)
        self._refuse_if_serving()
        # Starts when first iterated: a stream that nobody reads must not block the engine.
        tokens = self._tokens(prompt, max_new_tokens, sampling or GREEDY, frozenset(stop))
        return TokenStream(tokens) if stream else list(tokens)

    def hf_generate(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        streamer: Streamer | None = None,
        **given: Any,
    ) -> torch.Tensor:
        """Return what `model.generate` would: prompt and new tokens, (1, T).

        Args:
            input_ids: (1, T). attention_mask: All ones.
            streamer: Given the prompt, then each token as it comes, as transformers does.
            given: max_new_tokens, max_length, do_sample, temperature, top_k, top_p, eos_token_id;
                what is not given is taken from the model's generation config.

        Raises:
            HybridError: The call asks for what the runtime does not do; named.
        """
        request = request_of(input_ids, attention_mask, self._generation, given)
        tokens = self.generate(
            request.ids, request.new, request.sampling, stream=True, stop=request.stop
        )
        with tokens:
            return followed(input_ids, tokens, streamer)

    def prefill(self, ids: Sequence[int], sampling: Sampling | None = None) -> int:
        """Read a prompt and return its first token, waited for. Starts a sequence anew."""
        prompt = self._check(ids, 1)
        self._acquire()
        try:
            self._begin(prompt, sampling or GREEDY)
            return self._receive(0)
        except BaseException:
            self.runner.drain()
            raise
        finally:
            self._activity.serving = self._activity.first_token_due = False

    def decode(self) -> int:
        """Run one step after `prefill` and return its token, waited for.

        Raises:
            HybridError: There was no prefill.
            ContextOverflow: The KV cache is full.
        """
        if self._step == 0:
            raise HybridError("decode without a sequence; call prefill first")
        if self._position >= self._shapes.limit:
            raise ContextOverflow(
                f"the KV cache holds {self._shapes.limit} tokens and is full; "
                "reset and prefill again"
            )
        self._acquire()
        try:
            self._advance()
            return self._receive(self._step - 1)
        finally:
            self._activity.serving = False

    def reset(self) -> None:
        """Forget the sequence and let queued work finish; graphs stay."""
        self.runner.drain()
        self._activity.serving = False
        self._cancel.clear()
        self._position = self._step = 0
        self.runner.forget()

    def cancel(self) -> None:
        """End the request that is being served, from any thread; its stream raises Cancelled."""
        self._cancel.set()

    def _refuse_if_serving(self) -> None:
        if self._activity.serving:
            raise HybridError("the engine is serving a request; exhaust or close its stream first")

    def _acquire(self) -> None:
        self._refuse_if_serving()
        self._activity.serving = True
        self._cancel.clear()

    def _check(self, ids: Sequence[int], new: int) -> Ids:
        return _checked(ids, new, self.spec.vocab, self._shapes.limit)

    def _tokens(
        self, ids: Ids, new: int, sampling: Sampling, stop: frozenset[int]
    ) -> Generator[int, None, None]:
        self._acquire()
        received = 0
        try:
            self._begin(ids, sampling)
            ahead = self.runner.run_ahead
            while received < new:
                # The first round queues decode steps right behind prefill, before its token.
                # A capture can hold a launch back until the queue is empty: a short queue then
                # costs the reader nothing, a long one all its steps. See docs/decisions/0104.
                now_ahead = min(ahead, 1) if self.capturing else ahead
                while self._step < new and self._step - received <= now_ahead:
                    self._advance()
                token = self._receive(received)
                self._activity.first_token_due = False
                received += 1
                yield token
                if token in stop:
                    return
        finally:
            self._activity.first_token_due = False
            if self._step > received:
                self.runner.drain()
            self._activity.serving = False

    def _begin(self, ids: Ids, sampling: Sampling) -> None:
        self._step = 0
        self._activity.first_token_due = True
        self.runner.prefill(ids, sampling)
        self._step, self._position = 1, len(ids)

    def _advance(self) -> None:
        self.runner.decode(self._step, self._position)
        self._step += 1
        self._position += 1

    def _receive(self, step: int) -> int:
        return self.runner.receive(step, self._raise_if_cancelled)

    def _raise_if_cancelled(self) -> None:
        if self._cancel.is_set():
            raise Cancelled("the request was cancelled; the engine is ready for the next")

    # ---- graphs ---------------------------------------------------------------------------------

    def capture_all(self, prompt_len: int, max_new_tokens: int) -> None:
        """Capture, now, the graphs that a request of these sizes needs; return when they are ready.

        Raises:
            ContextOverflow: The request would not fit.
        """
        self._check([0] * prompt_len, max_new_tokens)
        self.runner.capture_all(prompt_len, max_new_tokens)

    def request_capture(self, prompt_len: int) -> None:
        """Ask the Graph Generator for a prefill length, in the background; returns at once."""
        self.runner.request_capture(prompt_len)

    @property
    def capturing(self) -> bool:
        """Whether the Graph Generator is at work on a capture now."""
        return self._activity.capturing

    def wait_for_captures(self, timeout_s: float = 60.0) -> bool:
        """Return True once the Graph Generator has nothing left to do."""
        return self.runner.wait_for_captures(timeout_s)

    # ---- small things ---------------------------------------------------------------------------

    def stats(self) -> dict[str, Any]:
        """Return counters: steps by tier, captures, failures, evictions, stalls, bytes, times."""
        return {"mode": self.options.mode, **asdict(self.runner.stats()), **self.timings}

    def logits(self) -> torch.Tensor:
        """Return a copy of the last step's float32 logits (V,), after waiting for it."""
        return self.runner.logits()

    def close(self) -> None:
        """End the generator thread and drop graphs; the transformers model stays usable."""
        self.runner.close()

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _checked(ids: Sequence[int], new: int, vocabulary: int, limit: int) -> Ids:
    """Return a prompt's token ids as an array, if it can be served with `new` more tokens."""
    try:
        # One conversion and one reduction: this stands before the first token.
        prompt = np.asarray(ids.cpu() if isinstance(ids, torch.Tensor) else ids)
    except ValueError as error:
        raise HybridError(f"the prompt is not one sequence of token ids: {error}") from error
    if prompt.ndim == 2:
        if prompt.shape[0] != 1:
            raise HybridError(f"got {prompt.shape[0]} sequences; the engine serves one at a time")
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
    if low < 0 or high >= vocabulary:
        raise HybridError(
            f"token ids run from {low} to {high}, but the vocabulary is 0 .. {vocabulary - 1}"
        )
    # The last token is returned, never read back in: it needs no row.
    if n + new - 1 > limit:
        raise ContextOverflow(
            f"{n} prompt tokens and {new} new ones need {n + new - 1} rows of the KV cache, "
            f"which has {limit}: shorten them or raise max_context"
        )
    return prompt
