"""The runtime on a CUDA device: graphs against no graphs, accuracy, audits, stress."""

from __future__ import annotations

import random

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

from hybrid import Engine, Sampling  # noqa: E402  (after importorskip)
from hybrid.model.hub import build_config  # noqa: E402

SIZES = {
    "vocab_size": 1000,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "max_position_embeddings": 1024,
}
MOE = {"num_experts": 12, "num_experts_per_tok": 3, "moe_intermediate_size": 64}
CONFIGS = {
    "llama": ("LlamaConfig", SIZES),
    "gpt2": ("GPT2Config", {"vocab_size": 1000, "n_embd": 256, "n_layer": 4, "n_head": 4}),
    "qwen3": ("Qwen3Config", SIZES),
    "olmoe": (
        "OlmoeConfig",
        {
            **SIZES,
            "num_key_value_heads": 8,
            "head_dim": 32,
            "intermediate_size": 64,
            "num_experts": 12,
            "num_experts_per_tok": 3,
            "pad_token_id": 0,
        },
    ),
    "qwen2-moe": (
        "Qwen2MoeConfig",
        {**SIZES, **MOE, "shared_expert_intermediate_size": 128, "num_key_value_heads": 8},
    ),
}
PROMPT = [(7 * i) % 990 + 1 for i in range(61)]


def model_of(family: str, dtype=torch.bfloat16):
    name, sizes = CONFIGS[family]
    model = build_config(getattr(transformers, name)(**sizes), dtype, "cuda", 1)
    torch.manual_seed(5)
    for parameter in model.parameters():
        # Sharper logits: flat ones turn every rounding into another token.
        if parameter.dim() > 1:
            parameter.data.mul_(2)
    return model


@pytest.fixture(scope="module")
def llama():
    return model_of("llama")


def steps(engine, count: int):
    tokens, logits = [engine.prefill(PROMPT)], [engine.logits()]
    for _ in range(count):
        tokens.append(engine.decode())
        logits.append(engine.logits())
    return tokens, torch.stack(logits)


@pytest.mark.parametrize("family", CONFIGS)
def test_graphs_and_launches_agree_bit_for_bit_and_with_fp32(family):
    model = model_of(family)
    seen = {}
    for mode in ("full", "piecewise", "jit"):
        with Engine.from_model(model, mode=mode, persistent=False, max_context=512) as engine:
            seen[mode] = steps(engine, 255)
            again = steps(engine, 255)
            assert torch.equal(again[1], seen[mode][1])
    tokens, logits = seen["full"]
    for mode in ("piecewise", "jit"):
        assert seen[mode][0] == tokens
        assert torch.equal(seen[mode][1], logits)

    wide = model_of(family, torch.float32)
    wide.load_state_dict({k: v.float() for k, v in model.state_dict().items()})
    sequence = torch.tensor([PROMPT + tokens[:-1]], device="cuda")
    with torch.no_grad():
        truth = wide(sequence).logits[0, len(PROMPT) - 1 :].float()
        theirs = model(sequence).logits[0, len(PROMPT) - 1 :].float()
    ours_error = (logits - truth).norm() / truth.norm()
    their_error = (theirs - truth).norm() / truth.norm()
    assert ours_error <= 1.5 * their_error
    # Teacher-forced tokens: a difference counts only where the fp32 margin is clear of the error.
    top = truth.topk(2, dim=-1)
    margin = top.values[:, 0] - top.values[:, 1]
    differs = torch.tensor(tokens, device="cuda") != top.indices[:, 0]
    error = (logits - truth).abs().max()
    assert not bool((differs & (margin > 2 * error)).any())


def test_sampling_draws_the_same_tokens_with_and_without_graphs(llama):
    choices = [Sampling(0.8, seed=3), Sampling(0.9, top_k=20, top_p=0.8, seed=2**40 + 7)]
    seen = []
    for mode in ("full", "jit"):
        with Engine.from_model(llama, mode=mode, persistent=False, max_context=512) as engine:
            seen.append([engine.generate(PROMPT, 64, choice) for choice in choices])
    assert seen[0] == seen[1]


def test_the_sampling_kernel_follows_the_softmax(llama):
    """Chi-square of 4,000 first tokens drawn on the device; 37.7 is the 0.1 % point of 15."""
    with Engine.from_model(llama, max_context=256) as engine:
        engine.prefill(PROMPT)
        logits = engine.logits()
        top = logits.topk(16)
        draws = torch.zeros(16)
        kept = Sampling(1.0, top_k=16)
        where = {int(token): i for i, token in enumerate(top.indices)}
        count = 2000
        for seed in range(count):
            token = engine.prefill(PROMPT, Sampling(1.0, top_k=16, seed=seed))
            draws[where[token]] += 1
        expected = torch.softmax(top.values / kept.temperature, 0).cpu() * count
        assert float(((draws - expected) ** 2 / expected).sum()) < 37.7


def test_poisoned_rows_and_buffers_change_nothing(llama):
    with Engine.from_model(llama, max_context=512) as engine:
        tokens, logits = steps(engine, 20)
        engine.runner.cache.storage_L2HSD.fill_(float("nan"))
        for name, value in vars(engine.runner.buffers).items():
            if isinstance(value, torch.Tensor) and value.is_cuda and name != "arrivals":
                value.fill_(999 if value.dtype == torch.int32 else float("nan"))
        torch.cuda.synchronize()
        again = steps(engine, 20)
        assert again[0] == tokens
        assert torch.equal(again[1], logits)


def test_addresses_stay_as_they_were_at_capture(llama):
    with Engine.from_model(llama, max_context=512) as engine:
        before = engine.runner.buffers.addresses(), engine.runner.cache.storage_L2HSD.data_ptr()
        engine.generate(PROMPT, 64)
        engine.capture_all(300, 4)
        assert (
            engine.runner.buffers.addresses(),
            engine.runner.cache.storage_L2HSD.data_ptr(),
        ) == before


def test_a_thousand_requests_with_captures_and_evictions_give_the_jit_tiers_tokens(
    llama, monkeypatch
):
    monkeypatch.setattr("hybrid.generator._MIN_AGE_S", 0.0)
    random.seed(4)
    lengths = [random.randint(1, 500) for _ in range(1000)]
    with (
        Engine.from_model(llama, persistent=False, max_context=512, max_graphs=12) as busy,
        Engine.from_model(llama, mode="jit", max_context=512) as plain,
    ):
        for number, length in enumerate(lengths):
            ids = [(number * 31 + 7 * i) % 990 + 1 for i in range(length)]
            assert busy.generate(ids, 3) == plain.generate(ids, 3), (number, length)
        stats = busy.stats()
        assert stats["captures"] > 10
        assert stats["evictions"] > 0
        assert not stats["failed"]


def test_a_second_engine_after_the_first_is_closed(llama):
    for _ in range(3):
        with Engine.from_model(llama, max_context=512) as engine:
            first = engine.generate(PROMPT, 8)
            assert engine.wait_for_captures(20)
            assert engine.generate(PROMPT, 8) == first
        torch.cuda.empty_cache()


@pytest.mark.parametrize("family", ["llama", "gpt2", "qwen3", "olmoe"])
@pytest.mark.parametrize("rows", [16, 64, 200, 208, 1040])
def test_prompt_attention_agrees_with_plain_torch(family, rows):
    from hybrid.model.weights import adopt
    from hybrid.ops.reference import ReferenceOps
    from hybrid.state.buffers import Buffers
    from hybrid.state.kv_cache import KVCache

    model = model_of(family)
    with Engine.from_model(model, mode="jit", max_context=256) as engine:
        spec, kernels = engine.spec, engine.runner.network.ops
    weights = adopt(model, spec, 1152)
    found = []
    torch.manual_seed(rows)
    qkv = torch.randn(rows, spec.qkv_width, device="cuda", dtype=torch.bfloat16)
    for ops in (kernels, ReferenceOps()):
        b = Buffers(spec, 1152, torch.bfloat16, torch.device("cuda"), False)
        cache = KVCache(spec, 1152, torch.bfloat16, torch.device("cuda"), layers=1)
        b.qkv_TN[:rows] = qkv
        k, v = cache.layer(0)
        out = ops.attend_rows(b, cache, weights, 0, spec, rows)
        found.append([x.float().clone() for x in (out, k, v)])
    for ours, plain in zip(*found, strict=True):
        assert (ours - plain).norm() <= 1e-2 * plain.norm()


@pytest.mark.parametrize("parts", [1, 2, 4])
@pytest.mark.parametrize(
    ("rows", "outputs", "width"), [(16, 768, 256), (112, 4096, 4096), (200, 4096, 11008)]
)
def test_every_ranked_and_borrowed_product_agrees_with_float32(rows, outputs, width, parts):
    from hybrid.ops.cublaslt import CublasLt

    lt = CublasLt(torch.device("cuda"))
    a = torch.randn(rows, width, device="cuda", dtype=torch.bfloat16)
    weight = torch.randn(outputs, width, device="cuda", dtype=torch.bfloat16)
    wanted = a.float() @ weight.float().t()
    tried = 0
    for source in (rows, rows + 8, rows + 32):
        for rank in range(len(lt.ranked(source, outputs, width, parts))):
            kind = torch.float32 if parts > 1 else torch.bfloat16
            out = torch.full((4, 512, outputs), float("nan"), device="cuda", dtype=kind)
            result = out[0, :rows] if parts == 1 else out[:parts, :rows]
            try:
                lt.product(a, weight, result, rank, source)
            except OSError:
                assert source != rows
                continue
            tried += 1
            found = result.float() if parts == 1 else result.sum(0)
            assert (found - wanted).norm() <= 1e-2 * wanted.norm()
    assert tried >= 3


def test_a_product_that_cannot_be_cut_is_refused():
    from hybrid.ops.cublaslt import CublasLt

    with pytest.raises(OSError, match="parts"):
        CublasLt(torch.device("cuda")).ranked(16, 64, 30, 4)


def test_products_left_in_parts_give_the_logits_of_whole_ones(llama):
    """Parts are summed in float32 by the norm: nearer the truth, so equal within bf16 rounding."""
    from hybrid.ops.cublaslt import CublasLt
    from hybrid.ops.tuning import Ranked

    found = []
    for parts in (1, 2, 4):
        with Engine.from_model(llama, mode="jit", max_context=256) as engine:
            products = engine.runner.network.ops.products
            products.lt = CublasLt(torch.device("cuda"))
            products.ranks = {(256, width): {64: Ranked(64, 0, parts)} for width in (512, 8 * 64)}
            engine.prefill(PROMPT)
            found.append(engine.logits())
    for logits in found[1:]:
        assert not torch.equal(logits, found[0])
        assert (logits - found[0]).norm() <= 2e-2 * found[0].norm()


def test_a_staged_request_reaches_the_device_as_it_is(llama):
    with Engine.from_model(llama, background=False, max_context=512) as engine:
        for rows in (16, 200, 512):
            engine.runner.buffers.staging.random_(0, 1000)
            engine.runner.buffers.control.zero_()
            torch.cuda.synchronize()
            engine.runner.network.ops.upload(engine.runner.buffers, rows)
            torch.cuda.synchronize()
            count = 16 + rows
            assert torch.equal(
                engine.runner.buffers.control[:count].cpu(), engine.runner.buffers.staging[:count]
            )
            assert not engine.runner.buffers.control[count:].any()


def test_graphs_can_be_captured_after_all_were_dropped(llama):
    with Engine.from_model(llama, background=False, max_context=256) as engine:
        first = engine.generate(PROMPT, 8)
        engine.runner.store.clear()
        engine.capture_all(len(PROMPT), 8)
        assert engine.generate(PROMPT, 8) == first
