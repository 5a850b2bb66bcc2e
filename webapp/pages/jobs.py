"""What is being converted, what waits, what has failed?"""

from __future__ import annotations

from datetime import datetime, timezone

import polars as pl
import streamlit as st

from analyzer.server.pages import Job
from schemas.errors import HostboundError
from webapp import components, format, session

LOOK_S = 2.0
TROUBLE = "trouble with a job"


def when(seconds: float | None) -> str | None:
    """A time for people, UTC."""
    if seconds is None:
        return None
    return datetime.fromtimestamp(seconds, timezone.utc).strftime("%Y-%m-%d %H:%M:%S")


def took(job: Job) -> float | None:
    """Seconds from start to end, by the server's clock."""
    if job.started_at is None or job.finished_at is None:
        return None
    return round(max(0.0, job.finished_at - job.started_at), 1)


def shown(jobs: list[Job]) -> pl.DataFrame:
    """The columns that tell how it goes."""
    return pl.DataFrame(
        {
            "state": [job.state for job in jobs],
            "name": [job.name or job.sha256[:12] for job in jobs],
            "runs": [len(job.run_ids) for job in jobs],
            "error": [job.error for job in jobs],
            "queued (UTC)": [when(job.queued_at) for job in jobs],
            "took (s)": [took(job) for job in jobs],
            "attempts": [job.attempts for job in jobs],
            "sha256": [job.sha256[:16] for job in jobs],
        },
        schema_overrides={"error": pl.String, "took (s)": pl.Float64},
    )


@st.fragment(run_every=LOOK_S)
def live() -> None:
    """The list, as it is now."""
    try:
        hosted = session.hosted()
    except HostboundError as error:  # the login has ended since the page was opened
        st.error(format.plain(str(error)), icon=":material/error:")
        return
    if hosted is None:
        st.info("Uploads wait here on a server: start one with `analyzer serve`.")
        return
    hosting, who = hosted
    if trouble := st.session_state.get(TROUBLE):  # kept: the list is drawn anew all the time
        st.error(format.plain(trouble), icon=":material/error:")
    jobs, counts = hosting.jobs(who)
    for place, (state, count) in zip(st.columns(len(counts)), counts.items(), strict=True):
        place.metric(state, f"{count:,}")
    st.caption(format.plain(hosting.usage(who)))
    if not jobs:
        st.info("Nothing was uploaded yet.", icon=":material/inbox:")
        return
    components.table(shown(jobs), "Conversions, newest first, with state and error")
    failed = [job for job in jobs if job.state == "failed"]
    if not failed:
        return
    st.markdown("**Failed: the originals are kept**")
    for job in failed[:20]:
        left, right = st.columns([5, 1], vertical_alignment="center")
        label = format.plain(job.name or job.sha256[:12])
        left.markdown(f"{label}: {format.plain(job.error)}")
        if right.button("Try again", key=f"retry {job.id}", icon=":material/refresh:"):
            try:  # a fragment runs outside the page's own reader of errors
                hosting.retry(who, job.id)
                st.session_state.pop(TROUBLE, None)
            except HostboundError as error:
                st.session_state[TROUBLE] = str(error)
            st.rerun(scope="fragment")


with components.page("Jobs", "What is being converted, what waits, what has failed?"):
    live()
