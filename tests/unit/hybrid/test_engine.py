"""The runtime's logic on tiny models on the CPU, against transformers itself."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from hybrid import (  # noqa: E402  (after importorskip)
    Cancelled,
    ContextOverflow,
    Engine,
    HybridError,
    Sampling,
)
from hybrid.model.hub import build_config  # noqa: E402

LLAMA = {
    "vocab_size": 199,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
}
MOE = {**LLAMA, "num_key_value_heads": 4, "num_experts": 6, "num_experts_per_tok": 2}
SCALED = {
    "rope_type": "llama3",
    "rope_theta": 1e4,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
FAMILIES = {
    "llama": ("LlamaConfig", LLAMA),
    "llama-scaled-tied": (
        "LlamaConfig",
        {**LLAMA, "rope_parameters": SCALED, "tie_word_embeddings": True},
    ),
    "gpt2": (
        "GPT2Config",
        {"vocab_size": 199, "n_embd": 64, "n_layer": 3, "n_head": 4, "n_positions": 512},
    ),
    "qwen2": ("Qwen2Config", LLAMA),
    "qwen3": ("Qwen3Config", {**LLAMA, "head_dim": 32}),
    "olmoe": ("OlmoeConfig", {**MOE, "intermediate_size": 32, "pad_token_id": 0}),
    "qwen2-moe": (
        "Qwen2MoeConfig",
        {
            **MOE,
            "moe_intermediate_size": 32,
            "shared_expert_intermediate_size": 48,
            "mlp_only_layers": [1],
        },
    ),
    "qwen3-moe": (
        "Qwen3MoeConfig",
        {**MOE, "head_dim": 16, "moe_intermediate_size": 32, "norm_topk_prob": True},
    ),
}
PROMPT = [(7 * i) % 190 + 1 for i in range(21)]


def tiny(family: str):
    """A model whose logits have margins: weights three times as wide, norms and biases random."""
    name, sizes = FAMILIES[family]
    model = build_config(getattr(transformers, name)(**sizes), torch.float32, "cpu", 1)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            parameter.data.mul_(3)
        else:
            parameter.data.add_(0.2 * torch.randn_like(parameter))
    return model


@pytest.fixture(scope="module")
def llama():
    return tiny("llama")


@pytest.fixture
def engine(llama):
    with Engine.from_model(llama, max_context=256) as made:
        yield made


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_gives_the_tokens_of_transformers(family):
    model = tiny(family)
    eager = Engine.from_model(model, mode="eager", max_context=256)
    sampled = Sampling(temperature=0.9, top_k=20, top_p=0.8, seed=7)
    with Engine.from_model(model, max_context=256) as ours:
        greedy = ours.generate(PROMPT, 20)
        with torch.no_grad():
            whole = model(torch.tensor([PROMPT + greedy[:-1]])).logits[0, -1]
        assert torch.allclose(ours.logits(), whole, rtol=1e-4, atol=1e-5)
        assert greedy == eager.generate(PROMPT, 20)
        assert ours.generate(PROMPT, 10, sampled) == eager.generate(PROMPT, 10, sampled)


def test_modes_agree_bit_for_bit(llama):
    seen = []
    for mode in ("full", "piecewise", "jit"):
        with Engine.from_model(llama, mode=mode, max_context=256) as ours:
            seen.append((ours.generate(PROMPT, 12), ours.logits()))
    assert all(tokens == seen[0][0] for tokens, _ in seen)
    assert all(torch.equal(logits, seen[0][1]) for _, logits in seen)


def test_padding_a_prompt_does_not_change_its_tokens(llama):
    with (
        Engine.from_model(llama, max_context=256, prefill_lengths=(), background=False) as exact,
        Engine.from_model(llama, max_context=256, prefill_lengths=(128,), background=False) as wide,
    ):
        assert exact.generate(PROMPT, 12) == wide.generate(PROMPT, 12)
        assert exact.stats()["tiers"]["prefill:jit"] == 1


def test_a_stream_yields_the_same_tokens_one_by_one(engine):
    listed = engine.generate(PROMPT, 8)
    assert list(engine.generate(PROMPT, 8, stream=True)) == listed
    assert [engine.prefill(PROMPT), *(engine.decode() for _ in range(7))] == listed


def test_a_stop_token_is_the_last_one_returned(engine):
    tokens = engine.generate(PROMPT, 20)
    cut = engine.generate(PROMPT, 20, stop=[tokens[4]])
    assert cut == tokens[: tokens.index(tokens[4]) + 1]
    assert engine.generate(PROMPT, 20) == tokens


def test_a_closed_stream_frees_the_engine(engine):
    stream = engine.generate(PROMPT, 20, stream=True)
    first = next(stream)
    with pytest.raises(HybridError, match="serving a request"):
        engine.generate(PROMPT, 2)
    stream.close()
    assert engine.generate(PROMPT, 2)[0] == first


def test_a_request_that_does_not_fit_is_refused_and_the_next_one_served(engine):
    with pytest.raises(ContextOverflow, match="has 256"):
        engine.generate(PROMPT, 300)
    assert len(engine.generate(PROMPT, 256 - len(PROMPT) + 1)) == 256 - len(PROMPT) + 1
    engine.prefill([1] * 256)
    with pytest.raises(ContextOverflow, match="full"):
        engine.decode()
    with pytest.raises(HybridError, match="vocabulary"):
        engine.generate([199], 1)
    with pytest.raises(HybridError, match="empty"):
        engine.generate([], 1)
    assert len(engine.generate(PROMPT, 3)) == 3


@pytest.mark.parametrize(
    ("ids", "said"),
    [
        ([], "empty"),
        ([1.5, 2.0], "float64"),
        ([[1, 2], [3, 4]], "2 sequences"),
        ([[1, 2], [3]], "not one sequence"),
        ([3, -1], "from -1 to 3"),
        ([3, 2**40], "vocabulary"),
        (["a"], "sequence of token ids"),
    ],
)
def test_a_prompt_that_is_no_sequence_of_ids_is_refused_in_words(engine, ids, said):
    with pytest.raises(HybridError, match=said):
        engine.generate(ids, 2)
    assert len(engine.generate(torch.tensor([[5, 6, 7]]), 2)) == 2


def test_a_program_that_never_closes_its_engine_ends_well():
    code = """
from hybrid import Engine
import torch, transformers
from hybrid.model.hub import build_config
config = transformers.LlamaConfig(vocab_size=64, hidden_size=32, intermediate_size=32,
    num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=2, max_position_embeddings=256)
engine = Engine.from_model(build_config(config, torch.float32, "cpu", 0), max_context=128)
engine.request_capture(50)
print(len(engine.generate([1, 2, 3], 4)))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "4\n"), done.stderr


def test_rows_past_the_position_are_never_read(engine):
    tokens = engine.generate(PROMPT, 6)
    engine.runner.cache.storage_L2HSD.fill_(float("nan"))
    engine.runner.buffers.logits_V.fill_(float("nan"))
    engine.runner.buffers.control.fill_(100)
    assert engine.generate(PROMPT, 6) == tokens


def test_a_new_length_is_captured_in_the_background(engine):
    long = PROMPT * 4
    before = engine.generate(long, 3)
    assert engine.wait_for_captures(10)
    after = engine.generate(long, 3)
    stats = engine.stats()
    assert before == after
    assert stats["captures"] >= 1
    assert 96 in stats["prefill_graphs"]
    assert engine.stats()["tiers"]["prefill:exact"] >= 1


def test_a_failed_capture_is_noted_and_hurts_no_request(engine, monkeypatch):
    def broken(key, scratch):
        raise RuntimeError("operation not permitted when stream is capturing")

    tokens = engine.generate(PROMPT * 4, 3)
    engine.wait_for_captures(10)
    monkeypatch.setattr(engine.runner.capturer, "capture", broken)
    other = PROMPT * 5
    first = engine.generate(other, 3)
    deadline = time.monotonic() + 10
    while not engine.stats()["capture_failures"] and time.monotonic() < deadline:
        time.sleep(0.01)
    stats = engine.stats()
    assert stats["capture_failures"] == 1
    assert "not permitted" in stats["failed"]["prefill:112"]
    assert engine.generate(other, 3) == first
    assert engine.generate(PROMPT * 4, 3) == tokens


def test_a_length_new_to_the_jit_tier_takes_a_larger_graph_that_costs_less_than_twice(llama):
    with Engine.from_model(
        llama, prefill_lengths=(64,), contexts=(64,), max_context=128, background=False
    ) as engine:
        engine.runner.dispatcher.jit_ms = 10.0
        (graph,) = engine.runner.store.by_kind("prefill")
        graph.replay_ms = 15.0
        engine.prefill([1, 2, 3])
        assert engine.stats()["tiers"] == {"prefill:larger": 1}
        graph.replay_ms = 25.0
        engine.prefill([1, 2, 3])
        graph.replay_ms = 15.0
        engine.prefill([1, 2, 3])  # the tier has run this length now
        assert engine.stats()["tiers"] == {"prefill:larger": 1, "prefill:jit": 2}


def test_eviction_keeps_the_largest_graph_and_the_tokens(llama, monkeypatch):
    monkeypatch.setattr("hybrid.generator._MIN_AGE_S", 0.0)
    with (
        Engine.from_model(llama, max_context=256, prefill_lengths=(256,), max_graphs=4) as small,
        Engine.from_model(llama, mode="jit", max_context=256) as jit,
    ):
        for round_ in range(3):
            for length in range(10 + round_, 240, 16):
                ids = [(5 * i + round_) % 190 + 1 for i in range(length)]
                assert small.generate(ids, 2) == jit.generate(ids, 2)
        small.wait_for_captures(10)
        stats = small.stats()
        assert stats["evictions"] > 0
        assert 256 in stats["prefill_graphs"]


def test_capture_all_makes_the_graphs_a_request_needs(llama):
    with Engine.from_model(
        llama, max_context=256, prefill_lengths=(), contexts=(), background=False
    ) as ours:
        ours.capture_all(40, 8)
        assert ours.stats()["prefill_graphs"] == [48]
        ours.generate([1] * 40, 8)
        assert ours.stats()["tiers"] == {"prefill:exact": 1, "decode:exact": 7}


def test_cancel_ends_the_request_of_a_stream(engine):
    stream = engine.generate(PROMPT, 20, stream=True)
    next(stream)
    engine.cancel()
    with pytest.raises(Cancelled):
        list(stream)
    assert len(engine.generate(PROMPT, 3)) == 3
