"""A free question to the store, read-only and bounded."""

from __future__ import annotations

import polars as pl
import streamlit as st

from webapp import address, charts, data, format, frame

MOST_ROWS = 10_000
EXAMPLES = {
    "HDBI of every run": "SELECT name, mode, batch_size, hdbi\nFROM run_totals\nORDER BY hdbi",
    "Longest kernels of all runs": (
        "SELECT clean_name, family, sum(kernels) AS kernels, sum(device_ns) / 1e6 AS device_ms\n"
        "FROM kernel_summary\nGROUP BY ALL\nORDER BY device_ms DESC\nLIMIT 20"
    ),
    "Accounts of every run's steps": (
        "SELECT runs.name, ledger.account, sum(ledger.ns) / 1e6 AS ms,\n"
        "  sum(ledger.exposed_ns) / 1e6 AS exposed_ms\n"
        "FROM ledger JOIN runs USING (run_id)\nWHERE is_main AND step_id IS NOT NULL\n"
        "GROUP BY ALL\nORDER BY runs.name, ms DESC"
    ),
    "Launch cost by op": (
        "SELECT op, count(*) AS launches, median(t_launch_ns) / 1e3 AS launch_us,\n"
        "  sum(dft_ns + dct_ns) / 1e3 AS translation_us\n"
        "FROM launch_costs\nGROUP BY op\nORDER BY translation_us DESC\nLIMIT 20"
    ),
}


def schema() -> None:
    """Tables and views with their columns."""
    st.markdown("**Tables and views**")
    with st.container(height=520):
        for entry in data.ask("schema"):
            with st.expander(format.plain(entry["table"])):
                st.code("\n".join(entry["columns"]), language=None)


def result(rows: pl.DataFrame, seconds: float) -> None:
    """The answer as a table and, where it can be, a chart."""
    if len(rows) >= MOST_ROWS:
        st.warning(f"Only the first {MOST_ROWS:,} rows are shown.")
    st.caption(f"{len(rows):,} rows, at most {seconds:g} s allowed")
    frame.table(rows, "Answer of the SQL statement", "answer")
    numeric = [name for name, kind in rows.schema.items() if kind.is_numeric()]
    flat = [name for name, kind in rows.schema.items() if not kind.is_nested()]
    if rows.is_empty() or not numeric or len(flat) < 2:
        return
    st.markdown("**As a chart**")
    words = [name for name in flat if name not in numeric]
    left, right = st.columns(2)
    x = left.selectbox("Along", flat, index=flat.index(words[0]) if words else 0)
    y = right.selectbox("Value", numeric, index=len(numeric) - 1)
    if x is None or y is None:
        return
    frame.chart(charts.free(rows, x, y), "answer-chart", f"{y} along {x}")


def main() -> None:
    """The page."""
    if not data.store().exists():
        frame.no_runs()
        return
    left, right = st.columns([3, 1], gap="large")
    with right:
        schema()
    with left:
        example = st.selectbox(
            "Example",
            list(EXAMPLES),
            index=None,
            placeholder="start from an example",
            key="example",
        )
        if example and st.session_state.get("last example") != example:
            st.session_state["last example"] = example
            address.put(sql=EXAMPLES[example])
        start = address.get("sql", next(iter(EXAMPLES.values())))
        with st.form("sql", border=False):
            sql = st.text_area(
                "SQL: one SELECT, read-only (no files, no settings)",
                start,
                height=190,
                key=f"sql {hash(start)}",
            )
            row = st.container(horizontal=True, vertical_alignment="bottom")
            seconds = float(
                row.selectbox("Time limit (s)", [5, 10, 30, 60], index=1, width=150) or 10
            )
            sent = row.form_submit_button("Run", icon=":material/play_arrow:", type="primary")
        if sent:
            address.put(sql=sql, run="1")
        if sent or address.get("run") == "1":
            with st.spinner("Asking the store …"):
                rows = data.run_sql(sql, MOST_ROWS, float(seconds))
            result(rows, seconds)


with frame.page("SQL", "Any other question, to the store itself"):
    main()
