"""Sections of a run's page for what only some runs have: several ranks, steps of an engine."""

from __future__ import annotations

import polars as pl
import streamlit as st

from analyzer.queries.ranks import RankStep
from analyzer.reports.ranks import RankReport, waits_of
from analyzer.reports.records import RunSummary
from webapp import components, data, format, session
from webapp.charts import ranks as rank_charts


def ranks(report: RunSummary) -> None:
    """Who waits for whom, and what the late rank did meanwhile; nothing for a run of one."""
    found, run_id = report.ranks, report.run.run_id
    if found is None:
        return
    st.subheader("Who waits for whom?", anchor=False)
    if not found.has_verdict:
        st.info(format.prose(found.sentence), icon=":material/info:")
        return
    st.markdown(format.plain(found.sentence))
    if found.charges:
        components.chart(
            rank_charts.charges(found.charges, session.is_dark()),
            "rank-waits",
            "Bars of what each rank waited for another, by the late rank's account",
            pl.DataFrame([vars(row) for row in found.charges]),
            run_id=run_id,
        )
    _one_clock(run_id)
    _rank_table(found)
    with st.expander("What held the late rank"):
        rows = pl.DataFrame([vars(row) for row in found.held_by], infer_schema_length=None)
        components.table(
            components.ns_columns(rows, "ms"),
            "Operators, calls, ranges and kernels that held the late rank",
            "rank-causes",
            exact=rows,
        )


def _rank_table(found: RankReport) -> None:
    exact = pl.DataFrame([vars(row) for row in found.ranks], infer_schema_length=None)
    shown = exact.select(
        "label", "steps", "wait_ns", "transfer_ns", "elapsed_ns", "ahead_ns", "clock_error_ns"
    )
    st.caption(
        "A median step of each rank. Clocks are aligned by the ends of collectives; the error is "
        "what remains of 95 % of them."
    )
    components.table(
        components.ns_columns(shown, "us"),
        "Each rank's waits, transfers and clock, in us",
        "ranks",
        exact=exact,
    )


def _one_clock(run_id: str) -> None:
    """The collectives of the step whose longest wait is the median one."""
    longest: dict[tuple[str, int], tuple[int, RankStep]] = {}
    for step in data.rank_steps(run_id):
        key, wait = (step.phase, step.step_index), waits_of(step) or 0
        if step.repetition == 0 and wait >= longest.get(key, (0, step))[0]:
            longest[key] = wait, step
    if not longest:
        return
    ordered = sorted(longest.values(), key=lambda one: one[0])
    step = ordered[len(ordered) // 2][1]
    rows = data.step_collectives(run_id, step.phase, step.step_index)
    if not rows:
        return
    st.caption(
        f"Collectives of {format.plain(step.phase)} {step.step_index}, a typical step: each ends "
        "on all ranks at once; the triangle marks the rank that came last."
    )
    components.chart(
        rank_charts.one_clock(rows, session.is_dark()),
        "rank-clock",
        "Collectives of one step, a line a rank, on one clock",
        pl.DataFrame([vars(row) for row in rows], infer_schema_length=None),
        run_id=run_id,
    )


def step_groups(report: RunSummary) -> None:
    """Steps of a serving engine by phase and batch; nothing where no mark tells a batch."""
    groups = data.step_groups(report.run.run_id)
    if all(group.batch is None for group in groups):
        return
    st.subheader("Steps by phase and batch", anchor=False)
    st.caption(
        "Medians. Between: from a step's end to the next one's start. Overlap: what part of the "
        "host's range passes beside device work."
    )
    exact = pl.DataFrame([vars(group) for group in groups], infer_schema_length=None)
    components.table(
        components.ns_columns(exact, "ms"),
        "Steps by phase and batch, times in ms",
        "step-groups",
        exact=exact,
    )
