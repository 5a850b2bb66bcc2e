"""Two runs or more: what changed between them, and which account did it?"""

from __future__ import annotations

from typing import Any

import polars as pl
import streamlit as st

from webapp import address, charts, data, format, frame

MOST_RUNS = 8


def choose(rows: dict[str, dict[str, Any]]) -> list[str]:
    """The runs of the address, the first one the base; names do too."""
    by_name = {row["name"]: run_id for run_id, row in rows.items()}
    asked = [part for part in address.get("runs").split(",") if part]
    known = [part if part in rows else by_name.get(part) for part in asked]
    if asked and None in known:
        st.warning("The store lacks a run of this address; the others are shown.")
    address.put(runs=",".join(part for part in known if part))
    return address.several(
        "Runs to compare, the first is the base",
        list(rows),
        "runs",
        show=lambda r: frame.label(rows[r]),
        placeholder="choose two runs or more",
    )


def fused_text(change: dict[str, Any]) -> str | None:
    """Which fused kernels took a vanished one's work, or which ops a fused one does."""
    if not change["fused"]:
        return None
    new = not (change.get("before") or change.get("before_launches"))
    return f"{'does' if new else 'now in'} {', '.join(change['fused'])}"


def change_table(
    changes: list[dict[str, Any]], keys: tuple[str, ...], name: str, what: str
) -> None:
    """Kernels or ops that came, went, or changed."""
    rows = pl.DataFrame(
        [{**change, "fused": fused_text(change)} for change in changes], infer_schema_length=None
    )
    if rows.is_empty():
        st.info(f"No {what} in either run.")
        return
    states = sorted(set(rows["status"].to_list()))
    wanted = st.multiselect(
        f"Which {what}", states, placeholder="all changes", key=f"states {name}"
    )
    shown = rows.filter(pl.col("status").is_in(wanted)) if wanted else rows
    st.caption("A is the base, B the other run; counts and times are those of a step.")
    frame.table(
        frame.ns_columns(shown.select(*(key for key in keys if key in rows.columns)).head(1_000)),
        f"Changes of {what}, largest first, per step",
        name,
        exact=shown,
    )


def latencies(runs: list[dict[str, Any]], names: dict[str, str]) -> None:
    """Un-profiled TTFT, TPOT and ITL."""
    measured = [run for run in runs if run["latency"]]
    if not measured:
        st.caption("None of these runs measured un-profiled latency (TTFT, TPOT, ITL).")
        return
    rows = [
        {"run": run["name"], "quantity": quantity, **values}
        for run in measured
        for quantity, values in run["latency"].items()
    ]
    table = pl.DataFrame(rows, infer_schema_length=None)
    frame.table(
        frame.ns_columns(table, "ms"),
        "Un-profiled latency of each run: p50, p95, p99",
        "latency",
        exact=table,
    )
    for quantity in ("ttft", "tpot", "itl"):
        curves = {
            names[run["run_id"]]: data.distribution(run["run_id"], quantity)
            for run in measured
            if quantity in run["latency"]
        }
        curves = {name: curve for name, curve in curves.items() if not curve.is_empty()}
        if curves:
            frame.chart(
                charts.cdf(curves, quantity.upper(), None, frame.is_dark()),
                quantity,
                f"Cumulative distribution of {quantity.upper()} of each run",
                pl.concat(
                    curve.select(pl.lit(name).alias("run"), pl.all())
                    for name, curve in curves.items()
                ),
            )


def pair(found: dict[str, Any], number: int, dark: bool) -> None:
    """One run against the base."""
    st.subheader(
        f"{format.plain(format.short(found['other'], 60))} against "
        f"{format.plain(format.short(found['base'], 60))}",
        anchor=False,
    )
    st.markdown(format.plain(found["verdict"]))
    if found["turns"]:
        st.markdown(format.prose(found["turns"]["sentence"]))
    for line in found["warnings"]:
        st.warning(format.prose(line), icon=":material/warning:")
    if found["sequences"]:
        st.caption(format.prose(found["sequences"]["sentence"]))
    frame.chart(
        charts.waterfall(found["waterfall"], f"A: {found['base']}", f"B: {found['other']}", dark),
        f"waterfall-{number}",
        "Waterfall from the base's mean step time to the other's, by account",
        pl.DataFrame(found["waterfall"], infer_schema_length=None),
    )
    with st.expander("Kernels that came, went or changed", expanded=True):
        change_table(
            found["kernels"],
            ("clean_name", "op", "status", "change_ns", "before", "after", "before_ns",
                "after_ns", "fused", "family"),
            f"kernel-changes-{number}",
            "kernels",
        )  # fmt: skip
    with st.expander("Ops that came, went or changed"):
        change_table(
            found["ops"],
            (
                "op",
                "status",
                "change_ns",
                "before_launches",
                "after_launches",
                "before_ns",
                "after_ns",
                "fused",
            ),
            f"op-changes-{number}",
            "ops",
        )


def main() -> None:
    """The page."""
    runs = data.runs()
    if runs.is_empty():
        frame.no_runs()
        return
    rows = {row["run_id"]: row for row in runs.to_dicts()}
    chosen = choose(rows)
    if len(chosen) < 2:
        st.info("Choose two runs or more: the first is what the others are compared with.")
        return
    if len(chosen) > MOST_RUNS:
        st.info(f"The first {MOST_RUNS} of them are compared.")
        chosen = chosen[:MOST_RUNS]
    found = data.ask("compare", tuple(chosen))
    dark = frame.is_dark()
    names = {run["run_id"]: format.short(run["name"], 40) for run in found["runs"]}
    figures = [
        {
            "run": run["name"],
            "HDBI": format.digits(run["hdbi"]),
            "reading": run["reading"],
            "steps": run["steps"],
            **{
                f"{frame.words(key[:-3])} a step (ms)": format.digits(
                    None if run["per_step"][key] is None else run["per_step"][key] / 1e6
                )
                for key in ("elapsed_ns", "device_active_ns", "orchestration_ns", "device_idle_ns")
            },
            "launches a step": run["per_step"]["launches"],
            "kernels a step": run["per_step"]["kernels"],
            "host": rows[run["run_id"]]["host"],
            "GPU": rows[run["run_id"]]["gpu"],
        }
        for run in found["runs"]
    ]
    table = pl.DataFrame(figures, infer_schema_length=None)
    exact = pl.DataFrame(
        [
            {"run": run["name"], "run_id": run["run_id"], "hdbi": run["hdbi"], **run["per_step"]}
            for run in found["runs"]
        ],
        infer_schema_length=None,
    )
    frame.table(table, "Figures of each run, per step", "compared-runs", exact=exact)
    for number, value in enumerate(found["pairs"], 1):
        pair(value, number, dark)
    st.subheader("Decomposition, per step", anchor=False)
    parts = [
        {"label": f"{i + 1} {names[run['run_id']]}", **run["per_step"]}
        for i, run in enumerate(found["runs"])
    ]
    if any(part["ft_ns"] is not None or part["device_active_ns"] for part in parts):
        frame.chart(
            charts.decomposition(parts, dark),
            "decompositions",
            "dFT, dCT, dKT and device active time of each run, per step",
            pl.DataFrame(parts, infer_schema_length=None),
        )
    st.subheader("Latency, un-profiled", anchor=False)
    latencies(found["runs"], names)


with frame.page("Compare", "What changed between these runs, and which account did it?"):
    main()
