"""Which kernels and ops cost time on the device and the host, and how are their times spread?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import polars as pl
import streamlit as st

from analyzer.queries.records import Family
from webapp import components, data, format, session, url_state
from webapp.charts import distribution

MOST_SHOWN = 1_000
MOST_CHOICES = 5_000


def searched(rows: pl.DataFrame, search: str, columns: tuple[str, ...]) -> pl.DataFrame:
    """Rows that hold every word."""
    for word in search.lower().split():
        hits = [
            pl.col(name)
            .cast(pl.String)
            .fill_null("")
            .str.to_lowercase()
            .str.contains(word, literal=True)
            for name in columns
        ]
        rows = rows.filter(pl.any_horizontal(hits))
    return rows


# -- families


def family_chart(families: Mapping[str, Family]) -> None:
    """Device time of each kernel family."""
    components.chart(
        distribution.families(families, session.is_dark()),
        "families",
        "Device time of each kernel family",
        pl.DataFrame(
            [{"family": name, **vars(family)} for name, family in families.items()],
            infer_schema_length=None,
        ),
    )


def match_tiers(run_id: str) -> None:
    """How well kernels were found again in the kernel replay."""
    tiers = data.match_tiers(run_id)
    if not tiers:
        st.caption("No kernel replay in this run, so no match tiers: `collector replay` makes one.")
        return
    st.markdown("**Match with kernel replay**")
    shown = [
        {
            "tier": tier,
            "launches": row.launches,
            "share of cost": format.share(row.cost_share),
        }
        for tier, row in tiers.items()
    ]
    components.table(
        pl.DataFrame(shown),
        "Launches and share of cost by match tier",
        "match-tiers",
        exact=pl.DataFrame([{"tier": tier, **vars(row)} for tier, row in tiers.items()]),
    )


# -- kernels


def kernel_table(run_id: str, search: str, family: str) -> None:
    """Kernels, with the way down to one."""
    kernels = data.kernels(run_id)
    if family != "all":
        kernels = kernels.filter(pl.col("family") == family)
    kernels = searched(kernels, search, ("kernel", "op", "family"))
    st.markdown(f"**{len(kernels)}** kernels: one row for each name, configuration, op and shape")
    if kernels.is_empty():
        st.info("No kernel is like that.")
        return
    top = kernels.head(MOST_SHOWN)
    ticked = components.selectable_table(
        components.ns_columns(
            top.select(
                "clean_name", "op", "family", "kernels", "device_ns", "p50_ns", "min_ns", "max_ns",
                "launch_ns", "host_ns", "match_tier", "input_dims", "grid", "block", "kernel",
            ).rename({"kernel": "full name"})
        ),
        "Kernels of the run, longest in sum first: choose a row to see its launches",
        "kernels",
        exact=kernels,
        key=f"kernel table {run_id}",
        several=False,
        columns={"kernel": st.column_config.TextColumn("kernel", width=300, pinned=True)},
    )  # fmt: skip
    if ticked:
        picked = str(top["kernel_id"][ticked[0]])
        if picked != st.session_state.get("last kernel"):
            st.session_state["last kernel"] = picked
            url_state.put(kernel=picked)


def chosen_kernel(run_id: str) -> None:
    """One kernel: by the table above or by name."""
    kernels = data.kernels(run_id)
    if kernels.is_empty():
        return
    st.subheader("Every launch of a kernel", anchor=False)
    rows = {str(row["kernel_id"]): row for row in kernels.head(MOST_CHOICES).iter_rows(named=True)}

    def name(kernel: str) -> str:
        if not kernel:
            return "choose one"
        row = rows[kernel]
        return f"{format.short(row['clean_name'], 70)} · {format.short(row['op'], 30)} · {kernel}"

    chosen = url_state.select("Kernel", ["", *rows], "kernel", default="", show=name)
    if not chosen:
        return
    kernel_figures(rows[chosen])
    launches = data.launches_of(run_id, int(chosen))
    if launches.is_empty():
        st.info("No launch of its own: it runs in a CUDA graph, whose launch has its first kernel.")
        return
    shown = launches.drop("call_start_ns", "call_id", "trace_id").head(MOST_SHOWN)
    components.table(
        components.ns_columns(shown),
        "Launches of the chosen kernel in order of time",
        "launches",
        exact=launches,
    )
    spread(run_id, int(chosen), rows[chosen]["clean_name"])


def kernel_figures(row: Mapping[str, Any]) -> None:
    """One kernel's full name, counts and times."""
    st.code(row["kernel"], language=None, wrap_lines=True)
    figures = st.container(horizontal=True)
    figures.metric("times", format.count(row["kernels"]), border=True)
    for label, ns in (("device time", row["device_ns"]), ("host cost", row["host_ns"])):
        figures.metric(label, format.duration(ns), help=format.exact(ns), border=True)
    figures.metric("match tier", row["match_tier"] or "no replay", border=True)


def spread(run_id: str, kernel_id: int | None, name: str) -> None:
    """Distributions of launch and duration, against the floor."""
    floor_ns = data.totals(run_id).launch_floor_ns
    suffix = "" if kernel_id is None else f"-kernel-{kernel_id}"
    left, right = st.columns(2, gap="large")
    for place, quantity, title, floor in (
        (left, "launch", "T_launch of clean launches", floor_ns),
        (right, "duration", "kernel duration", None),
    ):
        with place:
            st.markdown(f"**{title[0].upper()}{title[1:]}**")
            curve = data.distribution(run_id, quantity, kernel_id=kernel_id)
            if curve.is_empty():
                st.info("None was measured.")
                continue
            components.chart(
                distribution.cdf({format.short(name, 50): curve}, title, floor, session.is_dark()),
                f"{quantity}{suffix}",
                f"Cumulative distribution of {title}"
                + (" against the launch floor" if floor else ""),
                curve,
            )


# -- ops


def op_table(run_id: str, search: str) -> None:
    """Operators by what launching their kernels costs."""
    st.subheader("Ops", anchor=False)
    ops = searched(data.ops(run_id), search, ("op",))
    if ops.is_empty():
        st.info("No op that launches is like that.")
        return
    st.caption("host cost = dFT + dCT + dKT of its launches, as far as known")
    components.table(
        components.ns_columns(
            ops.head(MOST_SHOWN).select(
                "op", "launches", "kernels", "host_ns", "t_py_ns", "t_dispatch_ns",
                "ft_ns", "ct_ns", "kt_ns", "device_ns",
            )
        ),
        "Operators by host cost",
        "ops",
        exact=ops,
    )  # fmt: skip


def main() -> None:
    """The page."""
    run = components.choose_run()
    if run is None:
        return
    run_id = run.run_id
    components.links(run_id, "kernels")
    families = data.families(run_id)
    if not families:
        st.info("This run has no device event: there are no kernels to list.")
        op_table(run_id, "")
        return
    st.subheader("Families", anchor=False)
    left, right = st.columns([3, 2], gap="large")
    with left:
        family_chart(families)
    with right:
        match_tiers(run_id)
    st.subheader("How launches and kernels are spread", anchor=False)
    spread(run_id, None, run.name)
    st.subheader("Kernels", anchor=False)
    left, right = st.columns([3, 1])
    search = url_state.text(
        "Search kernels and ops", "q", placeholder="words of a name", place=left
    )
    names = ["all", *families]
    family = url_state.select("Family", names, "family", default="all", place=right)
    kernel_table(run_id, search, family)
    chosen_kernel(run_id)
    op_table(run_id, search)


with components.page(
    "Kernels and ops", "Which kernels and ops cost time, on the device and on the host?"
):
    main()
