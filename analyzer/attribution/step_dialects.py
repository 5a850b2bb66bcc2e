"""The marks that serving engines write around their steps, and what their texts say.

One table of patterns. A mark arrives as a Kineto annotation or as an NVTX range; its text is the
same. Nothing here knows of times: `steps.py` finds the marks of a trace and chooses among dialects.
Sources, by engine: vllm/v1/worker/gpu_worker.py (`annotate_profile`, `detailed_trace_annotation`,
VLLM_CUSTOM_SCOPES_FOR_PROFILING) and the capture names of vLLM's RFC 45069; SGLang's changes 23419,
24370, 24911, 27901 and SGLANG_ENABLE_NVTX; tensorrt_llm/_torch/pyexecutor/py_executor.py; ATOM.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache

VLLM, SGLANG, TENSORRT_LLM, ATOM = "vllm", "sglang", "tensorrt-llm", "atom"
ENGINES = {VLLM: "vLLM", SGLANG: "SGLang", TENSORRT_LLM: "TensorRT-LLM", ATOM: "ATOM"}
STEP_PHASES = ("prefill", "decode", "mixed", "step")
# Phases that are never among the steps; `inner` is a part of a step, or what the engine does around
# it.
CAPTURE, IDLE, INNER = "capture", "idle", "inner"


@dataclass(frozen=True)
class StepMark:
    """What the text of a mark says; None: it does not say.

    Attributes:
        engine: A key of ENGINES.
        phase: One of STEP_PHASES, or capture, idle, inner.
        ctx_reqs, gen_reqs: Requests that are prefilled; requests that generate.
        ctx_tokens, gen_tokens: Their new tokens: the sum of their query lengths.
        batch: Requests in all; of a capture, the size that it is for.
        ctx_sk, gen_sk: Sum of key lengths (new and cached tokens).
        ctx_sqsq, gen_sqsq: Sum of squared query lengths.
        ctx_sqsk, gen_sqsk: Sum of query length times key length.
    """

    engine: str
    phase: str
    ctx_reqs: int | None = None
    ctx_tokens: int | None = None
    gen_reqs: int | None = None
    gen_tokens: int | None = None
    batch: int | None = None
    ctx_sk: int | None = None
    ctx_sqsq: int | None = None
    ctx_sqsk: int | None = None
    gen_sk: int | None = None
    gen_sqsq: int | None = None
    gen_sqsk: int | None = None

    @property
    def is_step(self) -> bool:
        return self.phase in STEP_PHASES


COUNTS = tuple(f.name for f in fields(StepMark) if f.name not in ("engine", "phase"))


@dataclass(frozen=True)
class _Text:
    """One row of the table.

    Attributes:
        pattern: Matches the whole text; groups are named after fields of `StepMark`.
        phase: None: told by the requests.
        keys: Fields by the names of `name=number` pairs in the text.
        known: Counts that the kind of text implies.
        one_token: A request has one new token unless the text says otherwise.
    """

    engine: str
    pattern: re.Pattern[str]
    phase: str | None
    keys: Mapping[str, str] = field(default_factory=dict[str, str])
    known: Mapping[str, int] = field(default_factory=dict[str, int])
    one_token: bool = False


def _text(
    engine: str,
    pattern: str,
    phase: str | None,
    keys: Mapping[str, str] | None = None,
    known: Mapping[str, int] | None = None,
    *,
    one_token: bool = False,
) -> _Text:
    compiled = re.compile(pattern, re.DOTALL)
    return _Text(engine, compiled, phase, keys or {}, known or {}, one_token)


def _lengths(group: str) -> str:
    """The sums of one group of requests, as vLLM's detailed text writes them."""
    return (
        rf"\(sq(?P<{group}_tokens>\d+)sk(?P<{group}_sk>\d+)"
        rf"sqsq(?P<{group}_sqsq>\d+)sqsk(?P<{group}_sqsk>\d+)\)"
    )


def _tokens(group: str) -> str:
    """Tokens of one group, and behind them, in some versions, the sum of their squares."""
    return rf"\((?P<{group}_tokens>\d+)(?:_(?P<{group}_sqsq>\d+))?\)"


def _sglang_step(words: str) -> str:
    return rf"step\[\s*(?i:{words})\b.*"


_NO_CTX = {"ctx_reqs": 0, "ctx_tokens": 0}
_NO_GEN = {"gen_reqs": 0, "gen_tokens": 0}
_SGLANG_CTX = {"c_sq": "ctx_tokens", "c_sk": "ctx_sk", "c_sqsq": "ctx_sqsq", "c_sqsk": "ctx_sqsk"}
_SGLANG_GEN = {"g_sq": "gen_tokens", "g_sk": "gen_sk", "g_sqsq": "gen_sqsq", "g_sqsk": "gen_sqsk"}
_ATOM_CTX = {"sk": "ctx_sk", "sqsq": "ctx_sqsq", "sqsk": "ctx_sqsk"}
_ATOM_GEN = {"sk": "gen_sk", "sqsq": "gen_sqsq", "sqsk": "gen_sqsk"}

_VLLM_PARTS = "preprocess|forward|postprocess|sample|bookkeep|draft"
_TENSORRT_LLM_PARTS = (
    "_schedule|_fetch_new_requests|broadcast_requests|_prepare_inputs|_sample_async"
    "|_update_requests|_handle_responses"
)

# The first row that matches counts.
TEXTS = (
    _text(
        VLLM,
        rf"execute_context_(?P<ctx_reqs>\d+){_tokens('ctx')}"
        rf"_generation_(?P<gen_reqs>\d+){_tokens('gen')}",
        None,
    ),
    _text(
        VLLM,
        rf"execute_\d+_context_(?P<ctx_reqs>\d+){_lengths('ctx')}"
        rf"_generation_(?P<gen_reqs>\d+){_lengths('gen')}",
        None,
    ),
    _text(VLLM, r"execute_new_(?P<ctx_reqs>\d+)_cached_(?P<gen_reqs>\d+)", None),
    _text(VLLM, rf"gpu_model_runner: (?:{_VLLM_PARTS})", INNER),
    _text(VLLM, r"## Call CompiledFxGraph .*", INNER),
    _text(VLLM, r"capture_(?P<batch>\d+)(?:_\w+)?_(?:FULL|PIECEWISE)", CAPTURE),
    _text(
        SGLANG,
        _sglang_step("EXTEND|SPLIT_PREFILL|DLLM_EXTEND"),
        "prefill",
        {"bs": "ctx_reqs", "toks": "ctx_tokens", **_SGLANG_CTX},
        _NO_GEN,
    ),
    _text(
        SGLANG,
        _sglang_step("DECODE"),
        "decode",
        {"bs": "gen_reqs", **_SGLANG_GEN},
        _NO_CTX,
        one_token=True,
    ),
    _text(
        SGLANG,
        _sglang_step("MIXED"),
        "mixed",
        {"bs": "batch", "c": "ctx_reqs", "g": "gen_reqs", **_SGLANG_CTX, **_SGLANG_GEN},
    ),
    _text(  # speculative decoding: several drafted tokens of each request at once
        SGLANG,
        _sglang_step("VERIFY|TARGET_VERIFY|DRAFT_EXTEND|DRAFT_EXTEND_V2"),
        "decode",
        {"bs": "gen_reqs", "toks": "gen_tokens", **_SGLANG_GEN},
        _NO_CTX,
    ),
    _text(SGLANG, _sglang_step("IDLE|DUMMY_FIRST|PREBUILT"), IDLE, {"bs": "batch"}),
    _text(SGLANG, r"step\[\s*[A-Z_]+\d* bs=.*", "step", {"bs": "batch"}),
    _text(SGLANG, r"scheduler\.(?:run_batch|process_batch_result\w*)", INNER),
    _text(SGLANG, r"\{'Module': .*", INNER),
    _text(SGLANG, r"capture_(?P<batch>\d+)_\w+", CAPTURE),
    _text(
        TENSORRT_LLM,
        r"\[Executor\] _forward_step(?: \d+)?: (?P<ctx_reqs>\d+) ctx reqs,"
        r"(?: (?P<ctx_tokens>\d+) ctx tokens,)? (?P<gen_reqs>\d+) gen reqs",
        None,
    ),
    _text(TENSORRT_LLM, _TENSORRT_LLM_PARTS, INNER),
    _text(
        ATOM,
        r"prefill\[\s*bs=.*\]",
        "prefill",
        {"bs": "ctx_reqs", "tok": "ctx_tokens", **_ATOM_CTX},
        _NO_GEN,
    ),
    _text(  # a batch of both: its tokens and lengths are of both together
        ATOM,
        r"decode\[\s*bs=.*\bp=[1-9].*\]",
        "mixed",
        {"bs": "batch", "p": "ctx_reqs", "d": "gen_reqs"},
    ),
    _text(  # drafted tokens, whose number the text may leave out
        ATOM,
        r"decode\[\s*bs=.*\bspec=.*\]",
        "decode",
        {"bs": "gen_reqs", "tok": "gen_tokens", **_ATOM_GEN},
        _NO_CTX,
    ),
    _text(
        ATOM,
        r"decode\[\s*bs=.*\]",
        "decode",
        {"bs": "gen_reqs", "tok": "gen_tokens", **_ATOM_GEN},
        _NO_CTX,
        one_token=True,
    ),
)

# Whether any row matches: one look at a text, of which most are no marks.
_ANY = re.compile(
    "|".join(f"(?:{re.sub(r'[(][?]P<[a-z_]+>', '(?:', row.pattern.pattern)})" for row in TEXTS),
    re.DOTALL,
)
_PAIR = re.compile(r"\b(\w+)=(\d+)")


@lru_cache(maxsize=65_536)
def parse(text: str) -> StepMark | None:
    """What a mark's text says; None if no engine that is known here writes it."""
    text = text.strip()
    if not _ANY.fullmatch(text):
        return None
    matches = ((row, row.pattern.fullmatch(text)) for row in TEXTS)
    return next(_mark(row, match) for row, match in matches if match)


def _mark(row: _Text, match: re.Match[str]) -> StepMark:
    counts = dict(row.known)
    counts |= {name: int(number) for name, number in match.groupdict().items() if number}
    for name, number in _PAIR.findall(match[0]):
        if name in row.keys:
            counts[row.keys[name]] = int(number)
    mark = StepMark(row.engine, row.phase or _phase(counts), **counts)
    if mark.phase == INNER or mark.phase == CAPTURE:
        return mark
    if mark.batch is None and mark.ctx_reqs is not None and mark.gen_reqs is not None:
        mark = replace(mark, batch=mark.ctx_reqs + mark.gen_reqs)
    if row.one_token and mark.gen_tokens is None and mark.gen_sqsq in (None, mark.gen_reqs):
        mark = replace(mark, gen_tokens=mark.gen_reqs)
    return mark


def _phase(counts: Mapping[str, int]) -> str:
    """Context and no generation, generation only, both; idle if there is no request."""
    prefills, generates = counts.get("ctx_reqs", 0) > 0, counts.get("gen_reqs", 0) > 0
    if prefills:
        return "mixed" if generates else "prefill"
    return "decode" if generates else IDLE
