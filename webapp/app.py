"""The app: who is let in, and its pages. Started by `webapp`, or part of `analyzer serve`."""

from pathlib import Path

import streamlit as st

from webapp import components, session

PAGES = Path(__file__).parent / "pages"
# A file of ours: a named icon as page_icon would be fetched from the network.
ICON = Path(__file__).parent / "static" / "icon.svg"

# Side by side only where there is room for it; Streamlit's own limit (640 px) squeezes charts.
STYLE = """<style>
[data-testid="stMainBlockContainer"] { padding-top: 4rem; }
[data-testid="stHeading"] h1 { font-size: 1.9rem; padding: 0; }
[data-testid="stHeading"] h3 { font-size: 1.35rem; padding: 0.5rem 0 0; }
[data-testid="stHorizontalBlock"] { flex-wrap: wrap; }
[data-testid="stColumn"] { min-width: min(100%, 7rem); }
[data-testid="stColumn"]:has([data-testid="stVegaLiteChart"], textarea) {
  min-width: min(100%, 27rem);
}
[data-testid="stElementContainer"]:has(> [data-testid="stSelectbox"]) {
  min-width: min(100%, 10rem);
}
[data-testid="stColumn"]:has([data-testid="stExpander"]) { min-width: min(100%, 14rem); }
</style>"""

st.set_page_config(page_title="Hostbound", page_icon=str(ICON), layout="wide")
st.html(STYLE)
session.enter()
page = st.navigation(
    [
        st.Page(PAGES / "runs.py", title="Runs", icon=":material/list:", default=True),
        st.Page(PAGES / "run.py", title="Run", icon=":material/speed:", url_path="run"),
        st.Page(
            PAGES / "timeline.py",
            title="Timeline",
            icon=":material/view_timeline:",
            url_path="timeline",
        ),
        st.Page(
            PAGES / "kernels.py",
            title="Kernels and ops",
            icon=":material/memory:",
            url_path="kernels",
        ),
        st.Page(
            PAGES / "compare.py", title="Compare", icon=":material/compare:", url_path="compare"
        ),
        st.Page(PAGES / "sweep.py", title="Sweep", icon=":material/show_chart:", url_path="sweep"),
        st.Page(PAGES / "sql.py", title="SQL", icon=":material/database:", url_path="sql"),
        *(
            [st.Page(PAGES / "jobs.py", title="Jobs", icon=":material/pending:", url_path="jobs")]
            if session.hosted()
            else []
        ),
    ],
    position="top",
)
session.leave()
page.run()
components.upload()
