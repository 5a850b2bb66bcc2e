"""The pictures of docs/study.md."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import altair as alt

from benchmarks.result_file import ROOT
from benchmarks.study import tables as t
from benchmarks.study.results import MS, Results
from webapp import theme

IMAGES = ROOT / "docs" / "images"


def save(study: Results, folder: Path = IMAGES) -> list[Path]:
    """Draw the page's pictures; returns their paths."""
    made: list[Path] = []
    for name, chart in (
        ("study-gpt2", gpt2_chart(study)),
        ("study-predictions", prediction_chart(study)),
        ("study-accounts", account_chart(study)),
    ):
        path = folder / f"{name}.png"
        chart.save(str(path), scale_factor=2)
        made.append(path)
    return made


def gpt2_chart(study: Results) -> Any:
    """HDBI by batch: both kinds of logits, and the paper's two ends."""
    shown = {"all": "all logits", "last": "last logits only"}
    rows = [
        {"batch": batch, "HDBI": value, "run": shown[kind]}
        for kind in shown
        for batch in t.BATCHES
        if (value := study.p50("hdbi", name=t.gpt2_name(batch, kind), phase="prefill")) is not None
    ]
    rows += [
        {"batch": batch, "HDBI": hdbi, "run": "the paper"}
        for batch, hdbi in ((1, 0.25), (16, 0.74))
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
    # Of the paper only the two ends are known: no line between them.
    ours = base.transform_filter("datum.run != 'the paper'").mark_line()
    return (half + ours + base.mark_point(size=60, filled=True)).properties(
        width=520, height=260, background="white"
    )


SHOWN = {
    "OLMoE, host loop (2,048)": "olmoe-1b-7b-bs1-s2048-eager",
    "OLMoE, grouped products (2,048)": "olmoe-1b-7b-bs1-s2048-grouped_mm",
    "OLMoE, grouped, as graphs (512)": "olmoe-bs1-s512-grouped_mm-graph",
    "LLaMA-2-7B, eager (100)": t.LLAMA2[0],
    "LLaMA-2-7B, hybrid (100)": t.LLAMA2[1],
}


def account_chart(study: Results) -> Any:
    """Where the launching thread is in a decode step, by account; exposed in full colour."""
    rows: list[dict[str, Any]] = []
    for label, name in SHOWN.items():
        for order, account in enumerate(theme.ACCOUNTS):
            of = {"name": name, "phase": "decode", "account": account}
            whole, exposed = study.p50("account", **of), study.p50("exposed", **of)
            if whole is None or exposed is None:
                continue
            for part, value in (("exposed", exposed), ("hidden", whole - exposed)):
                rows.append(
                    {"run": label, "account": account, "ms": value / MS, "part": part}
                    | {"order": 2 * order + (part == "hidden")}
                )
    return (
        alt.Chart(alt.Data(values=rows))
        .mark_bar(size=22)
        .encode(
            x=alt.X(
                "ms:Q",
                title="a decode step, batch 1 (prompt), ms, profiled; pale: the GPU was busy",
            ),
            y=alt.Y("run:N", sort=list(SHOWN), title=None, axis=alt.Axis(labelLimit=260)),
            color=alt.Color(
                "account:N",
                title="the host is in",
                scale=alt.Scale(domain=list(theme.ACCOUNTS), range=list(theme.ACCOUNTS.values())),
            ),
            opacity=alt.Opacity(
                "part:N",
                legend=None,
                scale=alt.Scale(domain=["exposed", "hidden"], range=[1, theme.HIDDEN]),
            ),
            order="order:Q",
        )
        .properties(width=560, height=150, background="white")
    )


def prediction_chart(study: Results) -> Any:
    """Predicted with bounds beside measured, and the eager step that it was predicted from."""
    rows: list[dict[str, Any]] = []
    for p in t.predicted_graphs(study):
        label = f"{p['name'].removesuffix('-eager')}, {p['phase']}"
        values = {"measured as graphs": p["measured"]["p50"], "predicted": p["predicted"]}
        values["eager step"] = p["base"]
        rows += [{"run": label, "what": k, "ms": v / MS} for k, v in values.items()]
        rows[-2] |= {"low": p["low"] / MS, "high": p["high"] / MS}
    data = alt.Chart(alt.Data(values=rows))
    known = [value for row in rows for value in (row["ms"], row.get("low")) if value]
    scale = alt.Scale(
        type="log", nice=False, domain=[min(known, default=1) * 0.8, max(known, default=10) * 1.25]
    )
    y = alt.Y("run:N", sort=None, title=None, axis=alt.Axis(labelLimit=260))
    x = alt.X("ms:Q", scale=scale, title="step, ms")
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
        .encode(y=y, x=alt.X("low:Q", scale=scale, title="step, ms"), x2="high:Q")
    )
    points = data.mark_point(size=55, filled=True).encode(y=y, x=x, color=colour)
    return (bounds + points).properties(
        width=520, height=22 * max(len(rows) // 3, 1), background="white"
    )
