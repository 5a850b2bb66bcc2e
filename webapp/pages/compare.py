"""Two runs or more: what changed between them, and which account did it?"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import polars as pl
import streamlit as st

from analyzer.queries.records import ListedRun
from analyzer.reports.records import ComparedRun, KernelChange, OpChange, Pair
from webapp import browser, components, data, downloads, format, session, url_state
from webapp.browser import Cell, Column, Row
from webapp.charts import accounts, balance, distribution

MOST_RUNS = 8
MOST_CHANGES = 1_000
# A ratio that differs from 1 by less is neither better nor worse.
SAME = 0.03
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
    return url_state.several(
        "Runs to compare, the first is the base",
        list(rows),
        "runs",
        show=lambda r: components.label(r, rows[r].name),
        placeholder="choose two runs or more",
        meant=by_name.get,
    )


# -- all runs


@dataclass(frozen=True)
class Quantity:
    """A column of the matrix: a figure of each run, where less is better."""

    name: str  # in the file
    title: str
    help: str
    of: Callable[[ComparedRun], float | None]
    show: Callable[[float | None], str] = format.duration


def idle_share(run: ComparedRun) -> float | None:
    """The share of the steps' host time in which the device was idle."""
    wall = sum(entry.ns for entry in run.ledger.values())
    exposed = [entry.exposed_ns for entry in run.ledger.values()]
    known = [ns for ns in exposed if ns is not None]
    return sum(known) / wall if wall and len(known) == len(exposed) else None


def latency_of(name: str, run: ComparedRun) -> float | None:
    """The median of an un-profiled time."""
    return run.latency[name].p50_ns if run.latency and name in run.latency else None


def step_of(phase: str, run: ComparedRun) -> float | None:
    """The median step of a phase."""
    return run.phases[phase].median_elapsed_ns if phase in run.phases else None


def quantities(runs: Sequence[ComparedRun]) -> list[Quantity]:
    """What the runs are compared by: un-profiled times as far as measured, steps, costs."""
    measured = dict.fromkeys(name for run in runs for name in run.latency or {})
    phases = dict.fromkeys(phase for run in runs for phase in run.phases)
    return [
        *(
            Quantity(name, f"{name.replace('_', ' ').removesuffix(' step')} p50, un-profiled"
                if name.endswith("_step") else name.upper(),
                "Median, measured without the profiler", partial(latency_of, name))
            for name in measured
        ),
        *(
            Quantity(f"{phase}_step", "step" if phase in ("step", "trace") else f"{phase} step",
                "Median step under the profiler: no latency", partial(step_of, phase))
            for phase in phases
        ),
        Quantity("idle_share", "GPU idle", "Share of the steps' host time", idle_share,
            format.share),
        Quantity("orchestration_ns", "T_Orchestration", "A step, mean",
            lambda run: run.per_step.orchestration_ns),
        Quantity("device_active_ns", "device time", "T_DeviceActive of a step, mean",
            lambda run: run.per_step.device_active_ns),
        Quantity("launches", "launches", "A step, mean", lambda run: run.per_step.launches,
            format.count),
        Quantity("kernels", "kernels", "A step, mean", lambda run: run.per_step.kernels,
            format.count),
    ]  # fmt: skip


def compared(quantity: Quantity, run: ComparedRun, base: ComparedRun) -> Cell:
    """A figure with its ratio to the base's."""
    value, first = quantity.of(run), quantity.of(base)
    text = quantity.show(value)
    if run is base or value is None or not first:
        return Cell(text, value)
    ratio = value / first
    tone = "" if abs(ratio - 1) < SAME else "better" if ratio < 1 else "worse"
    return Cell(f"{text}  ×{ratio:.2f}", value, tone=tone, tip=f"{ratio:.4g} times the base")


def matrix(runs: Sequence[ComparedRun], rows: Mapping[str, ListedRun]) -> None:
    """Every run and figure, with ratios to the base; a click makes another run the base."""
    base = runs[0]
    # First what there is a ratio to.
    asked = sorted(quantities(runs), key=lambda one: one.of(base) is None)
    columns = [
        Column("run", "run", "Opens the run", number=False),
        Column("base", "base", "What the others are compared with: click another", number=False),
        Column("hdbi", "HDBI", "0 waits on the host, 1 on the device"),
        *(Column(one.name, one.title, one.help) for one in asked),
        Column("gpu", "GPU", number=False),
        Column("host", "host", number=False),
    ]
    ids = [run.run_id for run in runs]
    shown: list[Row] = []
    for run in runs:
        others = [run_id for run_id in ids if run_id != run.run_id]
        swapped = browser.address("compare", runs=",".join([run.run_id, *others]))
        listed = rows[run.run_id]
        cells = [
            Cell(
                format.short(run.name, 60),
                run.name,
                browser.address("run", run=run.run_id),
                f"{run.name} · {run.run_id[:12]}",
            ),
            Cell("base") if run is base else Cell("make base", "", swapped),
            Cell(format.index(run.hdbi), run.hdbi, tip=run.reading),
            *(compared(one, run, base) for one in asked),
            *(Cell(format.text(one), one) for one in (listed.gpu, listed.host)),
        ]
        shown.append(Row(run.run_id, cells))
    exact = [
        {"run": run.name, "run_id": run.run_id, "hdbi": run.hdbi}
        | {one.name: one.of(run) for one in asked}
        for run in runs
    ]
    components.link_table(
        "Figures of each run with ratios to the base",
        columns,
        shown,
        "compared-runs",
        pl.DataFrame(exact, infer_schema_length=None),
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
            about=", ".join(names.values()),
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
        about=", ".join(curves),
    )


# -- one run against the base


def choose_pair(found: Sequence[Pair], runs: Sequence[ComparedRun]) -> tuple[Pair, str]:
    """The pair that is shown in full, and the other run's id."""
    others = {run.run_id: pair for run, pair in zip(runs[1:], found, strict=True)}
    chosen = next(iter(others))
    if len(others) > 1:
        chosen = url_state.select(
            "In full: against the base", list(others), "pair", show=lambda r: others[r].other
        )
    return others[chosen], chosen


def pair(found: Pair, other_id: str) -> None:
    """One run against the base."""
    base, other = found.base, found.other
    st.subheader(
        f"{format.plain(format.short(other, 60))} against {format.plain(format.short(base, 60))}",
        anchor=False,
    )
    st.markdown(format.plain(found.verdict))
    if found.turns:
        st.markdown(format.prose(found.turns.sentence))
    if found.warnings:
        lines = [format.prose(line) for line in found.warnings]
        st.warning("  \n".join(lines), icon=":material/warning:")
    if found.sequences:
        st.caption(format.prose(found.sequences.sentence))
    components.chart(
        accounts.waterfall(found.waterfall, f"A: {base}", f"B: {other}", session.is_dark()),
        "waterfall",
        "Waterfall from the base's mean step time to the other's, by account",
        pl.DataFrame([vars(row) for row in found.waterfall], infer_schema_length=None),
        about=f"{other} against {base}",
    )
    with st.expander("Kernels that came, went or changed", expanded=True):
        change_table(found.kernels, KERNEL_COLUMNS, "kernel-changes", "kernels", other_id)
    with st.expander("Ops that came, went or changed"):
        change_table(found.ops, OP_COLUMNS, "op-changes", "ops", other_id)


def change_table(
    changes: Sequence[KernelChange] | Sequence[OpChange],
    columns: tuple[str, ...],
    name: str,
    what: str,
    other_id: str,
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
        f"Which {what}", states, placeholder="all changes", key=f"states {name} {other_id}"
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
    matrix(runs, rows)
    downloads.offer_paper(st.container(), "comparison", data.paper(*chosen[:MOST_RUNS]).write)
    pair(*choose_pair(found.pairs, runs))
    decompositions(runs, names)
    latencies(runs, names)


with components.page("Compare", "What changed between these runs, and which account did it?"):
    main()
