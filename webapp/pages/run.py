"""Does the GPU wait for the host, where did the time go, and what to try?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import polars as pl
import streamlit as st

from analyzer.queries.costs import Step, StepTotals, Totals
from analyzer.queries.records import Coverage, Run
from analyzer.reports.records import Prediction, Predictions, RunSummary, Verdict
from webapp import components, data, downloads, format, session, url_state
from webapp.charts import accounts, balance
from webapp.sections import run as run_sections
from webapp.sections.advice import advice

ALL_STEPS = "all steps"
MOST_STEPS_DRAWN = 500


# -- figures


def facts(run: Run) -> str:
    """What was run, on what."""
    found = (
        run.model,
        run.mode,
        None if run.batch_size is None else f"batch {run.batch_size}",
        None if run.prompt_len is None else f"length {run.prompt_len}",
        run.dtype,
        run.attention,
        run.gpu,
        run.host,
    )
    return " · ".join(format.short(str(fact), 40) for fact in found if fact is not None)


def verdict(
    found: Verdict, part: StepTotals, predicted: Sequence[Prediction], doubt: str | None
) -> None:
    """The answer: the sentence, and the figures that it stands on.

    Args:
        doubt: What the trace cannot prove.
    """
    st.subheader("Does the GPU wait for the host?", anchor=False)
    if doubt:
        st.warning(format.prose(f"Evidence: {doubt}"), icon=":material/warning:")
    with st.container(border=True):
        st.markdown(format.plain(found.sentence))
        row = st.container(horizontal=True)
        row.metric(
            "GPU waits", format.share(found.idle_share), width=150,
            help=f"Of the steps' host time, while no device ran anything: "
            f"{format.exact(found.idle_ns)}",
        )  # fmt: skip
        if found.most_exposed_account:
            entry = part.ledger[found.most_exposed_account]
            row.metric(
                f"of it in {found.most_exposed_account}", format.duration(entry.exposed_ns),
                help=f"The largest exposed account: {format.exact(entry.exposed_ns)}", width=210,
            )  # fmt: skip
        row.metric(
            f"HDBI, {found.reading}", format.index(found.hdbi), width=190,
            help="T_DeviceActive / (T_DeviceActive + T_Orchestration): 0 host-bound, 1 "
            f"device-bound. Exact: {found.hdbi}",
        )  # fmt: skip
        for row_of in predicted:
            of_phase = "" if row_of.phase in ("step", "trace") else f" a {row_of.phase} step"
            row.metric(
                f"as CUDA graphs{of_phase}", format.duration(row_of.predicted_ns),
                f"from {format.duration(row_of.base_ns)}", delta_color="off", delta_arrow="off",
                help=f"Predicted, {format.duration(row_of.low_ns)} to "
                f"{format.duration(row_of.high_ns)}; below is what that stands on", width=230,
            )  # fmt: skip


def hdbi_scale(report: RunSummary, found: Verdict, part: StepTotals) -> None:
    """HDBI on its scale."""
    if found.hdbi is None:
        return
    components.chart(
        balance.hdbi_scale(found.hdbi, found.reading, session.is_dark()),
        "hdbi",
        f"HDBI {found.hdbi:.3f} on a scale from 0, host-bound, to 1, device-bound",
        pl.DataFrame(
            {
                "hdbi": [found.hdbi],
                "device_active_ns": [part.device_active_ns],
                "orchestration_ns": [part.orchestration_ns],
            }
        ),
        run_id=report.run.run_id,
    )


def figures(part: StepTotals, totals: Totals) -> None:
    """The key figures."""
    times: Mapping[str, tuple[int | None, str]] = {
        "T_DeviceActive": (part.device_active_ns, "Sum of the kernels' durations"),
        "T_Orchestration": (
            part.orchestration_ns,
            "Sum of dFT, dCT and dKT: what the host spends to get the kernels launched; costs, "
            "which may overlap the device's work",
        ),
        "TKLQT": (part.tklqt_ns, "Sum over kernels from launch call to start: launch and queueing"),
        "device idle": (part.device_idle_ns, "In the steps, while no device ran anything"),
    }
    floor = totals.launch_floor_ns
    row = st.container(horizontal=True)
    for label, text, help in (
        *(
            (label, format.duration(ns), f"{means}. Exact: {format.exact(ns)}")
            for label, (ns, means) in times.items()
        ),
        ("launches", format.count(part.launches), f"{part.graph_launches} of CUDA graphs"),
        ("kernels", format.count(part.kernels), "That ran in the steps"),
        (
            "launch floor",
            format.duration(floor),
            "From launch call to kernel start of an empty kernel: the least that a launch costs "
            f"here. {format.exact(floor)}, from: {totals.floor_source}",
        ),
    ):
        row.metric(label, text, help=help, border=True, width=172)


def decomposition(report: RunSummary, parts: Mapping[str, StepTotals]) -> None:
    """Costs of launching and device time of each phase."""
    st.subheader("What launching costs", anchor=False)
    st.caption("A sum of costs, which may overlap the device's work: not a part of wall time.")
    if not any(part.device_active_ns or part.ft_ns for part in parts.values()):
        st.info("There is nothing to decompose: the run has no launch with a kernel.")
        return
    components.chart(
        balance.decomposition(parts, session.is_dark()),
        "decomposition",
        "Stacked bars of dFT, dCT and dKT on the host, and of device active time, by phase",
        pl.DataFrame(
            [
                {
                    "label": name,
                    "ft_ns": part.ft_ns,
                    "ct_ns": part.ct_ns,
                    "kt_ns": part.kt_ns,
                    "device_active_ns": part.device_active_ns,
                }
                for name, part in parts.items()
            ],
            infer_schema_length=None,
        ),
        run_id=report.run.run_id,
    )


def ledger(report: RunSummary, part: StepTotals) -> None:
    """Time of the launching thread by account."""
    st.subheader("Where the launching thread was", anchor=False)
    st.caption("Every nanosecond of the steps belongs to one account; solid: the device was idle.")
    if not any(entry.ns for entry in part.ledger.values()):
        st.info("No thread launches anything in this run, so there is no ledger.")
        return
    components.chart(
        accounts.ledger(part.ledger, session.is_dark()),
        "ledger",
        "Bars of each account's time on the launching thread, exposed and hidden",
        pl.DataFrame([{"account": name, **vars(entry)} for name, entry in part.ledger.items()]),
        run_id=report.run.run_id,
    )


# -- predictions


def in_phase(found: Predictions | None, phase: str) -> list[Prediction]:
    """The predictions of a phase, or all."""
    return [row for row in found.predictions if phase in (ALL_STEPS, row.phase)] if found else []


def predictions(found: Predictions, rows: Sequence[Prediction]) -> None:
    """What a change would win, with bounds, and where such predictions were held true."""
    exact = pl.DataFrame(
        [
            {
                "change": row.what,
                "phase": row.phase,
                "now_ns": row.base_ns,
                "predicted_ns": row.predicted_ns,
                "low_ns": row.low_ns,
                "high_ns": row.high_ns,
            }
            for row in rows
        ],
        infer_schema_length=None,
    )
    components.table(
        components.ns_columns(exact, "ms"),
        "Step times predicted after a change, with their bounds, in ms",
        "predictions",
        exact=exact,
    )
    for reason in dict.fromkeys(f"{r.what}: {r.reason}" for r in rows if r.reason):
        st.caption(format.plain(reason))
    for note in (*found.notes, found.validated):
        st.caption(format.plain(note))


# -- steps


def steps(report: RunSummary, phase: str) -> None:
    """Each step's accounts and figures."""
    rows = [row for row in report.steps if phase in (ALL_STEPS, row.phase)]
    if not any(entry.ns for row in rows for entry in row.ledger.values()):
        return
    st.subheader("Step by step", anchor=False)
    st.caption("Profiled times, not latencies.")
    components.chart(
        accounts.steps(rows[:MOST_STEPS_DRAWN], session.is_dark()),
        "steps",
        f"Host time of {len(rows)} steps by account",
        pl.DataFrame(
            [
                {"step_id": row.step_id, "name": row.name, "account": account, **vars(entry)}
                for row in rows
                for account, entry in row.ledger.items()
            ],
            infer_schema_length=None,
        ),
        run_id=report.run.run_id,
    )
    with st.expander("The steps as a table"):
        step_table(rows)


def step_table(rows: list[Step]) -> None:
    """Each step's times."""
    shown = [
        {
            "name": row.name,
            "phase": row.phase,
            "elapsed_ns": row.elapsed_ns,
            "wall_ns": row.wall_ns,
            "device_active_ns": row.device_active_ns,
            "orchestration_ns": row.orchestration_ns,
            "device_idle_ns": row.device_idle_ns,
            "hdbi": format.digits(row.hdbi),
            "launches": row.launches,
            "kernels": row.kernels,
        }
        for row in rows
    ]
    exact = [{key: value for key, value in vars(row).items() if key != "ledger"} for row in rows]
    components.table(
        components.ns_columns(pl.DataFrame(shown, infer_schema_length=None), "ms"),
        "Steps with their times in ms",
        "step-table",
        exact=pl.DataFrame(exact, infer_schema_length=None),
    )


# -- latency and quality


def latency(report: RunSummary) -> None:
    """Un-profiled times, if measured."""
    if not report.latency:
        st.caption(
            "No un-profiled latency was measured with this run. Times here are taken under the "
            "profiler, which slows the host: they are no latencies."
        )
        return
    rows = pl.DataFrame([{"quantity": name, **vars(row)} for name, row in report.latency.items()])
    st.markdown("**Latency, un-profiled**")
    components.table(
        components.ns_columns(rows, "ms"),
        "Un-profiled latency: n, median, p95, p99, mean",
        "latency",
        exact=rows,
    )


def warnings(report: RunSummary) -> None:
    """What the reader should know before trusting a number."""
    st.subheader("What to know about this run", anchor=False)
    for row in report.quality:
        text = format.prose(row.message)
        if row.severity == "warning":
            st.warning(text, icon=":material/warning:")
        else:
            st.info(text, icon=":material/info:")
    rows = coverage(report.coverage, report.totals)
    for phase, value in (report.inflation or {}).items():
        rows[f"profiler inflation, {phase}"] = f"{value:.2f} times"
    components.table(
        pl.DataFrame({"coverage": list(rows), "value": list(rows.values())}),
        "How much of the run is linked and attributed",
        "coverage",
    )


def coverage(counts: Coverage, totals: Totals) -> dict[str, str]:
    """How much of the run is linked and attributed, in words."""
    events, launches = counts.device_events, counts.launches

    def part(count: int, whole: int) -> str:
        share = format.share(count / whole) if whole else format.UNKNOWN
        return f"{count:,} of {whole:,} ({share})"

    return {
        "device events with their launch": part(counts.with_launch, events),
        "device events with an op": part(counts.with_op, events),
        "of them by a graph's capture": part(counts.op_from_capture, events),
        "clean launches (stream seen idle)": part(counts.clean_launches, launches),
        "device events in a step": part(counts.in_step, events),
        "orphans' device time": format.duration(totals.orphan_device_ns),
        "kernels before their launch call": format.count(totals.negative_gaps),
        "events with bad times": format.count(totals.bad_time_events),
        "launch floor from": str(totals.floor_source),
    }


def main() -> None:
    """The page."""
    run = components.choose_run("run")
    if run is None:
        return
    run_id = run.run_id
    report = data.summary(run_id)
    row = st.container(horizontal=True, vertical_alignment="bottom")
    row.text(facts(report.run))
    downloads.offer_paper(row, "report", data.paper(run_id).write)
    phases = report.phases
    phase = ALL_STEPS
    if len(phases) > 1:
        phase = url_state.select("Phase", [ALL_STEPS, *phases], "phase", place=row)
    else:
        url_state.check("phase", [ALL_STEPS, *phases])
    part = report.measured if phase == ALL_STEPS else phases[phase]
    found = report.verdict if phase == ALL_STEPS else report.phase_verdicts[phase]
    totals = report.totals
    predicted = data.predictions(run_id)
    changes = in_phase(predicted, phase)
    graphs = [c for c in changes if c.what == "graphs" and c.predicted_ns is not None]
    verdict(found, part, graphs, report.evidence.sentence)
    left, right = st.columns(2, gap="large")
    with left:
        ledger(report, part)
    with right:
        st.subheader("What would a change win?", anchor=False)
        if predicted and changes:
            predictions(predicted, changes)
        else:
            st.caption("What this trace holds is not enough to predict a change.")
        if totals.kernels and "hdbi" not in report.evidence.bounds:
            for line in advice(part, totals.launch_floor_ns):
                st.markdown(f"- {line}")
    figures(part, totals)
    hdbi_scale(report, found, part)
    decomposition(report, phases if phase == ALL_STEPS else {phase: part})
    run_sections.ranks(report)
    run_sections.step_groups(report)
    steps(report, phase)
    latency(report)
    warnings(report)


with components.page("Run", "Does the GPU wait for the host, where did the time go, what to try?"):
    main()
