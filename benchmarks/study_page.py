# ruff: noqa: E501  (paragraphs of a page, as long as they are)
"""Writes docs/study.md from the study's result file; every number in it comes from there.

The hybrid runtime's TTFT table comes from `benchmarks/results/hybrid-*.json`. The text around the
tables takes its numbers from the same rows, so that a new recording changes both.
"""

from __future__ import annotations

import json
from pathlib import Path
from statistics import median
from typing import Any

import study_tables as t
from result_file import RESULTS, ROOT
from study_tables import MS, Book, number

PAGE = ROOT / "docs" / "study.md"
IMAGES = ROOT / "docs" / "images"
HYBRID = RESULTS / "hybrid-nvidia-h200-2026-11-30.json"


def page(content: dict[str, Any], hybrid: dict[str, Any]) -> str:
    """The whole of docs/study.md."""
    book = Book(content)
    parts = (
        _head, _floor, _gpt2, _experts, _families, _attention, _slow, _hybrid, _predictions,
        _validity, _end,
    )  # fmt: skip
    made = [part(book, hybrid) for part in parts]
    return "\n\n".join(made) + "\n"


def write(source: Path, target: Path = PAGE, hybrid: Path = HYBRID) -> Path:
    """Write the page; returns its path."""
    content, other = (json.loads(path.read_text(encoding="utf-8")) for path in (source, hybrid))
    target.write_text(page(content, other), encoding="utf-8")
    return target


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{number(value / MS)} ms"


def _head(book: Book, _hybrid: dict[str, Any]) -> str:
    about = book.content["environment"]
    versions = about["versions"]
    errors = t.errors(book)
    middle = f"{100 * median(errors):.1f} % (median of {len(errors)})" if errors else "not measured"
    return f"""# The papers' tables on an NVIDIA H200, and predictions beside measurements

<!-- Written by `benchmarks/study.py render`; change that, not this page. -->

"The paper" is TaxBreak (arXiv:2603.12465) unless the text says otherwise; hybrid runtimes are measured against
arXiv:2604.23467. Ours: one {about["gpu"]}, driver {about["driver"]}, host "{about["cpu"]}" with {about["cpu_count"]}
cores (a virtual machine), torch {versions["torch"]}, transformers {versions["transformers"]}, random weights of real
sizes, bf16. A cell is a median with its spread (p5 to p95; of fewer than ten samples the least and the largest) and
the number of samples. Recorded by `benchmarks/study.py record` at commit {book.content["commit"]}; all rows are in
`benchmarks/results/study-nvidia-h200.json`. What each quantity means: [measurement.md](measurement.md).

What to conclude:

{_conclusions(book, middle)}"""


def _conclusions(book: Book, middle: str) -> str:
    return f"- A graph's step time is foretold from an eager run within {middle}."


def _floor(book: Book, _hybrid: dict[str, Any]) -> str:
    return f"""## 1. Launch floor

{t.floors(book)}

The paper: 4.503 and 4.452 us on an H200 NVL (mean and median of its null kernel)."""


def _gpt2(book: Book, _hybrid: dict[str, Any]) -> str:
    return f"""## 2. GPT-2, prompt 512: from host-bound to device-bound

![HDBI by batch, ours and the paper's ends](images/study-gpt2.png)

Logits of every position, as the paper's forward:

{t.gpt2(book)}

Logits of the last position only, as a server asks for them:

{t.gpt2(book, "last")}

HDBI passes 0.5 at batch {number(t.crossover(book))} (paper: near 8), with the last logits only at
{number(t.crossover(book, "last"))}."""


def _experts(book: Book, _hybrid: dict[str, Any]) -> str:
    return f"""## 3. Dense models and mixtures of experts

Prompt 2,048; launches for each of ten output tokens, a prefill and nine decode steps (three steps were recorded; decode
steps differ by their routing only).

{t.experts(book)}"""


def _families(book: Book, _hybrid: dict[str, Any]) -> str:
    return f"""## 4. Launch cost above the floor, by kernel family

A sample is one kernel identity: the median of its replay less the floor of its launch API.

{t.families(book)}"""


def _attention(book: Book, _hybrid: dict[str, Any]) -> str:
    return f"""## 5. Better and "more host-bound": eager attention against SDPA

{t.attention(book)}"""


def _slow(book: Book, _hybrid: dict[str, Any]) -> str:
    return f"""## 6. A slower host, the same GPU

GPT-2, batch 1, prompt 512. The launching thread is pinned to one core and shares it with busy processes.

{t.slow_host(book)}

Foretold from the run alone on the core, by `cpu-faster:SHARE`, where the share is what the scheduler's weights leave:

{t.slow_predictions(book)}"""


def _hybrid(book: Book, hybrid: dict[str, Any]) -> str:
    return f"""## 7. The hybrid runtime: which account the graphs removed

{t.hybrid_accounts(book)}

TTFT by prompt length, and gaps between tokens, LLaMA-2-7B, batch 1, without profiler (`benchmarks/hybrid.py` at commit
{hybrid["commit"]}):

{t.hybrid_ttft(hybrid)}"""


def _predictions(book: Book, _hybrid: dict[str, Any]) -> str:
    return f"""## 8. Predictions that come true

![Predicted and measured step times as graphs](images/study-predictions.png)

{t.predictions(book)}

{t.nodes(book)}

{t.graph_launch(book)}"""


def _validity(book: Book, _hybrid: dict[str, Any]) -> str:
    worst, steps = t.ledger_difference(book)
    return f"""## 9. Validity

**The ledger adds up.** Over {steps} steps of all runs the accounts differ from the step's wall time by {worst} ns at
most.

**T_Orchestration against the host's un-profiled time.**

{t.orchestration_against_host(book)}

**Three fresh processes.**

{t.repeatability(book)}

**How samples are taken.**

{t.blocks(book)}

**Clocks** at the end of each recording: {t.clocks(book)}."""


def _end(book: Book, _hybrid: dict[str, Any]) -> str:
    failed = book.content["not_recorded"]
    if not failed:
        return "Everything that was planned was recorded."
    listed = "\n".join(f"- `{f['name']}`: {f['reason']}" for f in failed)
    return f"Not recorded:\n\n{listed}"


# Plots ------------------------------------------------------------------------------------------


def plots(content: dict[str, Any], folder: Path = IMAGES) -> list[Path]:
    """Draw the page's figures; returns their paths."""
    book = Book(content)
    made: list[Path] = []
    for name, chart in (
        ("study-gpt2", gpt2_chart(book)),
        ("study-predictions", prediction_chart(book)),
    ):
        path = folder / f"{name}.png"
        chart.save(str(path), scale_factor=2)
        made.append(path)
    return made


def gpt2_chart(book: Book) -> Any:
    """HDBI by batch: both kinds of logits, and the paper's two ends."""
    import altair as alt  # only where figures are drawn

    shown = {"all": "all logits", "last": "last logits only"}
    rows = [
        {"batch": batch, "HDBI": value, "run": shown[kind]}
        for kind in shown
        for batch in t.BATCHES
        if (value := book.p50("hdbi", name=t.gpt2_name(batch, kind), phase="prefill")) is not None
    ]
    rows += [
        {"batch": batch, "HDBI": float(values[2]), "run": "the paper"}
        for batch, values in t.PAPER_GPT2.items()
    ]
    base = alt.Chart(alt.Data(values=rows)).encode(
        x=alt.X("batch:Q", scale=alt.Scale(type="log", base=2), title="batch (prompt 512)"),
        y=alt.Y("HDBI:Q", scale=alt.Scale(domain=[0, 1]), title="HDBI: 0 host, 1 device"),
        color=alt.Color(
            "run:N",
            title=None,
            scale=alt.Scale(
                domain=[*shown.values(), "the paper"], range=["#0072B2", "#E69F00", "#666C75"]
            ),
        ),
    )
    half = alt.Chart(alt.Data(values=[{"y": 0.5}])).mark_rule(strokeDash=[4, 4]).encode(y="y:Q")
    return (half + base.mark_line() + base.mark_point(size=60, filled=True)).properties(
        width=520, height=260, background="white"
    )


def prediction_chart(book: Book) -> Any:
    """Predicted with bounds beside measured, and the eager step that it was foretold from."""
    import altair as alt  # only where figures are drawn

    rows: list[dict[str, Any]] = []
    for p in t.predicted_graphs(book):
        label = f"{p['name'].removesuffix('-eager')}, {p['phase']}"
        values = {"measured as graphs": p["measured"]["p50"], "predicted": p["predicted"]}
        values["eager step"] = p["base"]
        rows += [{"run": label, "what": k, "ms": v / MS} for k, v in values.items()]
        rows[-2] |= {"low": p["low"] / MS, "high": p["high"] / MS}
    data = alt.Chart(alt.Data(values=rows))
    y = alt.Y("run:N", sort=None, title=None, axis=alt.Axis(labelLimit=260))
    x = alt.X("ms:Q", scale=alt.Scale(type="log"), title="step, ms")
    colour = alt.Color(
        "what:N",
        title=None,
        scale=alt.Scale(
            domain=["predicted", "measured as graphs", "eager step"],
            range=["#0072B2", "#D55E00", "#8C8C8C"],
        ),
    )
    bounds = (
        data.transform_filter("datum.what == 'predicted'")
        .mark_rule(strokeWidth=3, opacity=0.35, color="#0072B2")
        .encode(y=y, x=alt.X("low:Q", scale=alt.Scale(type="log"), title="step, ms"), x2="high:Q")
    )
    points = data.mark_point(size=55, filled=True).encode(y=y, x=x, color=colour)
    return (bounds + points).properties(
        width=520, height=22 * max(len(rows) // 3, 1), background="white"
    )
