"""The peers of `hybrid.py`, and the requests and clocks that they share with our runtime.

Peers run the same transformers module with the same random weights, each in a process of its own.
"""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable, Iterator
from typing import Any

LENGTHS = (10, 100, 200, 350, 500)
PEERS = ("transformers", "transformers-static", "torch-compile")


class Writer:
    """Rows of one child process, printed as one JSON line each so that a timeout loses nothing."""

    def add(self, metric: str, samples: list[float], unit: str = "ms", **parameters: Any) -> None:
        rounded = [round(value, 5) for value in samples]
        print("ROW " + json.dumps([metric, unit, parameters, rounded]), flush=True)


def prompt(length: int, vocabulary: int, seed: int) -> list[int]:
    return [(seed * 7919 + i * 104729) % (vocabulary - 2) + 1 for i in range(length)]


def gaps(tokens: Iterator[int]) -> list[float]:
    """Return milliseconds from the call to the first token, and between tokens after it."""
    times = [time.perf_counter()]
    for _ in tokens:
        times.append(time.perf_counter())
    return [(b - a) * 1e3 for a, b in itertools.pairwise(times)]


def peer(system: str, model: str, writer: Writer) -> None:
    import torch
    import transformers

    from hybrid.model.hub import build

    tags = {"system": system, "model": model, "mode": "eager" if system == PEERS[0] else "compiled"}
    hf = build(model, torch.bfloat16, "cuda")
    vocabulary = hf.config.vocab_size

    def ids(length: int, seed: int) -> torch.Tensor:
        return torch.tensor([prompt(length, vocabulary, seed)], device="cuda")

    @torch.no_grad()
    def eager(length: int, new: int, seed: int) -> Iterator[int]:
        out = hf(ids(length, seed), use_cache=True, logits_to_keep=1)
        for _ in range(new):
            token = out.logits[:, -1].argmax(-1, keepdim=True)
            yield int(token)
            out = hf(token, past_key_values=out.past_key_values, logits_to_keep=1)

    class Clock(transformers.generation.streamers.BaseStreamer):
        def __init__(self) -> None:
            self.times: list[float] = []

        def put(self, value: Any) -> None:
            self.times.append(time.perf_counter())

        def end(self) -> None:
            pass

    def static(length: int, new: int, seed: int) -> list[float]:
        clock = Clock()
        # The first put is the prompt, before the forward pass.
        # A cache of one size: generate's own would be as long as each request, and compiled anew.
        cache.reset()
        hf.generate(
            ids(length, seed), max_new_tokens=new, min_new_tokens=new, do_sample=False,
            past_key_values=cache, streamer=clock,
        )  # fmt: skip
        return [(b - a) * 1e3 for a, b in zip(clock.times, clock.times[1:], strict=False)]

    step = torch.compile(hf, mode="reduce-overhead", dynamic=False)

    @torch.no_grad()
    def compiled(length: int, new: int, seed: int) -> Iterator[int]:
        cache.reset()
        out = hf(ids(length, seed), past_key_values=cache, use_cache=True, logits_to_keep=1)
        token = out.logits[:, -1].argmax(-1, keepdim=True)
        yield int(token)
        for i in range(new - 1):
            torch.compiler.cudagraph_mark_step_begin()
            place = torch.tensor([[length + i]], device="cuda")
            out = step(token, past_key_values=cache, position_ids=place, use_cache=True)
            token = out.logits[:, -1].argmax(-1, keepdim=True).clone()
            yield int(token)

    def measure(one: Callable[[int, int, int], list[float]], new: int, requests: int) -> None:
        for seed in range(2):
            one(256, 16, seed)
        itl: list[float] = []
        tpot = []
        for seed in range(requests):
            times = one(256, new, seed)[1:]
            itl += times
            tpot.append(sum(times) / len(times))
        writer.add("tpot_ms", tpot, **tags, prompt_len=256, context_len=512, capture="quiet")
        writer.add("itl_ms", itl, **tags, prompt_len=256, context_len=512, capture="quiet")
        for length in LENGTHS:
            one(length, 2, 0)
            samples = [one(length, 2, seed)[0] for seed in range(10)]
            writer.add("ttft_ms", samples, **tags, prompt_len=length, state="length-warm")

    cache = transformers.StaticCache(config=hf.config, max_cache_len=768)
    if system == "transformers":
        measure(lambda *a: gaps(eager(*a)), 64, 3)
    elif system == "transformers-static":
        measure(static, 64, 3)
    else:
        measure(lambda *a: gaps(compiled(*a)), 128, 3)
