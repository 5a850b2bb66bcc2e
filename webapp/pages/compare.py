"""Two runs or more: what changed between them, and which account did it?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import polars as pl
import streamlit as st

from analyzer.queries.records import ListedRun
from analyzer.reports.records import ComparedRun, KernelChange, OpChange, Pair
from webapp import components, data, format, session, url_state
from webapp.charts import accounts, balance, distribution

MOST_RUNS = 8
MOST_CHANGES = 1_000
KERNEL_COLUMNS = (
    "clean_name", "op", "status", "change_ns", "before", "after", "before_ns", "after_ns",
    "fused", "family",
)  # fmt: skip
OP_COLUMNS = (
    "op", "status", "change_ns", "before_launches", "after_launches", "before_ns", "after_ns",
    "fused",
)  # fmt: skip


def choose(rows: Mapping[str, ListedRun]) -> list[str]:
    """The runs of the URL, the first one the base; names do too."""
    by_name = {row.name: run_id for run_id, row in rows.items()}
    asked = [part for part in url_state.get("runs").split(",") if part]
    known = [part if part in rows else by_name.get(part) for part in asked]
    if asked and None in known:
        st.warning("The store lacks a run of this address; the others are shown.")
    url_state.put(runs=",".join(part for part in known if part))
    return url_state.several(
        "Runs to compare, the first is the base",
        list(rows),
        "runs",
        show=lambda r: components.label(r, rows[r].name),
        placeholder="choose two runs or more",
    )


# -- all runs


def figure_table(runs: Sequence[ComparedRun], rows: Mapping[str, ListedRun]) -> None:
    """Figures of each run, per step."""
    figures = [
        {
            "run": run.name,
            "HDBI": format.digits(run.hdbi),
            "reading": run.reading,
            "steps": run.steps,
            **{
                f"{components.words(name)} a step (ms)": format.digits(
                    None if ns is None else ns / 1e6
                )
                for name, ns in (
                    ("elapsed", run.per_step.elapsed_ns),
                    ("device_active", run.per_step.device_active_ns),
                    ("orchestration", run.per_step.orchestration_ns),
                    ("device_idle", run.per_step.device_idle_ns),
                )
            },
            "launches a step": run.per_step.launches,
            "kernels a step": run.per_step.kernels,
            "host": rows[run.run_id].host,
            "GPU": rows[run.run_id].gpu,
        }
        for run in runs
    ]
    exact = [
        {"run": run.name, "run_id": run.run_id, "hdbi": run.hdbi, **vars(run.per_step)}
        for run in runs
    ]
    components.table(
        pl.DataFrame(figures, infer_schema_length=None),
        "Figures of each run, per step",
        "compared-runs",
        exact=pl.DataFrame(exact, infer_schema_length=None),
    )


def decompositions(runs: Sequence[ComparedRun], names: Mapping[str, str]) -> None:
    """Costs of launching and device time of each run, per step."""
    st.subheader("Decomposition, per step", anchor=False)
    parts = {f"{i} {names[run.run_id]}": run.per_step for i, run in enumerate(runs, start=1)}
    if any(part.ft_ns is not None or part.device_active_ns for part in parts.values()):
        components.chart(
            balance.decomposition(parts, session.is_dark()),
            "decompositions",
            "dFT, dCT, dKT and device active time of each run, per step",
            pl.DataFrame(
                [{"label": label, **vars(part)} for label, part in parts.items()],
                infer_schema_length=None,
            ),
        )


def latencies(runs: Sequence[ComparedRun], names: Mapping[str, str]) -> None:
    """Un-profiled TTFT, TPOT and ITL."""
    st.subheader("Latency, un-profiled", anchor=False)
    measured = {run.run_id: run.latency for run in runs if run.latency}
    if not measured:
        st.caption("None of these runs measured un-profiled latency (TTFT, TPOT, ITL).")
        return
    rows = [
        {"run": run.name, "quantity": quantity, **vars(values)}
        for run in runs
        for quantity, values in (run.latency or {}).items()
    ]
    table = pl.DataFrame(rows, infer_schema_length=None)
    components.table(
        components.ns_columns(table, "ms"),
        "Un-profiled latency of each run: p50, p95, p99",
        "latency",
        exact=table,
    )
    for quantity in ("ttft", "tpot", "itl"):
        latency_curves(quantity, [r for r, found in measured.items() if quantity in found], names)


def latency_curves(quantity: str, run_ids: Sequence[str], names: Mapping[str, str]) -> None:
    """The distribution of one quantity in each run; nothing where none measured it."""
    found = {names[run_id]: data.distribution(run_id, quantity) for run_id in run_ids}
    curves = {name: curve for name, curve in found.items() if not curve.is_empty()}
    if not curves:
        return
    components.chart(
        distribution.cdf(curves, quantity.upper(), None, session.is_dark()),
        quantity,
        f"Cumulative distribution of {quantity.upper()} of each run",
        pl.concat(
            curve.select(pl.lit(name).alias("run"), pl.all()) for name, curve in curves.items()
        ),
    )


# -- one run against the base


def pair(found: Pair, number: int) -> None:
    """One run against the base."""
    base, other = found.base, found.other
    st.subheader(
        f"{format.plain(format.short(other, 60))} against {format.plain(format.short(base, 60))}",
        anchor=False,
    )
    st.markdown(format.plain(found.verdict))
    if found.turns:
        st.markdown(format.prose(found.turns.sentence))
    for line in found.warnings:
        st.warning(format.prose(line), icon=":material/warning:")
    if found.sequences:
        st.caption(format.prose(found.sequences.sentence))
    components.chart(
        accounts.waterfall(found.waterfall, f"A: {base}", f"B: {other}", session.is_dark()),
        f"waterfall-{number}",
        "Waterfall from the base's mean step time to the other's, by account",
        pl.DataFrame([vars(row) for row in found.waterfall], infer_schema_length=None),
    )
    with st.expander("Kernels that came, went or changed", expanded=True):
        change_table(found.kernels, KERNEL_COLUMNS, f"kernel-changes-{number}", "kernels")
    with st.expander("Ops that came, went or changed"):
        change_table(found.ops, OP_COLUMNS, f"op-changes-{number}", "ops")


def change_table(
    changes: Sequence[KernelChange] | Sequence[OpChange],
    columns: tuple[str, ...],
    name: str,
    what: str,
) -> None:
    """Kernels or ops that came, went, or changed."""
    rows = pl.DataFrame(
        [{**vars(change), "fused": fused_text(change)} for change in changes],
        infer_schema_length=None,
    )
    if rows.is_empty():
        st.info(f"No {what} in either run.")
        return
    states: list[str] = sorted(set(rows["status"].to_list()))
    wanted = st.multiselect(
        f"Which {what}", states, placeholder="all changes", key=f"states {name}"
    )
    shown = rows.filter(pl.col("status").is_in(wanted)) if wanted else rows
    st.caption("A is the base, B the other run; counts and times are those of a step.")
    known = [column for column in columns if column in rows.columns]
    components.table(
        components.ns_columns(shown.select(known).head(MOST_CHANGES)),
        f"Changes of {what}, largest first, per step",
        name,
        exact=shown,
    )


def fused_text(change: KernelChange | OpChange) -> str | None:
    """Which fused kernels took a vanished one's work, or which ops a fused one does."""
    if not change.fused:
        return None
    before = change.before if isinstance(change, KernelChange) else change.before_launches
    return f"{'now in' if before else 'does'} {', '.join(change.fused)}"


def main() -> None:
    """The page."""
    rows = data.listed_runs()
    if not rows:
        components.no_runs()
        return
    chosen = choose(rows)
    if len(chosen) < 2:
        st.info("Choose two runs or more: the first is what the others are compared with.")
        return
    if len(chosen) > MOST_RUNS:
        st.info(f"The first {MOST_RUNS} of them are compared.")
    found = data.comparison(chosen[:MOST_RUNS])
    runs = found.runs
    names = {run.run_id: format.short(run.name, 40) for run in runs}
    figure_table(runs, rows)
    for number, compared in enumerate(found.pairs, start=1):
        pair(compared, number)
    decompositions(runs, names)
    latencies(runs, names)


with components.page("Compare", "What changed between these runs, and which account did it?"):
    main()
