"""Is this run host-bound, where did its time go, and what to try?"""

from __future__ import annotations

from typing import Any

import polars as pl
import streamlit as st

from webapp import address, charts, data, format, frame


def advice(report: dict[str, Any], part: dict[str, Any]) -> list[str]:
    """What dominates and what the method suggests, with the numbers behind it."""
    found: list[str] = []
    device, orchestration = part["device_active_ns"], part["orchestration_ns"]
    launches, kernels = part["launches"], part["kernels"]
    if part["hdbi"] is not None and part["hdbi"] >= charts.DEVICE_BOUND_FROM:
        found.append(
            f"**Device work dominates**: {format.duration(device)} of kernels against "
            f"{format.duration(orchestration)} of orchestration. Faster kernels, smaller types or "
            "fewer bytes pay; host-side work is mostly hidden."
        )
        return found
    costs = {key: part[key] for key in ("ft_ns", "ct_ns", "kt_ns") if part[key] is not None}
    if not costs or orchestration is None:
        return ["Without a launch floor the shares of the host's cost are unknown."]
    cost = format.duration(orchestration / max(launches, 1))
    each = f"{format.count(launches)} launches, {cost} each"
    worst = max(costs, key=lambda key: costs[key])
    share = format.share(costs[worst] / orchestration) if orchestration else format.UNKNOWN
    if worst == "ft_ns":
        found.append(
            f"**The software stack dominates**: dFT is {format.duration(costs[worst])}, {share} of "
            f"T_Orchestration ({each}). Try torch.compile, CUDA graphs, or a runtime with less "
            "Python and dispatch between launches; a faster CPU core helps in proportion."
        )
    elif worst == "ct_ns":
        found.append(
            f"**Library translation dominates**: dCT is {format.duration(costs[worst])}, {share} "
            f"of T_Orchestration ({each}). Fewer and larger library calls, kernels chosen ahead of "
            "time, or CUDA graphs avoid it."
        )
    else:
        found.append(
            f"**The launch count dominates**: dKT is {format.duration(costs[worst])}, {share} of "
            f"T_Orchestration ({each}). Fuse kernels or replay a CUDA graph: each launch costs at "
            f"least the floor of {format.duration(report['totals']['launch_floor_ns'])}."
        )
    graphs = part["graph_launches"] or 0
    if launches and kernels and not graphs and launches > 50:
        found.append(
            f"No CUDA graph was replayed: {format.count(kernels)} kernels came from "
            f"{format.count(launches)} launches. A graph makes one launch of many."
        )
    ledger = part["ledger"]
    idle = sum(entry["exposed_ns"] for entry in ledger.values())
    if idle:
        account = max(ledger, key=lambda name: ledger[name]["exposed_ns"])
        gain = ledger[account]["exposed_ns"]
        found.append(
            f"The most that a change in **{format.plain(account)}** can win is its exposed time, "
            f"{format.duration(gain)} of {format.duration(part['wall_ns'])} host time."
        )
    return found


def figures(part: dict[str, Any], totals: dict[str, Any]) -> None:
    """The key figures."""
    row = st.container(horizontal=True)
    for label, text, help in (
        ("HDBI", format.index(part["hdbi"]), f"exact: {part['hdbi']}"),
        (
            "T_DeviceActive",
            format.duration(part["device_active_ns"]),
            _exact(part, "device_active_ns"),
        ),
        (
            "T_Orchestration",
            format.duration(part["orchestration_ns"]),
            _exact(part, "orchestration_ns"),
        ),
        ("TKLQT", format.duration(part["tklqt_ns"]), _exact(part, "tklqt_ns")),
        ("device idle", format.duration(part["device_idle_ns"]), _exact(part, "device_idle_ns")),
        ("launches", format.count(part["launches"]), f"{part['graph_launches']} of CUDA graphs"),
        ("kernels", format.count(part["kernels"]), f"{part['kernels']}"),
        (
            "launch floor",
            format.duration(totals["launch_floor_ns"]),
            f"{format.exact(totals['launch_floor_ns'])}, from: {totals['floor_source']}",
        ),
    ):
        row.metric(label, text, help=help, border=True, width=172)


def _exact(part: dict[str, Any], key: str) -> str:
    return format.exact(part[key])


def warnings(report: dict[str, Any]) -> None:
    """What the reader should know before trusting a number."""
    for row in report["quality"]:
        text = format.prose(row["message"])
        if row["severity"] == "warning":
            st.warning(text, icon=":material/warning:")
        else:
            st.info(text, icon=":material/info:")
    coverage, totals = report["coverage"], report["totals"]
    events = coverage["device_events"]

    def part(key: str, whole: int) -> str:
        of = format.share(coverage[key] / whole) if whole else format.UNKNOWN
        return f"{coverage[key]:,} of {whole:,} ({of})"

    rows = [
        ("device events with their launch", part("with_launch", events)),
        ("device events with an op", part("with_op", events)),
        ("of them by a graph's capture", part("op_from_capture", events)),
        ("clean launches (stream seen idle)", part("clean_launches", coverage["launches"])),
        ("device events in a step", part("in_step", events)),
        ("orphans' device time", format.duration(totals["orphan_device_ns"])),
        ("kernels before their launch call", format.count(totals["negative_gaps"])),
        ("events with bad times", format.count(totals["bad_time_events"])),
        ("launch floor from", str(totals["floor_source"])),
    ]
    inflation = report["inflation"]
    for phase, value in (inflation or {}).items():
        rows.append((f"profiler inflation, {phase}", f"{value:.2f} times"))
    frame.table(
        pl.DataFrame({"coverage": [r[0] for r in rows], "value": [r[1] for r in rows]}),
        "How much of the run is linked and attributed",
        "coverage",
    )


def predictions(run_id: str, phase: str) -> None:
    """What a change would win, with bounds, and where such predictions were held true."""
    value = data.ask("predictions", run_id)
    rows = [
        row
        for row in (value["predictions"] if value else [])
        if phase in ("all steps", row["phase"])
    ]
    if not rows:
        return
    st.subheader("What would a change win?", anchor=False)
    exact = pl.DataFrame(
        [
            {
                "change": row["what"],
                "phase": row["phase"],
                "now_ns": row["base_ns"],
                **{key: row[key] for key in ("predicted_ns", "low_ns", "high_ns")},
            }
            for row in rows
        ],
        infer_schema_length=None,
    )
    frame.table(
        frame.ns_columns(exact, "ms"),
        "Step times predicted after a change, with their bounds, in ms",
        "predictions",
        exact=exact,
    )
    for reason in dict.fromkeys(f"{r['what']}: {r['reason']}" for r in rows if r["reason"]):
        st.caption(format.plain(reason))
    for note in (*value["notes"], value["validated"]):
        st.caption(format.plain(note))


def latency(report: dict[str, Any]) -> None:
    """Un-profiled times, if measured."""
    if not report["latency"]:
        st.caption(
            "No un-profiled latency was measured with this run. Times here are taken under the "
            "profiler, which slows the host: they are no latencies."
        )
        return
    rows = pl.DataFrame([{"quantity": name, **row} for name, row in report["latency"].items()])
    st.markdown("**Latency, un-profiled**")
    frame.table(
        frame.ns_columns(rows, "ms"),
        "Un-profiled latency: n, median, p95, p99, mean",
        "latency",
        exact=rows,
    )


def main() -> None:
    """The page."""
    run = frame.choose_run()
    if run is None:
        return
    run_id = run["run_id"]
    report = data.ask("summary", run_id)
    about = report["run"]
    facts = (
        about["model"],
        about["mode"],
        None if about["batch_size"] is None else f"batch {about['batch_size']}",
        None if about["prompt_len"] is None else f"length {about['prompt_len']}",
        about["dtype"],
        about["attention"],
        about["gpu"],
        about["host"],
    )
    st.text(" · ".join(format.short(str(fact), 40) for fact in facts if fact is not None))
    frame.links(run_id, "run")
    phases = list(report["phases"])
    phase = "all steps"
    if len(phases) > 1:
        phase = address.select("Phase", ["all steps", *phases], "phase", default="all steps")
    part = report["measured"] if phase == "all steps" else report["phases"][phase]
    totals, dark = report["totals"], frame.is_dark()
    st.subheader("Is it host-bound?", anchor=False)
    st.markdown(format.plain(report["verdict"]["sentence"]))
    if part["hdbi"] is not None:
        frame.chart(
            charts.hdbi_scale(part["hdbi"], report["verdict"]["reading"], dark),
            "hdbi",
            f"HDBI {part['hdbi']:.3f} on a scale from 0, host-bound, to 1, device-bound",
            pl.DataFrame(
                [{key: part[key] for key in ("hdbi", "device_active_ns", "orchestration_ns")}]
            ),
            of=run_id,
        )
    figures(part, totals)
    if totals["kernels"]:
        for line in advice(report, part):
            st.markdown(f"- {line}")
    left, right = st.columns(2, gap="large")
    with left:
        st.subheader("What launching costs", anchor=False)
        st.caption("A sum of costs, which may overlap the device's work: not a part of wall time.")
        rows = [
            {
                "label": name,
                **{k: value[k] for k in ("ft_ns", "ct_ns", "kt_ns", "device_active_ns")},
            }
            for name, value in (
                report["phases"].items() if phase == "all steps" else [(phase, part)]
            )
        ]
        if any(row["device_active_ns"] or row["ft_ns"] for row in rows):
            frame.chart(
                charts.decomposition(rows, dark),
                "decomposition",
                "Stacked bars of dFT, dCT and dKT on the host, and of device active time, by phase",
                pl.DataFrame(rows, infer_schema_length=None),
                of=run_id,
            )
        else:
            st.info("There is nothing to decompose: the run has no launch with a kernel.")
    with right:
        st.subheader("Where the launching thread was", anchor=False)
        st.caption(
            "Every nanosecond of the steps belongs to one account; solid: the device was idle."
        )
        if any(entry["ns"] for entry in part["ledger"].values()):
            frame.chart(
                charts.ledger(part["ledger"], dark),
                "ledger",
                "Bars of each account's time on the launching thread, exposed and hidden",
                pl.DataFrame([{"account": a, **e} for a, e in part["ledger"].items()]),
                of=run_id,
            )
        else:
            st.info("No thread launches anything in this run, so there is no ledger.")
    predictions(run_id, phase)
    steps(report, phase, dark)
    latency(report)
    st.subheader("What to know about this run", anchor=False)
    warnings(report)


def steps(report: dict[str, Any], phase: str, dark: bool) -> None:
    """Each step's accounts and figures."""
    rows = [row for row in report["steps"] if phase in ("all steps", row["phase"])]
    if not rows or not any(entry["ns"] for row in rows for entry in row["ledger"].values()):
        return
    st.subheader("Step by step", anchor=False)
    st.caption("Profiled times, not latencies.")
    frame.chart(
        charts.steps(rows[:500], dark),
        "steps",
        f"Host time of {len(rows)} steps by account",
        pl.DataFrame(
            [
                {"step_id": row["step_id"], "name": row["name"], "account": account, **entry}
                for row in rows
                for account, entry in row["ledger"].items()
            ],
            infer_schema_length=None,
        ),
        of=report["run"]["run_id"],
    )
    exact = pl.DataFrame(
        [{k: v for k, v in row.items() if k != "ledger"} for row in rows], infer_schema_length=None
    )
    keys = ("elapsed_ns", "wall_ns", "device_active_ns", "orchestration_ns", "device_idle_ns")
    with st.expander("The steps as a table"):
        frame.table(
            frame.ns_columns(
                pl.DataFrame(
                    [
                        {
                            "name": row["name"],
                            "phase": row["phase"],
                            **{key: row[key] for key in keys},
                            "hdbi": format.digits(row["hdbi"]),
                            "launches": row["launches"],
                            "kernels": row["kernels"],
                        }
                        for row in rows
                    ],
                    infer_schema_length=None,
                ),
                "ms",
            ),
            "Steps with their times in ms",
            "step-table",
            exact=exact,
        )


with frame.page("Run", "Is this run host-bound, where did its time go, and what to try?"):
    main()
