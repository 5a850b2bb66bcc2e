"""The persistent decode kernel on a Hopper GPU: through the engine, and when it cannot go on."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available() or torch.cuda.get_device_capability()[0] != 9,
        reason="needs a Hopper GPU",
    ),
]

from hybrid import Engine, HybridError  # noqa: E402  (after importorskip)
from hybrid.model.hub import build_config  # noqa: E402

SIZES = {
    "vocab_size": 1000,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "max_position_embeddings": 2048,
}
PROMPT = [(7 * i) % 990 + 1 for i in range(300)]


@pytest.fixture(scope="module")
def llama():
    model = build_config(transformers.LlamaConfig(**SIZES), torch.bfloat16, "cuda", 1)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            parameter.data.mul_(2)
    return model


def steps(engine, count: int):
    tokens, logits = [engine.prefill(PROMPT)], [engine.logits()]
    for _ in range(count):
        tokens.append(engine.decode())
        logits.append(engine.logits())
    return tokens, torch.stack(logits)


def test_it_repeats_bit_for_bit_and_is_as_near_float32_as_the_other_kernels(llama):
    import copy

    with Engine.from_model(llama, persistent=True, max_context=1024) as engine:
        assert engine.stats()["decode_step"] == "persistent kernel"
        tokens, logits = steps(engine, 600)
        engine.runner.cache.storage_L2HSD.fill_(float("nan"))
        again = steps(engine, 600)
        assert again[0] == tokens
        assert torch.equal(again[1], logits)
    with Engine.from_model(llama, mode="jit", max_context=1024) as engine:
        _, others = steps(engine, 1)
    sequence = torch.tensor([PROMPT + tokens[:-1]], device="cuda")
    with torch.no_grad():
        truth = copy.deepcopy(llama).float()(sequence).logits[0, len(PROMPT) - 1 :]
        theirs = llama(sequence).logits[0, len(PROMPT) - 1 :].float()
    error = (logits - truth).norm() / truth.norm()
    assert error <= (theirs - truth).norm() / truth.norm()
    assert (logits[1] - others[1]).norm() <= 2e-2 * others[1].norm()
    top = truth.topk(2, dim=-1)
    margin = top.values[:, 0] - top.values[:, 1]
    differs = torch.tensor(tokens, device="cuda") != top.indices[:, 0]
    assert not bool((differs & (margin > 2 * (logits - truth).abs().max())).any())


def test_a_barrier_that_does_not_come_is_an_error_and_the_engine_goes_on(llama):
    with Engine.from_model(llama, persistent=True, max_context=512) as engine:
        engine.prefill(PROMPT)
        # As if a block were missing: the step waits for arrivals that nobody makes.
        engine.runner._persistent._arguments.sync[1] += 1000
        with pytest.raises(HybridError, match="did not come in time"):
            engine.decode()
        engine.reset()
        assert engine.stats()["decode_step"].startswith("kernels: barrier")
        assert len(engine.generate(PROMPT, 8)) == 8


def test_a_model_with_experts_keeps_the_other_kernels_and_says_why():
    config = transformers.OlmoeConfig(
        **{**SIZES, "num_key_value_heads": 8, "head_dim": 32, "intermediate_size": 64},
        num_experts=12,
        num_experts_per_tok=3,
        pad_token_id=0,
    )
    model = build_config(config, torch.bfloat16, "cuda", 1)
    with Engine.from_model(model, persistent=True, max_context=512) as engine:
        assert "experts" in engine.stats()["decode_step"]
        assert len(engine.generate(PROMPT, 4)) == 4
