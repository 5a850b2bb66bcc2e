"""How fast is the hybrid runtime, beside transformers and torch.compile on the same GPU?

    python -m benchmarks.hybrid [--models llama-2-7b ...] [--seconds N] [--skip-peers]

Random weights of real sizes, bf16, batch 1. Clocks: ttft_ms from token ids in host memory to the
first token's value in host memory; itl_ms every gap between two tokens as the reader of a stream
sees it; tpot_ms (last - first) / (tokens - 1) of a request. Each system runs in a process of its
own, warmed up before anything is kept. State of hostbound's rows: length-warm (graph ready), unless
`state` says length-cold (first request on a length). `capture` active: gaps during which the Graph
Generator was capturing. Peers: transformers eager; transformers' generate with a static cache
(compiles its decode step); torch.compile(mode="reduce-overhead") of the same module, own loop.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import time
from typing import Any

from benchmarks.hybrid_peers import LENGTHS, PEERS, Writer, gaps, peer, prompt
from benchmarks.result_file import ROOT, Result, environment, print_table, result, write

COLD_LENGTHS = (37, 123, 187, 257, 431)
MODELS = ("llama-2-7b", "llama-3.2-1b", "gpt2", "olmoe-1b-7b", "qwen1.5-moe-a2.7b")


def ours(model: str, mode: str, writer: Writer) -> None:
    from hybrid import Engine

    hf, tags = built(model, mode)
    context = 1024 if model == "gpt2" else 2048
    engine = Engine.from_model(hf, mode=mode, max_context=context)
    stats = engine.stats()
    writer.add("startup_s", [stats["startup_s"]], "s", **tags)
    vocabulary = engine.spec.vocab
    slow = mode == "jit"
    full = model == "llama-2-7b" and mode == "full"

    def request(length: int, new: int, seed: int) -> list[float]:
        return gaps(engine.generate(prompt(length, vocabulary, seed), new, stream=True))

    if mode != "jit":
        for length in COLD_LENGTHS:
            cold = request(length, 2, length)[:1]
            writer.add("ttft_ms", cold, **tags, prompt_len=length, state="length-cold")
    engine.wait_for_captures(30)
    engine.capture_all(256, 250)
    request(256, 128, 1)
    engine.wait_for_captures(30)
    itl: list[float] = []
    tpot = []
    for seed in range(2 if slow else 6):
        one = request(256, 64 if slow else 250, seed)[1:]
        # Tokens queued behind the first one come early or late with it: the steady gaps start
        # after the run-ahead.
        itl += one[8:]
        tpot.append(sum(one) / len(one))
    writer.add("tpot_ms", tpot, **tags, prompt_len=256, context_len=512, capture="quiet")
    writer.add("itl_ms", itl, **tags, prompt_len=256, context_len=512, capture="quiet")
    for length in LENGTHS:
        engine.capture_all(length, 2)
        request(length, 2, 0)
    firsts: dict[int, list[float]] = {length: [] for length in LENGTHS}
    for seed in range(5 if slow else 40):
        for length in LENGTHS:
            firsts[length].append(request(length, 2, seed)[0])
    for length, samples in firsts.items():
        writer.add("ttft_ms", samples, **tags, prompt_len=length, state="length-warm")
    if mode == "jit":
        for length in COLD_LENGTHS:
            samples = [request(length, 2, s)[0] for s in range(6)][1:]
            writer.add("ttft_ms", samples, **tags, prompt_len=length, state="length-warm")
    if mode == "full":
        active: list[float] = []
        wanted = iter(range(32, 1000, 16))
        for seed in range(4):
            times = time.perf_counter()
            was = False
            tokens = engine.generate(prompt(256, vocabulary, seed), 250, stream=True)
            for i, _ in enumerate(tokens):
                now = time.perf_counter()
                if i > 8 and (was or engine.capturing):
                    active.append((now - times) * 1e3)
                if i % 12 == 4:
                    length = next(wanted, None)
                    if length is not None and length <= context:
                        engine.request_capture(length)
                was = engine.capturing
                times = time.perf_counter()
        writer.add("itl_ms", active, **tags, prompt_len=256, context_len=512, capture="active")
        stats = engine.stats()
        writer.add("capture_ms", stats["capture_ms"], **tags)
        writer.add("stalls", [stats["stalls"]], "count", **tags)
    engine.close()
    if full:
        memory(hf, tags, writer)


def built(model: str, mode: str) -> tuple[Any, dict[str, Any]]:
    import torch

    from hybrid.model.hub import build

    hf = build(model, torch.bfloat16, "cuda")
    torch.cuda.synchronize()
    return hf, {"system": "hostbound", "model": model, "mode": mode}


def accuracy(model: str, writer: Writer) -> None:
    """Logits of a prompt and of decode steps against float32 weights, beside transformers' own.

    `logit_error` is the Frobenius norm of the difference over that of the float32 logits;
    `tokens_beyond_margin` counts teacher-forced tokens that differ from float32 although its two
    best logits lie more than twice the largest error apart.
    """
    from hybrid import Engine

    hf, tags = built(model, "full")
    with Engine.from_model(hf, max_context=1024, background=False) as engine:
        forced(engine, hf, tags, writer)


def forced(engine: Any, hf: Any, tags: dict[str, Any], writer: Writer) -> None:
    """The rows of `accuracy` for one engine of a transformers model."""
    import copy

    import torch

    wide = copy.deepcopy(hf).float()
    ids = prompt(200, hf.config.vocab_size, 11)
    tokens, rows = [engine.prefill(ids)], [engine.logits()]
    for _ in range(128):
        tokens.append(engine.decode())
        rows.append(engine.logits())
    ours = torch.stack(rows)
    sequence = torch.tensor([ids + tokens[:-1]], device="cuda")
    with torch.no_grad():
        truth = wide(sequence).logits[0, len(ids) - 1 :].float()
        theirs = hf(sequence).logits[0, len(ids) - 1 :].float()
    scale = truth.norm()
    writer.add("logit_error", [float((ours - truth).norm() / scale)], "ratio", **tags)
    eager = {**tags, "system": "transformers", "mode": "eager"}
    writer.add("logit_error", [float((theirs - truth).norm() / scale)], "ratio", **eager)
    for found, system in ((ours, tags), (theirs, eager)):
        top = truth.topk(2, dim=-1)
        margin = top.values[:, 0] - top.values[:, 1]
        differs = found.argmax(-1) != top.indices[:, 0]
        beyond = differs & (margin > 2 * (found - truth).abs().max())
        about = {**system, "tokens": len(tokens)}
        writer.add("tokens_differing", [int(differs.sum())], "count", **about)
        writer.add("tokens_beyond_margin", [int(beyond.sum())], "count", **about)


def memory(hf: Any, tags: dict[str, Any], writer: Writer) -> None:
    import torch

    from hybrid import Engine

    lengths = tuple(range(32, 544, 32))
    engine = Engine.from_model(
        hf, max_context=2048, prefill_lengths=(), contexts=(512,), background=False
    )
    torch.cuda.synchronize()
    before = torch.cuda.mem_get_info()[0]
    for length in lengths:
        engine.capture_all(length, 1)
    for length in (600, 1100):
        engine.capture_all(length, 2)
    torch.cuda.synchronize()
    taken = before - torch.cuda.mem_get_info()[0]
    stats = engine.stats()
    kinds = f"{len(stats['prefill_graphs'])} prefill, {len(stats['decode_graphs'])} decode"
    writer.add("graph_bytes", [taken], "B", **tags, graphs=kinds)
    engine.close()


def inline_capture(hf: Any, tags: dict[str, Any], writer: Writer) -> None:
    """The paper's ablation: no background capture; the request waits for its own."""
    from hybrid import Engine

    engine = Engine.from_model(hf, max_context=2048, prefill_lengths=(512,), background=False)
    for length in COLD_LENGTHS:
        ids = prompt(length, engine.spec.vocab, 3)
        began = time.perf_counter()
        engine.capture_all(length, 2)
        engine.prefill(ids)
        writer.add(
            "ttft_ms", [(time.perf_counter() - began) * 1e3], **tags,
            prompt_len=length, state="length-cold", generator="inline",
        )  # fmt: skip
    engine.close()


def ablations(model: str, writer: Writer) -> None:
    """One switch each, same process and weights: what each part of the design is worth."""
    hf, tags = built(model, "full")
    inline_capture(hf, tags, writer)
    variants: list[tuple[str, dict[str, Any]]] = [
        ("none", {}),
        ("run_ahead 0", {"run_ahead": 0}),
        ("run_ahead 2", {"run_ahead": 2}),
        ("no programmatic dependent launch", {"pdl": False}),
        ("tokens by copy and event", {"mapped_ring": False}),
        ("no generator, ladder of powers of two", {"prefill_lengths": None}),
    ]
    for name, options in variants:
        lengths = options.pop("prefill_lengths", ())
        engine = hybrid_engine(hf, prefill_lengths=lengths, **options)
        one_variant(engine, {**tags, "ablation": name}, writer, exact=lengths == ())
        engine.close()


def jit_off(model: str, writer: Writer) -> None:
    """The paper's ablation: attention, cache update and sampling as plain torch operations.

    They run between the graphs; and they cannot write to host memory (mapped_ring).
    """
    hf, tags = built(model, "piecewise")
    engine = hybrid_engine(hf, prefill_lengths=(), contexts=(), mode="piecewise", mapped_ring=False)
    plain_dynamic(engine)
    one_variant(engine, {**tags, "ablation": "jit off"}, writer, exact=True)
    engine.close()


def hybrid_engine(hf: Any, **options: Any) -> Any:
    from hybrid import Engine

    return Engine.from_model(hf, max_context=1024, background=False, **options)


def one_variant(engine: Any, tags: dict[str, Any], writer: Writer, exact: bool) -> None:
    vocabulary = engine.spec.vocab

    def request(length: int, new: int, seed: int) -> list[float]:
        return gaps(engine.generate(prompt(length, vocabulary, seed), new, stream=True))

    engine.capture_all(256, 120)
    itl = [gap for seed in range(3) for gap in request(256, 120, seed)[9:]]
    writer.add("itl_ms", itl, **tags, prompt_len=256, context_len=512, capture="quiet")
    for length in COLD_LENGTHS:
        if exact:
            engine.capture_all(length, 2)
        request(length, 2, 0)
        samples = [request(length, 2, seed)[0] for seed in range(12)]
        writer.add("ttft_ms", samples, **tags, prompt_len=length, state="length-warm")


def plain_dynamic(engine: Any) -> None:
    """Put plain torch operations, no host synchronisation, in place of the dynamic kernels."""
    import torch
    import torch.nn.functional as F

    from hybrid.ops import reference
    from hybrid.ops.triton_ops import TritonOps
    from hybrid.state import control as slot
    from hybrid.state.buffers import RING

    def heads(qkv: Any, weights: Any, place: Any, index: int, spec: Any) -> Any:
        layer = weights.layers[index]
        q, k, v = reference.split_heads(qkv, spec, layer.q_norm, layer.k_norm)
        if weights.cos_PH is not None:
            cos, sin = weights.cos_PH[place][:, None], weights.sin_PH[place][:, None]
            q, k = reference.rotate(q, cos, sin), reference.rotate(k, cos, sin)
        return (x.to(qkv.dtype).transpose(0, 1) for x in (q, k, v))

    class Plain(TritonOps):
        def attend(self, b, cache, weights, index, spec, context):  # type: ignore
            k_HSD, v_HSD = cache.layer(index)
            place = b.control[slot.POSITION : slot.POSITION + 1].long()
            q, k, v = heads(b.qkv_N[None], weights, place, index, spec)
            k_HSD.index_copy_(1, place, k)
            v_HSD.index_copy_(1, place, v)
            seen = torch.arange(context, device=place.device) <= place
            out = F.scaled_dot_product_attention(
                q[None], k_HSD[None, :, :context], v_HSD[None, :, :context],
                attn_mask=seen[None, None, None], enable_gqa=spec.heads != spec.kv_heads,
            )  # fmt: skip
            b.attention_N.copy_(out.flatten())

        def attend_rows(self, b, cache, weights, index, spec, rows):  # type: ignore
            k_HSD, v_HSD = cache.layer(index)
            place = torch.arange(rows, device=k_HSD.device)
            q, k, v = heads(b.qkv_TN[:rows], weights, place, index, spec)
            k_HSD[:, :rows] = k
            v_HSD[:, :rows] = v
            grouped = spec.heads != spec.kv_heads
            out = F.scaled_dot_product_attention(
                q[None], k[None], v[None], is_causal=True, enable_gqa=grouped
            )
            return out[0].transpose(0, 1).reshape(rows, spec.attention_width)

        def sample(self, b, advance):  # type: ignore
            control = b.control
            token = b.logits_V.argmax(keepdim=True).int()
            step = control[slot.STEP : slot.STEP + 1]
            place = (control[slot.RING_BASE : slot.RING_BASE + 1] + step) % RING
            b.ring.index_copy_(0, place.long(), token)
            control[slot.TOKEN : slot.TOKEN + 1] = token
            step += 1
            if advance:
                control[slot.POSITION : slot.POSITION + 1] += 1

    network = engine.runner.network
    network.ops = Plain(network.ops.pdl, False, network.ops.products.lt)


PARTS = {"ablations": ablations, "jit-off": jit_off, "accuracy": accuracy}


def gpu_facts() -> dict[str, Any]:
    query = "name,driver_version,clocks.sm,clocks.mem,temperature.gpu,power.draw"
    with contextlib.suppress(OSError):
        done = subprocess.run(
            ["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader"],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        return dict(zip(query.split(","), done.stdout.strip().split(", "), strict=False))
    return {}


def child(
    arguments: list[str], limit: float, results: list[Result], module: str = "benchmarks.hybrid"
) -> None:
    """Run one system in its own process and take its rows, also those before a failure."""
    began = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, "-m", module, "--child", *arguments],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        out, err = process.communicate(timeout=limit)
        state = f"exit {process.returncode}"
    except subprocess.TimeoutExpired:
        process.kill()
        out, err = process.communicate()
        state = "stopped at its limit"
    for line in out.splitlines():
        if line.startswith("ROW "):
            metric, unit, parameters, samples = json.loads(line[4:])
            results.append(result(metric, unit, parameters, samples))
    print(f"# {' '.join(arguments)}: {state}, {time.monotonic() - began:.0f} s", flush=True)
    if process.returncode:
        reported = [line for line in err.splitlines() if not line.startswith("frame #")]
        print("\n".join(reported[-12:]), flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description="Hybrid runtime beside its peers.")
    parser.add_argument("--models", nargs="+", default=list(MODELS))
    parser.add_argument("--seconds", type=float, default=400, help="start nothing after this long")
    parser.add_argument("--name", default="hybrid", help="first part of the result file's name")
    parser.add_argument("--skip-peers", action="store_true")
    parser.add_argument("--jobs", nargs="+", metavar="SYSTEM:MODEL", help="only these, in order")
    parser.add_argument("--limit", type=float, default=100, help="seconds of one process")
    parser.add_argument("--commit", help="recorded where the checkout has no history")
    parser.add_argument("--child", nargs=2, metavar=("SYSTEM", "MODEL"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        system, model = arguments.child
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        if system in PEERS:
            peer(system, model, Writer())
        elif system in PARTS:
            PARTS[system](model, Writer())
        else:
            ours(model, system, Writer())
        return 0

    end = time.monotonic() + arguments.seconds
    about = environment("torch", "triton", "transformers")
    about["gpu_before"] = gpu_facts()
    results: list[Result] = []
    first = arguments.models[0]
    jobs = [("full", first), ("piecewise", first), ("jit", first), *((p, first) for p in PARTS)]
    if not arguments.skip_peers:
        jobs[1:1] = [("transformers", first), ("torch-compile", first)]
    jobs += [("full", model) for model in arguments.models[1:]]
    if not arguments.skip_peers:
        jobs += [("transformers-static", first)]
        jobs += [(system, model) for model in arguments.models[1:4] for system in PEERS[::2]]
    if arguments.jobs:
        jobs = [tuple(job.split(":", 1)) for job in arguments.jobs]
    for system, model in jobs:
        left = end - time.monotonic()
        if left < 15:
            print(f"# {system} {model}: not started, time is over")
            continue
        child([system, model], min(left, arguments.limit), results)
    about["gpu_after"] = gpu_facts()
    print_table(results)
    device = about["gpu_before"].get("name", "cpu").replace(" ", "-").lower()
    path = write(arguments.name, device, about, results)
    if arguments.commit:
        content = json.loads(path.read_text(encoding="utf-8"))
        content["commit"] = arguments.commit
        path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    print(path.relative_to(ROOT))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
