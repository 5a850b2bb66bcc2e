"""Which kernels and ops cost time on the device and the host, and how are their times spread?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import polars as pl
import streamlit as st

from analyzer.queries.records import Family
from webapp import browser, components, data, format, session, url_state
from webapp.browser import Cell, Column, Row
from webapp.charts import distribution

# Rows drawn; the files have all of them.
MOST_SHOWN = 300
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


def family_chart(run_id: str, families: Mapping[str, Family]) -> None:
    """Device time of each kernel family."""
    components.chart(
        distribution.families(families, session.is_dark()),
        "families",
        "Device time of each kernel family",
        pl.DataFrame(
            [{"family": name, **vars(family)} for name, family in families.items()],
            infer_schema_length=None,
        ),
        run_id=run_id,
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


KERNEL_COLUMNS = (
    Column("kernel", "kernel", "Its name without arguments: shows every launch", number=False),
    Column("op", "op", "Innermost operator that launched it", number=False),
    Column("family", "family", number=False),
    Column("times", "times", "How often it ran"),
    Column("device", "device time (us)", "Sum of its durations"),
    Column("p50", "p50 (us)", "Median duration"),
    Column(
        "launch", "launch p50 (us)", "Median T_launch of launches on a stream that was seen idle"
    ),
    Column("host", "host cost (us)", "dFT + dCT + dKT of its launches, as far as known"),
    Column("tier", "match", "How the kernel replay found it again", number=False),
    Column("shapes", "shapes", "Input dimensions of the op", number=False),
    Column("grid", "grid", number=False),
    Column("block", "block", number=False),
)


def kernel_table(run_id: str, search: str, family: str) -> None:
    """Kernels, each a way to its launches."""
    kernels = data.kernels(run_id)
    if family != "all":
        kernels = kernels.filter(pl.col("family") == family)
    kernels = searched(kernels, search, ("kernel", "op", "family"))
    st.markdown(f"**{len(kernels)}** kernels: one row for each name, configuration, op and shape")
    if kernels.is_empty():
        st.info("No kernel is like that.")
        return
    state = {"run": run_id, "q": search, "family": "" if family == "all" else family}
    rows = [
        Row(
            str(one["kernel_id"]),
            [
                Cell(
                    format.short(one["clean_name"], 70),
                    one["clean_name"],
                    browser.address("kernels", kernel=str(one["kernel_id"]), **state),
                    one["kernel"][:300],
                ),
                *(Cell(format.short(one[key], 40), one[key]) for key in ("op", "family")),
                Cell(format.count(one["kernels"]), one["kernels"]),
                *map(components.us_cell, (one[f"{k}_ns"] for k in ("device", "p50", "launch"))),
                components.us_cell(one["host_ns"]),
                *(
                    Cell(format.short(one[key], 40), one[key])
                    for key in ("match_tier", "input_dims", "grid", "block")
                ),
            ],
        )
        for one in kernels.head(MOST_SHOWN).iter_rows(named=True)
    ]
    components.link_table(
        "Kernels of the run, longest in sum first: a name shows its launches",
        KERNEL_COLUMNS,
        rows,
        "kernels",
        kernels,
    )


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
    launch_table(run_id, launches)
    spread(run_id, int(chosen), rows[chosen]["clean_name"])


LAUNCH_COLUMNS = (
    Column("step", "step", "Opens the timeline there", number=False),
    Column("call", "call", number=False),
    Column("kernels", "kernels", "That the call started"),
    Column("py", "T_py (us)", "Python before the outermost op"),
    Column("dispatch", "T_dispatch (us)", "From the outermost op to the call"),
    Column("launch", "T_launch (us)", "From the call to the kernel's start"),
    Column("exec", "T_exec (us)", "How long its kernels ran"),
    Column("clean", "clean", "The stream was seen idle at the call", number=False),
    Column("tier", "match", "How the kernel replay found it again", number=False),
)


def launch_table(run_id: str, launches: pl.DataFrame) -> None:
    """Every launch of a kernel, each a way to its place in the timeline."""
    rows = [
        Row(
            str(one["call_id"]),
            [
                Cell(
                    format.short(one["step"] or "outside of steps", 40),
                    number,
                    components.place(run_id, one["trace_id"], f"call:{one['call_id']}"),
                ),
                Cell(format.text(one["call"]), one["call"]),
                Cell(format.count(one["kernels"]), one["kernels"]),
                *map(
                    components.us_cell,
                    (one[f"t_{span}_ns"] for span in ("py", "dispatch", "launch", "exec")),
                ),
                Cell("yes" if one["is_clean"] else "no", str(one["is_clean"])),
                Cell(format.text(one["match_tier"]), one["match_tier"]),
            ],
        )
        for number, one in enumerate(launches.head(MOST_SHOWN).iter_rows(named=True))
    ]
    components.link_table(
        "Launches of the chosen kernel in order of time: a step opens the timeline there",
        LAUNCH_COLUMNS,
        rows,
        "launches",
        launches,
    )


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
                run_id=run_id,
                about=name if kernel_id is not None else "",
            )


# -- ops


OP_COLUMNS = (
    Column("op", "op", "Opens the timeline where it cost the host most", number=False),
    Column("host", "host cost (us)", "dFT + dCT + dKT of its launches, as far as known"),
    Column("share", "share", "Of the host cost of all ops"),
    Column("launches", "launches"),
    Column("kernels", "kernels"),
    Column("each", "each (us)", "Host cost of a launch, mean"),
    Column("ft", "dFT (us)", "Framework translation: Python and PyTorch"),
    Column("ct", "dCT (us)", "CUDA-library translation"),
    Column("kt", "dKT (us)", "Launch path, at the floor"),
    Column("device", "device time (us)", "Of the kernels that it started"),
)


def op_table(run_id: str, search: str) -> None:
    """Operators by what launching their kernels costs, each a way to its place in the timeline."""
    st.subheader("Ops by host cost", anchor=False)
    everything = data.ops(run_id)
    ops = searched(everything, search, ("op",))
    if ops.is_empty():
        st.info("No op that launches is like that.")
        return
    places = data.op_places(run_id)
    total = everything["host_ns"].sum()
    rows = [
        Row(
            one["op"],
            [
                Cell(
                    format.short(one["op"], 70),
                    one["op"],
                    components.place(run_id, *places[one["op"]]),
                    f"{one['op'][:300]}: to the timeline",
                ),
                components.us_cell(one["host_ns"]),
                Cell(format.share(share := one["host_ns"] / max(total, 1)), share, part=share),
                Cell(format.count(one["launches"]), one["launches"]),
                Cell(format.count(one["kernels"]), one["kernels"]),
                components.us_cell(one["host_ns"] / max(one["launches"], 1)),
                *map(components.us_cell, (one[f"{k}_ns"] for k in ("ft", "ct", "kt", "device"))),
            ],
        )
        for one in ops.head(MOST_SHOWN).iter_rows(named=True)
    ]
    components.link_table(
        "Operators by host cost: a name opens the timeline where it cost most",
        OP_COLUMNS,
        rows,
        "ops",
        ops,
    )


def main() -> None:
    """The page."""
    run = components.choose_run("kernels")
    if run is None:
        return
    run_id = run.run_id
    families = data.families(run_id)
    left, right = st.columns([3, 1])
    search = url_state.text(
        "Search kernels and ops", "q", placeholder="words of a name", place=left
    )
    names = ["all", *families]
    family = url_state.select("Family of kernels", names, "family", default="all", place=right)
    op_table(run_id, search)
    if not families:
        st.info("This run has no device event: there are no kernels to list.")
        return
    st.subheader("Kernels", anchor=False)
    kernel_table(run_id, search, family)
    chosen_kernel(run_id)
    st.subheader("Families", anchor=False)
    left, right = st.columns([3, 2], gap="large")
    with left:
        family_chart(run_id, families)
    with right:
        match_tiers(run_id)
    st.subheader("How launches and kernels are spread", anchor=False)
    spread(run_id, None, run.name)


with components.page(
    "Kernels and ops", "Which kernels and ops cost time, on the device and on the host?"
):
    main()
