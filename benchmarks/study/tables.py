"""What the tables of docs/study.md.in need beside plain cells: names of runs, and what is derived.

Every number comes from rows of the result files. Times there are nanoseconds.
"""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median
from typing import Any

from benchmarks.study.results import MS, Results, Row, number, percent

PHASES = ("prefill", "decode")
BATCHES = (1, 2, 4, 8, 16)
LENGTHS = (10, 100, 200, 350, 500)
ATTENTION = [f"llama-3.2-1b-bs8-s2048-{kind}" for kind in ("eager", "sdpa")]
LLAMA2 = [f"llama-2-7b-bs1-s100-{mode}" for mode in ("eager", "hybrid")]
FRESH = [f"gpt2-fresh-{n}" for n in (1, 2, 3)]
REPLAYED = [f"{model}-bs1-s512-replayed" for model in ("llama-3.2-1b", "olmoe", "gpt2")]
FIGURES = [
    ("step_unprofiled", "un-profiled step, ms", MS),
    ("device_active", "T_DeviceActive, ms", MS),
    ("orchestration", "T_Orchestration, ms", MS),
    ("launches", "launches", 1.0),
    ("hdbi", "HDBI", 1.0),
]
PAPER_FAMILIES = {
    "scan": "0.32",
    "elementwise": "0.36 to 0.56",
    "reduce": "0.55",
    "gemm, nvjet": "1.18",
    "gemm, other": "1.88",
}
LOADS = {
    "pinned": "one core, alone",
    "nice5": "one core, beside a process of nice 5",
    "nice0": "one core, beside one process",
    "two": "one core, beside two processes",
}
SYSTEMS = {
    shown: {"system": system, "mode": mode, "model": "llama-2-7b", "ablation": None}
    for shown, system, mode in (
        ("transformers, eager", "transformers", "eager"),
        ("hybrid, jit", "hostbound", "jit"),
        ("hybrid, piecewise", "hostbound", "piecewise"),
        ("hybrid, full", "hostbound", "full"),
    )
}


def gpt2_name(batch: int, logits: str = "all") -> str:
    """Name the run; `logits` of all positions, as in the paper's forward, or of the last."""
    return f"gpt2-bs{batch}-s512-{'all' if logits == 'all' else 'eager'}"


def experts_name(model: str, batch: int, how: str | None) -> str:
    return "-".join([f"{model}-bs{batch}-s2048", *([how] if how else [])])


def change(value: float | None, base: float | None) -> str:
    """Write the relative change from `base`."""
    return percent(value / base - 1) if value and base else "-"


def bounds(low_ns: float | None, high_ns: float | None) -> str:
    """Write both in ms."""
    return f"{number((low_ns or 0) / MS)} to {number((high_ns or 0) / MS)}"


def paired_ratio(batches: Results, batch: int) -> str:
    """Write the median of pairs of traces to batch 1, with its interval; nothing for batch 1."""
    pair = {"phase": "prefill", "recordings": f"batches-1, batches-{batch}"}
    ratio = batches.p50("orchestration_paired_ratio", **pair)
    low, high = (
        number(batches.p50("orchestration_paired_interval", median_at_90_percent=end, **pair))
        for end in ("least", "largest")
    )
    return "" if ratio is None else f"{ratio:.3f} ({low} to {high})"


def launches_per_token(study: Results, name: str, tokens: int = 10) -> float | None:
    """Return launches for each of `tokens` output tokens: a prefill, the rest mean decode steps."""
    first, rest = (study.one("launches", name=name, phase=phase) for phase in PHASES)
    if first is None or rest is None:
        return None
    return (first["mean"] + (tokens - 1) * rest["mean"]) / tokens


def families(study: Results) -> list[tuple[str, str]]:
    """Return the kernel families, the paper's first, each with the paper's figure."""
    found = {row["parameters"]["family"] for row in study.all("above_floor")}
    order = [f for f in PAPER_FAMILIES if f in found] + sorted(found - set(PAPER_FAMILIES))
    return [(family, PAPER_FAMILIES.get(family, "")) for family in order]


def accounts(study: Results) -> list[str]:
    """Return the accounts that a decode step of LLaMA-2-7B has, eager or hybrid."""
    rows = [row for name in LLAMA2 for row in study.all("account", name=name, phase="decode")]
    return list(dict.fromkeys(row["parameters"]["account"] for row in rows))


def _warm_ttft(requests: Results, run: dict[str, Any]) -> list[Row | None]:
    return [requests.one("ttft_ms", prompt_len=n, state="length-warm", **run) for n in LENGTHS]


def ttft_p99(requests: Results, run: dict[str, Any]) -> str:
    """Write the cells of P99 by prompt length; of few samples it is the largest."""
    return " | ".join(number(row and row["p99"]) for row in _warm_ttft(requests, run))


def ttft_changes(requests: Results) -> str:
    """Write the cells of the hybrid runtime's TTFT against eager, by prompt length."""
    runs = [_warm_ttft(requests, SYSTEMS[name]) for name in ("hybrid, full", "transformers, eager")]
    pairs = zip(*runs, strict=True)
    return " | ".join(change(full and full["p50"], eager and eager["p50"]) for full, eager in pairs)


def predicted_graphs(study: Results) -> Iterator[Row]:
    """Yield each run and phase for which there are a prediction and a measurement."""
    for row in study.all("measured", item=8, change="graphs"):
        case = {key: row["parameters"][key] for key in ("name", "phase", "change")}
        found = {k: study.p50(k, item=8, **case) for k in ("predicted", "low", "high", "base")}
        if found["predicted"] is None:
            continue
        error = found["predicted"] / row["p50"] - 1
        is_within = found["low"] <= row["p50"] <= found["high"]
        yield {
            "measured": row, **found, "error": error, "is_within_bounds": is_within,
            **row["parameters"],
        }  # fmt: skip


def decode_steps(study: Results) -> Iterator[tuple[str, Row, Row]]:
    """Yield the eager decode steps of tables 2 and 8: name, T_Orchestration, un-profiled step.

    The device is idle most of the time there, so the un-profiled time is the host's.
    """
    for row in study.all("orchestration", phase="decode"):
        run = row["parameters"]
        step = study.one("step_unprofiled", name=run["name"], phase="decode")
        if step and run["name"].endswith("-eager") and run["item"] in (2, 8):
            yield run["name"], row, step


def fresh_range(study: Results, metric: str, phase: str) -> float | None:
    """Return how far the medians of the fresh processes lie apart, over their median."""
    found = [study.p50(metric, name=name, phase=phase) for name in FRESH]
    known = [value for value in found if value is not None]
    return (max(known) - min(known)) / median(known) if known and median(known) else None
