"""Which kernels and ops cost time on the device and the host, and how are their times spread?"""

from __future__ import annotations

import polars as pl
import streamlit as st

from webapp import address, charts, data, format, frame

MOST_SHOWN = 1_000


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


def kernel_table(run_id: str, search: str, family: str) -> None:
    """Kernels, with the way down to one."""
    kernels = data.ask("kernels", run_id)
    if family != "all":
        kernels = kernels.filter(pl.col("family") == family)
    kernels = searched(kernels, search, ("kernel", "op", "family"))
    st.markdown(f"**{len(kernels)}** kernels: one row for each name, configuration, op and shape")
    if kernels.is_empty():
        st.info("No kernel is like that.")
        return
    top = kernels.head(MOST_SHOWN)
    chosen = frame.table(
        frame.ns_columns(
            top.select(
                "clean_name", "op", "family", "kernels", "device_ns", "p50_ns", "min_ns", "max_ns",
                "launch_ns", "host_ns", "match_tier", "input_dims", "grid", "block", "kernel",
            ).rename({"kernel": "full name"})
        ),
        "Kernels of the run, longest in sum first: choose a row to see its launches",
        "kernels",
        exact=kernels,
        on_select="rerun",
        selection_mode="single-row",
        key=f"kernel table {run_id}",
        column_config={"kernel": st.column_config.TextColumn("kernel", width=300, pinned=True)},
    )  # fmt: skip
    rows = chosen["selection"]["rows"]
    if rows and rows[0] < len(top):
        picked = str(top["kernel_id"][rows[0]])
        if picked != st.session_state.get("last kernel"):
            st.session_state["last kernel"] = picked
            address.put(kernel=picked)


def kernel_choice(run_id: str) -> None:
    """One kernel: by the table above or by name."""
    kernels = data.ask("kernels", run_id)
    if kernels.is_empty():
        return
    st.subheader("Every launch of a kernel", anchor=False)
    rows = {str(row["kernel_id"]): row for row in kernels.head(5_000).to_dicts()}
    chosen = address.select(
        "Kernel",
        ["", *rows],
        "kernel",
        default="",
        show=lambda k: (
            "choose one"
            if not k
            else f"{format.short(rows[k]['clean_name'], 70)} · "
            f"{format.short(rows[k]['op'], 30)} · {k}"
        ),
    )
    if not chosen:
        return
    row = rows[chosen]
    st.code(row["kernel"], language=None, wrap_lines=True)
    facts = st.container(horizontal=True)
    facts.metric("times", format.count(row["kernels"]), border=True)
    facts.metric(
        "device time",
        format.duration(row["device_ns"]),
        help=format.exact(row["device_ns"]),
        border=True,
    )
    facts.metric(
        "host cost", format.duration(row["host_ns"]), help=format.exact(row["host_ns"]), border=True
    )
    facts.metric("match tier", row["match_tier"] or "no replay", border=True)
    launches = data.ask("launches_of", run_id, int(chosen))
    if launches.is_empty():
        st.info("No launch of its own: it runs in a CUDA graph, whose launch has its first kernel.")
        return
    frame.table(
        frame.ns_columns(launches.drop("call_start_ns", "call_id", "trace_id").head(MOST_SHOWN)),
        "Launches of the chosen kernel in order of time",
        "launches",
        exact=launches,
    )
    spread(run_id, int(chosen), row["clean_name"])


def spread(run_id: str, kernel_id: int | None, name: str) -> None:
    """Distributions of launch and duration, against the floor."""
    totals = data.ask("totals", run_id)
    suffix = "" if kernel_id is None else f"-kernel-{kernel_id}"
    left, right = st.columns(2, gap="large")
    for place, quantity, title, floor in (
        (left, "launch", "T_launch of clean launches", totals["launch_floor_ns"]),
        (right, "duration", "kernel duration", None),
    ):
        with place:
            st.markdown(f"**{title[0].upper()}{title[1:]}**")
            curve = data.distribution(run_id, quantity, kernel_id)
            if curve.is_empty():
                st.info("None was measured.")
                continue
            frame.chart(
                charts.cdf({format.short(name, 50): curve}, title, floor, frame.is_dark()),
                f"{quantity}{suffix}",
                f"Cumulative distribution of {title}"
                + (" against the launch floor" if floor else ""),
                curve,
            )


def main() -> None:
    """The page."""
    run = frame.choose_run()
    if run is None:
        return
    run_id = run["run_id"]
    frame.links(run_id, "kernels")
    families = data.ask("families", run_id)
    if not families:
        st.info("This run has no device event: there are no kernels to list.")
        ops_table(run_id, "")
        return
    st.subheader("Families", anchor=False)
    left, right = st.columns([3, 2], gap="large")
    with left:
        frame.chart(
            charts.families(families, frame.is_dark()),
            "families",
            "Device time of each kernel family",
            pl.DataFrame(families, infer_schema_length=None),
        )
    with right:
        tiers = data.ask("match_tiers", run_id)
        if tiers:
            st.markdown("**Match with kernel replay**")
            frame.table(
                pl.DataFrame(
                    [
                        {
                            "tier": tier,
                            "launches": row["launches"],
                            "share of cost": format.share(row["cost_share"]),
                        }
                        for tier, row in tiers.items()
                    ]
                ),
                "Launches and share of cost by match tier",
                "match-tiers",
                exact=pl.DataFrame([{"tier": tier, **row} for tier, row in tiers.items()]),
            )
        else:
            st.caption(
                "No kernel replay in this run, so no match tiers: `collector replay` makes one."
            )
    st.subheader("How launches and kernels are spread", anchor=False)
    spread(run_id, None, run["name"])
    st.subheader("Kernels", anchor=False)
    columns = st.columns([3, 1])
    search = address.text(
        "Search kernels and ops", "q", placeholder="words of a name", place=columns[0]
    )
    names = ["all", *(row["family"] for row in families)]
    family = address.select("Family", names, "family", default="all", place=columns[1])
    kernel_table(run_id, search, family)
    kernel_choice(run_id)
    ops_table(run_id, search)


def ops_table(run_id: str, search: str) -> None:
    """Operators by what launching their kernels costs."""
    st.subheader("Ops", anchor=False)
    ops = searched(data.ask("ops", run_id), search, ("op",))
    if ops.is_empty():
        st.info("No op that launches is like that.")
        return
    st.caption("host cost = dFT + dCT + dKT of its launches, as far as known")
    frame.table(
        frame.ns_columns(
            ops.head(MOST_SHOWN).select(
                "op", "launches", "kernels", "host_ns", "t_py_ns", "t_dispatch_ns",
                "ft_ns", "ct_ns", "kt_ns", "device_ns",
            )
        ),
        "Operators by host cost",
        "ops",
        exact=ops,
    )  # fmt: skip


with frame.page(
    "Kernels and ops", "Which kernels and ops cost time, on the device and on the host?"
):
    main()
