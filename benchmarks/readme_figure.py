"""Draws README's figure: where a step's time goes, eager, compiled and as one CUDA graph.

Usage: python -m benchmarks.readme_figure [OUT.png], from the top folder
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import altair as alt
import polars as pl

from analyzer import queries
from analyzer.classify import ACCOUNTS
from analyzer.ingest import ingest
from webapp import theme

SAMPLES = Path(__file__).parent.parent / "analyzer" / "samples"
RUNS = {
    "gpt2-prefill-bs1-s512": "eager",
    "gpt2-prefill-bs1-s512-compile": "torch.compile",
    "gpt2-prefill-bs1-s512-graph": "CUDA graph",
}
TAIL = "device only"
COLOURS = {**theme.ACCOUNTS, TAIL: theme.DEVICE_TAIL}


def step_rows() -> list[dict[str, object]]:
    """Mean step of each run: ms by account, and the device time after the host was done."""
    rows: list[dict[str, object]] = []
    with tempfile.TemporaryDirectory() as folder:
        db = Path(folder) / "samples.duckdb"
        ingest([SAMPLES / name for name in RUNS], db, jobs=1)
        with queries.connect(db) as connection:
            for name, label in RUNS.items():
                steps = queries.steps(connection, queries.find_run(connection, name))
                sums = queries.added(steps)
                for order, account in enumerate([*ACCOUNTS, TAIL]):
                    ns = (
                        sums["device_tail_ns"] if account == TAIL else sums["ledger"][account]["ns"]
                    )
                    rows.append(
                        {
                            "run": label,
                            "account": account,
                            "order": order,
                            "ms": ns / len(steps) / 1e6,
                            "hdbi": f"HDBI {sums['hdbi']:.2f}",
                        }
                    )
    return rows


def figure(rows: list[dict[str, object]]) -> alt.LayerChart:
    """Stacked bars, one a run."""
    frame = pl.DataFrame(rows)
    order = list(RUNS.values())
    bars = (
        alt.Chart(frame)
        .mark_bar(size=30)
        .encode(
            x=alt.X(
                "ms:Q",
                scale=alt.Scale(domainMax=11.5, nice=False),
                title="mean step, ms (profiled; GPT-2, 512 tokens, batch 1, H200)",
            ),
            y=alt.Y("run:N", sort=order, title=None),
            color=alt.Color(
                "account:N",
                sort=list(COLOURS),
                scale=alt.Scale(domain=list(COLOURS), range=list(COLOURS.values())),
                title="the host is in",
            ),
            order="order:Q",
        )
    )
    total = frame.group_by("run", "hdbi").agg(pl.col("ms").sum())
    labels = (
        alt.Chart(total)
        .mark_text(align="left", dx=6, fontSize=12)
        .encode(x="ms:Q", y=alt.Y("run:N", sort=order), text="hdbi:N")
    )
    return (bars + labels).properties(width=640, height=150, background="white")


if __name__ == "__main__":
    target = sys.argv[1] if len(sys.argv) > 1 else "docs/images/eager-compile-graph.png"
    figure(step_rows()).save(target, scale_factor=2)
    sys.stdout.write(f"{target}\n")
