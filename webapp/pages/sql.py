"""A free question to the store, read-only and bounded."""

from __future__ import annotations

import time
from collections.abc import Mapping

import polars as pl
import streamlit as st

from webapp import components, data, format, query_task, store, url_state
from webapp.charts import columns

MOST_ROWS = 10_000
LIMITS_S = [5, 10, 30, 60]
LOOK_S = 0.2
ASKED_MOST = (
    "runs",
    "steps",
    "step_totals",
    "run_totals",
    "ledger",
    "launch_costs",
    "kernel_summary",
)
MOST_KEPT = 30
TYPED = "sql text"
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
        "FROM ledger JOIN runs USING (run_id)\nWHERE step_id IS NOT NULL\n"
        "GROUP BY ALL\nORDER BY runs.name, ms DESC"
    ),
    "Launch cost by op": (
        "SELECT op, count(*) AS launches, median(t_launch_ns) / 1e3 AS launch_us,\n"
        "  sum(dft_ns + dct_ns) / 1e3 AS translation_us\n"
        "FROM launch_costs\nGROUP BY op\nORDER BY translation_us DESC\nLIMIT 20"
    ),
}


def schema() -> None:
    """Tables and views with their columns and what these are; what one asks most stands first."""
    st.markdown("**Tables and views**")
    found = data.tables()
    with st.container(height=520):
        for table in sorted(found, key=lambda name: (name not in ASKED_MOST, name)):
            with st.expander(format.plain(table)):
                st.code("\n".join(found[table]), language=None, wrap_lines=True)


def answer(sql: str, seconds: float) -> pl.DataFrame:
    """The statement's answer; while it is on its way a button cancels it.

    Whatever ends this run of the page (the button, another page, a closed tab) ends the statement.
    """
    key = query_task.key(sql, MOST_ROWS, seconds)
    known = st.session_state.get("sql answer")
    if known and known[0] == key:
        return known[1]
    began = time.monotonic()

    def cancel() -> None:
        url_state.put(run=None)
        st.session_state["sql cancelled"] = time.monotonic() - began

    place = st.empty()
    task = query_task.QueryTask(sql, MOST_ROWS, seconds)
    try:
        if not task.wait(LOOK_S):
            with place.container(horizontal=True, vertical_alignment="center"):
                st.button("Cancel", icon=":material/cancel:", on_click=cancel)
                clock = st.empty()
            while not task.wait(LOOK_S):
                # Streamlit ends this run here when somebody has clicked or gone away.
                clock.markdown(f"Asking the store: {time.monotonic() - began:.0f} s")
    finally:
        task.cancel()
    place.empty()
    rows = task.rows()
    st.session_state["sql answer"] = (key, rows)
    return rows


def result(rows: pl.DataFrame, seconds: float) -> None:
    """The answer as a table and, where it can be, a chart."""
    if len(rows) >= MOST_ROWS:
        st.warning(f"Only the first {MOST_ROWS:,} rows are shown.")
    st.caption(f"{len(rows):,} row{'s' * (len(rows) != 1)}, at most {seconds:g} s allowed")
    components.table(rows, "Answer of the SQL statement", "answer")
    numeric = [name for name, kind in rows.schema.items() if kind.is_numeric()]
    flat = [name for name, kind in rows.schema.items() if not kind.is_nested()]
    if rows.is_empty() or not numeric or len(flat) < 2:
        return
    st.markdown("**As a chart**")
    words = [name for name in flat if name not in numeric]
    left, right = st.columns(2)
    x = url_state.select("Along", flat, "x", default=(words or flat)[0], place=left)
    y = url_state.select("Value", numeric, "y", default=numeric[-1], place=right)
    drawn = pl.DataFrame({name: rows[name] for name in (x, y)})
    components.chart(columns.along(rows, x, y), "answer-chart", f"{y} along {x}", drawn)


def history() -> list[str]:
    """What was asked in this session, the oldest first."""
    return st.session_state.setdefault("sql history", [])


def remember(sql: str) -> None:
    """Keep a statement that was sent; the same one moves to the end."""
    kept = [one for one in history() if one != sql and one not in EXAMPLES.values()]
    st.session_state["sql history"] = [*kept, sql][-MOST_KEPT:]


def start_from(known: Mapping[str, str]) -> None:
    """Write the chosen statement, unsent, in place of what is typed."""
    if chosen := st.session_state["example"]:
        st.session_state["example"] = None
        url_state.put(sql=known[chosen], run=None)
        st.session_state.pop("sql asked", None)


def question() -> tuple[str, int, bool]:
    """The statement and its time limit in seconds, and whether it was just sent."""
    known = {**{format.short(sql, 90): sql for sql in reversed(history())}, **EXAMPLES}
    st.selectbox(
        "Example, or one of your last statements",
        list(known),
        index=None,
        placeholder="start from an example, or from what you asked before",
        key="example",
        on_change=lambda: start_from(known),
    )
    # What is typed stays, until another address or example asks for something else.
    asked = url_state.get("sql") or next(iter(EXAMPLES.values()))
    if not url_state.get("sql") and history():
        asked = history()[-1]
    if st.session_state.get("sql asked") != asked or TYPED not in st.session_state:
        st.session_state["sql asked"] = st.session_state[TYPED] = asked
    with st.form("sql", border=False):
        sql = st.text_area(
            "SQL: one SELECT, read-only (no files, no settings)", height=190, key=TYPED
        )
        row = st.container(horizontal=True, vertical_alignment="bottom")
        limit = url_state.get("seconds")
        chosen = LIMITS_S.index(int(limit)) if limit in map(str, LIMITS_S) else 1
        seconds = row.selectbox("Time limit (s)", LIMITS_S, index=chosen, width=150) or 10
        sent = row.form_submit_button(
            "Run",
            icon=":material/play_arrow:",
            type="primary",
            on_click=lambda: remember(st.session_state[TYPED]),
        )
    return sql, seconds, sent


def main() -> None:
    """The page."""
    if not store.exists():
        components.no_runs()
        return
    left, right = st.columns([3, 1], gap="large")
    with right:
        schema()
    with left:
        sql, seconds, sent = question()
        if sent:
            st.session_state["sql asked"] = sql
            url_state.put(sql=sql, run="1", seconds=seconds, x=None, y=None)
            st.session_state.pop("sql cancelled", None)
        if sent or url_state.get("run") == "1":
            result(answer(sql, float(seconds)), seconds)
        elif after := st.session_state.pop("sql cancelled", None):
            st.info(f"The statement was cancelled after {after:.1f} s.", icon=":material/cancel:")


with components.page("SQL", "Any other question, to the store itself"):
    main()
