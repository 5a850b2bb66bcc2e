"""A free question to the store, read-only and bounded."""

from __future__ import annotations

import time

import polars as pl
import streamlit as st

from webapp import address, charts, data, format, frame

MOST_ROWS = 10_000
LIMITS_S = [5, 10, 30, 60]
LOOK_S = 0.2
EXAMPLES = {
    "HDBI of every run's steps": (
        "SELECT run_name, sum(launches) AS launches,\n  sum(device_active_ns) / "
        "(sum(device_active_ns) + sum(orchestration_ns)) AS hdbi\nFROM step_totals\n"
        "GROUP BY run_name\nORDER BY hdbi"
    ),
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


def answer(sql: str, seconds: float) -> pl.DataFrame:
    """The statement's answer; while it is on its way a button cancels it.

    Whatever ends this run of the page (the button, another page, a closed tab) ends the statement.
    """
    key = data.sql_key(sql, MOST_ROWS, seconds)
    known = st.session_state.get("sql answer")
    if known and known[0] == key:
        return known[1]
    began = time.monotonic()

    def cancel() -> None:
        address.put(run=None)
        st.session_state["sql cancelled"] = time.monotonic() - began

    place = st.empty()
    statement = data.Statement(sql, MOST_ROWS, seconds)
    try:
        if not statement.wait(LOOK_S):
            with place.container(horizontal=True, vertical_alignment="center"):
                st.button("Cancel", icon=":material/cancel:", on_click=cancel)
                clock = st.empty()
            while not statement.wait(LOOK_S):
                # Streamlit ends this run here when somebody has clicked or gone away.
                clock.markdown(f"Asking the store: {time.monotonic() - began:.0f} s")
    finally:
        statement.cancel()
    place.empty()
    rows = statement.rows()
    st.session_state["sql answer"] = (key, rows)
    return rows


def result(rows: pl.DataFrame, seconds: float) -> None:
    """The answer as a table and, where it can be, a chart."""
    if len(rows) >= MOST_ROWS:
        st.warning(f"Only the first {MOST_ROWS:,} rows are shown.")
    st.caption(f"{len(rows):,} row{'s' * (len(rows) != 1)}, at most {seconds:g} s allowed")
    frame.table(rows, "Answer of the SQL statement", "answer")
    numeric = [name for name, kind in rows.schema.items() if kind.is_numeric()]
    flat = [name for name, kind in rows.schema.items() if not kind.is_nested()]
    if rows.is_empty() or not numeric or len(flat) < 2:
        return
    st.markdown("**As a chart**")
    words = [name for name in flat if name not in numeric]
    left, right = st.columns(2)
    x = address.select("Along", flat, "x", default=(words or flat)[0], place=left)
    y = address.select("Value", numeric, "y", default=numeric[-1], place=right)
    drawn = pl.DataFrame({name: rows[name] for name in (x, y)})
    frame.chart(charts.free(rows, x, y), "answer-chart", f"{y} along {x}", drawn)


def main() -> None:
    """The page."""
    if not data.exists():
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
            asked = address.get("seconds")
            chosen = LIMITS_S.index(int(asked)) if asked in map(str, LIMITS_S) else 1
            seconds = row.selectbox("Time limit (s)", LIMITS_S, index=chosen, width=150) or 10
            sent = row.form_submit_button("Run", icon=":material/play_arrow:", type="primary")
        if sent:
            address.put(sql=sql, run="1", seconds=seconds)
            st.session_state.pop("sql cancelled", None)
        if sent or address.get("run") == "1":
            result(answer(sql, float(seconds)), seconds)
        elif after := st.session_state.pop("sql cancelled", None):
            st.info(f"The statement was cancelled after {after:.1f} s.", icon=":material/cancel:")


with frame.page("SQL", "Any other question, to the store itself"):
    main()
