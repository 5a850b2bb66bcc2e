"""How long is a token: one persistent kernel beside graphs of kernels; what its tiling is worth.

    python -m benchmarks.hybrid_decode [--rounds 3] [--seconds 200]

Random weights of real sizes, bf16, batch 1. `itl_ms`: every gap between two tokens as the reader of
a stream sees it, without the first ones after the prompt; a round is a fresh process. `step_ms`:
the kernel alone, replayed as a graph, between CUDA events. `decode_step`: which way a row is of.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import os
import time
from typing import Any

from benchmarks.hybrid import built, child, forced, gpu_facts
from benchmarks.hybrid_peers import Writer, gaps, prompt
from benchmarks.result_file import ROOT, Result, environment, print_table, write

MODELS = {"llama-2-7b": 4096, "llama-3.2-1b": 4096, "gpt2": 1024}
# Bytes of a chunk, chunks on their way.
TILINGS = ((32768, 2), (32768, 3), (32768, 4), (16384, 4), (16384, 6), (32768, 31))
CONTEXTS = (512, 3500)
MODULE = "benchmarks.hybrid_decode"


def tilings(writer: Writer) -> None:
    """The kernel alone, by tiling; two contexts where the model has them."""
    import torch

    from hybrid.model.spec import spec_of
    from hybrid.model.weights import adopt
    from hybrid.ops.persistent.sizes import Tiling
    from hybrid.ops.persistent.step import PersistentStep
    from hybrid.state import control
    from hybrid.state.buffers import Buffers
    from hybrid.state.kv_cache import KVCache

    for model, slots in MODELS.items():
        hf, _ = built(model, "full")
        spec = spec_of(hf.config)
        weights = adopt(hf, spec, slots)
        b = Buffers(spec, 16, torch.bfloat16, hf.device, False)
        cache = KVCache(spec, slots, torch.bfloat16, hf.device)
        cache.storage_L2HSD.normal_()
        for chunk, flying in TILINGS if model != "gpt2" else TILINGS[:2]:
            grid = torch.cuda.get_device_properties(hf.device).multi_processor_count
            tiling = Tiling(grid, chunk=chunk, flying=flying)
            step = PersistentStep(spec, weights, b, cache, tiling)
            about = {"model": model, "chunk": chunk, "flying": flying}
            writer.add("build_s", [step.seconds], "s", **about, cached=step.cached)
            for context in CONTEXTS:
                if context < slots:
                    b.control[control.POSITION] = context
                    writer.add("step_ms", replays(step), **about, context_len=context)
        del hf, weights, cache
        torch.cuda.empty_cache()


def replays(step: Any, count: int = 50) -> list[float]:
    import torch

    graph = torch.cuda.CUDAGraph()
    with torch.cuda.stream(torch.cuda.Stream()):
        graph.capture_begin(capture_error_mode="thread_local")
        step.enqueue()
        graph.capture_end()
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(count + 1)]
    graph.replay()
    for mark in marks:
        mark.record()
        graph.replay()
    torch.cuda.synchronize()
    return [a.elapsed_time(b) for a, b in itertools.pairwise(marks)]


def round_of(number: int, chunk: int, flying: int, writer: Writer) -> None:
    """Both ways through the engine, every model; accuracy and captures in the first round."""
    import torch

    from hybrid import Engine
    from hybrid.ops.persistent import step as step_module

    step_module.Tiling = functools.partial(step_module.Tiling, chunk=chunk, flying=flying)
    for model, context in MODELS.items():
        hf, tags = built(model, "full")
        for persistent in (True, False):
            with Engine.from_model(
                hf, max_context=context, persistent=persistent, prefill_lengths=(256,)
            ) as engine:
                stats = engine.stats()
                about = {**tags, "decode_step": stats["decode_step"], "round": number}
                writer.add("startup_s", [stats["startup_s"]], "s", **about)
                if persistent:
                    writer.add("persistent_s", [stats["persistent_s"]], "s", **about)
                decode(engine, about, context, number == 0, writer)
                if persistent and number == 0 and model != "gpt2":
                    forced(engine, hf, about, writer)
                if engine.stats()["failed"]:
                    print("# failed", engine.stats()["failed"], flush=True)
        del hf
        torch.cuda.empty_cache()


def decode(
    engine: Any, about: dict[str, Any], context: int, captures: bool, writer: Writer
) -> None:
    vocabulary = engine.spec.vocab

    def request(length: int, new: int, seed: int) -> list[float]:
        return gaps(engine.generate(prompt(length, vocabulary, seed), new, stream=True))[9:]

    for length, new in ((380, 260), (3380, 140)):
        if length + new > context:
            continue
        engine.capture_all(length, new)
        request(length, 40, 1)
        engine.wait_for_captures(20)
        itl = [gap for seed in range(3) for gap in request(length, new, seed)]
        middle = 512 if length == 380 else 3450
        writer.add("itl_ms", itl, **about, context_len=middle, capture="quiet")
    if not captures:
        return
    active: list[float] = []
    wanted = iter(range(32, 380, 16))
    for seed in range(2):
        began, was = time.perf_counter(), False
        for i, _ in enumerate(engine.generate(prompt(256, vocabulary, seed), 250, stream=True)):
            now = time.perf_counter()
            if i > 8 and (was or engine.capturing):
                active.append((now - began) * 1e3)
            length = next(wanted, None) if i % 12 == 4 else None
            if length is not None:
                engine.request_capture(length)
            was, began = engine.capturing, time.perf_counter()
    writer.add("itl_ms", active, **about, context_len=400, capture="active")


def best(results: list[Result]) -> tuple[int, int]:
    """The tiling whose times are lowest, each beside the fastest of its model and context."""
    times: dict[tuple[str, int], dict[tuple[int, int], float]] = {}
    for row in results:
        if row.metric == "step_ms" and row.p50 is not None:
            about = row.parameters
            place = times.setdefault((about["model"], about["context_len"]), {})
            place[(about["chunk"], about["flying"])] = row.p50
    whole = [by for by in times.values() if len(by) == len(TILINGS)]
    return min(TILINGS, key=lambda t: sum(by[t] / min(by.values()) for by in whole))


def main() -> int:
    parser = argparse.ArgumentParser(description="A decode step as one kernel, and as graphs.")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=300, help="start nothing after this long")
    parser.add_argument("--child", nargs="+", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        if arguments.child[0] == "tilings":
            tilings(Writer())
        else:
            round_of(*(int(n) for n in arguments.child[1:]), Writer())
        return 0
    end = time.monotonic() + arguments.seconds
    about = environment("torch", "triton", "transformers")
    about["gpu_before"] = gpu_facts()
    results: list[Result] = []
    child(["tilings"], min(75, end - time.monotonic()), results, MODULE)
    chunk, flying = best(results)
    print(f"# chunk {chunk}, flying {flying}")
    for number in range(arguments.rounds):
        left = end - time.monotonic()
        if left > 15:
            child(["round", str(number), str(chunk), str(flying)], left, results, MODULE)
            write("hybrid-decode", "h200", about, results)
    about["gpu_after"] = gpu_facts()
    print_table(results)
    print(write("hybrid-decode", "h200", about, results).relative_to(ROOT))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
