"""Every text that serving engines write around a step says its phase and its counts."""

from __future__ import annotations

from dataclasses import asdict

import pytest

from analyzer.attribution.step_dialects import (
    ATOM,
    CAPTURE,
    COUNTS,
    IDLE,
    INNER,
    SGLANG,
    TENSORRT_LLM,
    VLLM,
    parse,
)

NO_CTX = {"ctx_reqs": 0, "ctx_tokens": 0}
NO_GEN = {"gen_reqs": 0, "gen_tokens": 0}
NO_CTX_SUMS = {"ctx_sk": 0, "ctx_sqsq": 0, "ctx_sqsk": 0}
NO_GEN_SUMS = {"gen_sk": 0, "gen_sqsq": 0, "gen_sqsk": 0}

STEPS = [
    # vLLM
    (
        "execute_context_2(14721)_generation_0(0)",
        VLLM,
        "prefill",
        {"ctx_reqs": 2, "ctx_tokens": 14721, "batch": 2} | NO_GEN,
    ),
    (
        "execute_context_0(0)_generation_64(64)",
        VLLM,
        "decode",
        {"gen_reqs": 64, "gen_tokens": 64, "batch": 64} | NO_CTX,
    ),
    (
        "execute_context_0(0)_generation_32(128)",
        VLLM,
        "decode",
        {"gen_reqs": 32, "gen_tokens": 128, "batch": 32} | NO_CTX,
    ),
    (
        "execute_context_2(6144)_generation_3(3)",
        VLLM,
        "mixed",
        {"ctx_reqs": 2, "ctx_tokens": 6144, "gen_reqs": 3, "gen_tokens": 3, "batch": 5},
    ),
    (
        "execute_context_1(30_900)_generation_0(0)",
        VLLM,
        "prefill",
        {"ctx_reqs": 1, "ctx_tokens": 30, "ctx_sqsq": 900, "batch": 1} | NO_GEN,
    ),
    ("execute_new_3_cached_0", VLLM, "prefill", {"ctx_reqs": 3, "gen_reqs": 0, "batch": 3}),
    ("execute_new_0_cached_7", VLLM, "decode", {"ctx_reqs": 0, "gen_reqs": 7, "batch": 7}),
    ("execute_new_1_cached_7", VLLM, "mixed", {"ctx_reqs": 1, "gen_reqs": 7, "batch": 8}),
    (
        "execute_12_context_2(sq12sk20sqsq80sqsk120)_generation_0(sq0sk0sqsq0sqsk0)",
        VLLM,
        "prefill",
        {"ctx_reqs": 2, "ctx_tokens": 12, "ctx_sk": 20, "batch": 2}
        | {"ctx_sqsq": 80, "ctx_sqsk": 120}
        | NO_GEN
        | NO_GEN_SUMS,
    ),
    (
        "execute_3_context_0(sq0sk0sqsq0sqsk0)_generation_3(sq3sk90sqsq3sqsk90)",
        VLLM,
        "decode",
        {"gen_reqs": 3, "gen_tokens": 3, "gen_sk": 90, "gen_sqsq": 3, "batch": 3}
        | {"gen_sqsk": 90}
        | NO_CTX
        | NO_CTX_SUMS,
    ),
    (
        "execute_6_context_1(sq5sk8sqsq25sqsk40)_generation_1(sq1sk12sqsq1sqsk12)",
        VLLM,
        "mixed",
        {"ctx_reqs": 1, "ctx_tokens": 5, "ctx_sk": 8, "ctx_sqsq": 25, "batch": 2}
        | {"ctx_sqsk": 40, "gen_reqs": 1, "gen_tokens": 1, "gen_sk": 12}
        | {"gen_sqsq": 1, "gen_sqsk": 12},
    ),
    # SGLang
    (
        "step[DECODE bs=32]",
        SGLANG,
        "decode",
        {"gen_reqs": 32, "gen_tokens": 32, "batch": 32} | NO_CTX,
    ),
    (
        "step[DECODE bs=2 g_sq=4 g_sqsq=8 g_sqsk=60 g_sk=30]",
        SGLANG,
        "decode",
        {"gen_reqs": 2, "gen_tokens": 4, "batch": 2, "gen_sk": 30, "gen_sqsq": 8, "gen_sqsk": 60}
        | NO_CTX,
    ),
    (
        "step[DECODE bs=2 g_sqsq=8 g_sqsk=60 g_sk=30]",  # drafted, and it does not say how many
        SGLANG,
        "decode",
        {"gen_reqs": 2, "batch": 2, "gen_sk": 30, "gen_sqsq": 8, "gen_sqsk": 60} | NO_CTX,
    ),
    (
        "step[EXTEND bs=15 toks=15360]",
        SGLANG,
        "prefill",
        {"ctx_reqs": 15, "ctx_tokens": 15360, "batch": 15} | NO_GEN,
    ),
    (
        "step[EXTEND bs=2 toks=12 c_sqsq=80 c_sqsk=120 c_sk=20]",
        SGLANG,
        "prefill",
        {"ctx_reqs": 2, "ctx_tokens": 12, "batch": 2}
        | {"ctx_sqsq": 80, "ctx_sqsk": 120, "ctx_sk": 20}
        | NO_GEN,
    ),
    (
        "step[EXTEND bs=1 toks=32] c_sqsq=1024 c_sqsk=2048 c_sk=64",
        SGLANG,
        "prefill",
        {"ctx_reqs": 1, "ctx_tokens": 32, "batch": 1}
        | {"ctx_sqsq": 1024, "ctx_sqsk": 2048, "ctx_sk": 64}
        | NO_GEN,
    ),
    ("step[MIXED bs=2]", SGLANG, "mixed", {"batch": 2}),
    (
        "step[MIXED bs=2 c=1 g=1 c_sq=5 c_sk=8 c_sqsq=25 c_sqsk=40 g_sq=1 g_sk=12 g_sqsq=1 "
        "g_sqsk=12]",
        SGLANG,
        "mixed",
        {"ctx_reqs": 1, "gen_reqs": 1, "batch": 2, "ctx_tokens": 5, "gen_tokens": 1}
        | {"ctx_sk": 8, "ctx_sqsq": 25, "ctx_sqsk": 40}
        | {"gen_sk": 12, "gen_sqsq": 1, "gen_sqsk": 12},
    ),
    ("step[VERIFY bs=4]", SGLANG, "decode", {"gen_reqs": 4, "batch": 4} | NO_CTX),
    (
        "step[TARGET_VERIFY bs=4 g_sq=16]",
        SGLANG,
        "decode",
        {"gen_reqs": 4, "gen_tokens": 16, "batch": 4} | NO_CTX,
    ),
    ("step[ANOTHER_KIND bs=4]", SGLANG, "step", {"batch": 4}),
    # TensorRT-LLM
    (
        "[Executor] _forward_step 12: 2 ctx reqs, 1024 ctx tokens, 6 gen reqs",
        TENSORRT_LLM,
        "mixed",
        {"ctx_reqs": 2, "ctx_tokens": 1024, "gen_reqs": 6, "batch": 8},
    ),
    (
        "[Executor] _forward_step 13: 0 ctx reqs, 0 ctx tokens, 32 gen reqs",
        TENSORRT_LLM,
        "decode",
        {"gen_reqs": 32, "batch": 32} | NO_CTX,
    ),
    (
        "[Executor] _forward_step 5: 3 ctx reqs, 0 gen reqs",
        TENSORRT_LLM,
        "prefill",
        {"ctx_reqs": 3, "gen_reqs": 0, "batch": 3},
    ),
    (
        "[Executor] _forward_step: 0 ctx reqs, 8 gen reqs",
        TENSORRT_LLM,
        "decode",
        {"ctx_reqs": 0, "gen_reqs": 8, "batch": 8},
    ),
    # ATOM
    (
        "prefill[bs=2 tok=16384]",
        ATOM,
        "prefill",
        {"ctx_reqs": 2, "ctx_tokens": 16384, "batch": 2} | NO_GEN,
    ),
    (
        "prefill[bs=2 tok=14721 ctx=[7803, 6918] sqsq=108745533 sqsk=108745533 sk=14721]",
        ATOM,
        "prefill",
        {"ctx_reqs": 2, "ctx_tokens": 14721, "batch": 2, "ctx_sk": 14721}
        | {"ctx_sqsq": 108745533, "ctx_sqsk": 108745533}
        | NO_GEN,
    ),
    ("decode[bs=8]", ATOM, "decode", {"gen_reqs": 8, "gen_tokens": 8, "batch": 8} | NO_CTX),
    (
        "decode[bs=117/128 tok=117 d=117]",  # padded to a graph of 128
        ATOM,
        "decode",
        {"gen_reqs": 117, "gen_tokens": 117, "batch": 117} | NO_CTX,
    ),
    (
        "decode[bs=32 tok=128 d=32 spec=3 sqsq=512 sqsk=262144 sk=65536]",
        ATOM,
        "decode",
        {"gen_reqs": 32, "gen_tokens": 128, "batch": 32}
        | {"gen_sqsq": 512, "gen_sqsk": 262144, "gen_sk": 65536}
        | NO_CTX,
    ),
    (
        "decode[bs=128 tok=384 p=2 d=126]",
        ATOM,
        "mixed",
        {"ctx_reqs": 2, "gen_reqs": 126, "batch": 128},
    ),
]

APART = [
    ("capture_32_FULL", VLLM, CAPTURE, 32),
    ("capture_8_draft_PIECEWISE", VLLM, CAPTURE, 8),
    ("capture_128_decode", SGLANG, CAPTURE, 128),
    ("step[idle]", SGLANG, IDLE, None),
    ("step[IDLE bs=0]", SGLANG, IDLE, 0),
    ("execute_context_0(0)_generation_0(0)", VLLM, IDLE, 0),
    ("[Executor] _forward_step 3: 0 ctx reqs, 0 ctx tokens, 0 gen reqs", TENSORRT_LLM, IDLE, 0),
    *(
        (f"gpu_model_runner: {part}", VLLM, INNER, None)
        for part in ("preprocess", "forward", "postprocess", "sample", "bookkeep", "draft")
    ),
    ("## Call CompiledFxGraph f4iikz2 ##", VLLM, INNER, None),
    ("scheduler.run_batch", SGLANG, INNER, None),
    ("scheduler.process_batch_result_decode", SGLANG, INNER, None),
    ("{'Module': 'model.model', 'Inputs': [[256], [256]]}", SGLANG, INNER, None),
    *(
        (part, TENSORRT_LLM, INNER, None)
        for part in (
            "_schedule",
            "_fetch_new_requests",
            "broadcast_requests",
            "_prepare_inputs",
            "_sample_async",
            "_update_requests",
            "_handle_responses",
        )
    ),
]


@pytest.mark.parametrize(("text", "engine", "phase", "counts"), STEPS)
def test_the_text_of_a_step_says_its_phase_and_counts(
    text: str, engine: str, phase: str, counts: dict[str, int]
) -> None:
    mark = parse(text)
    assert mark is not None
    assert mark.is_step
    unknown = dict.fromkeys(COUNTS)
    assert asdict(mark) == {"engine": engine, "phase": phase} | unknown | counts


@pytest.mark.parametrize(("text", "engine", "phase", "batch"), APART)
def test_captures_idle_and_parts_of_steps_are_no_steps(
    text: str, engine: str, phase: str, batch: int | None
) -> None:
    mark = parse(text)
    assert mark is not None
    assert (mark.engine, mark.phase, mark.batch, mark.is_step) == (engine, phase, batch, False)


@pytest.mark.parametrize(
    "text",
    [
        "ProfilerStep#3",
        "hostbound.decode#0",
        "step#0",
        "step[3]",
        "decode#5",
        "execute_model",
        "prefill",
        "nccl:all_reduce",
        "graph_capture",
        "Optimizer.step#SGD.step",
    ],
)
def test_what_others_write_is_no_mark_of_an_engine(text: str) -> None:
    assert parse(text) is None
