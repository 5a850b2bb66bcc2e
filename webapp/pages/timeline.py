"""What ran when: host, calls, streams, and what the host did while the device was idle."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl
import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from analyzer.queries.records import Trace
from analyzer.queries.timeline import DeviceEvent, HostCall, HostOp, StepTime
from webapp import components, data, format, session, url_state
from webapp.charts import timeline
from webapp.charts.parts import Chart
from webapp.charts.timeline import Lane

COLUMNS = 700
PROFILE_COLUMNS = 350
NARROWEST_NS = 200
MOST_LISTED = 200
MOST_LANES = 24
MOST_OF_ALL_LANES = 200
MOST_STEPS = 2_000
# Events from which the accounts take so long to read that the rest is drawn first.
MANY_EVENTS = 300_000


@dataclass(frozen=True)
class View:
    """A part of a trace. Times in ns, on the trace's clock."""

    run_id: str
    trace_id: int
    start_ns: int  # of the whole trace
    end_ns: int
    low_ns: int  # of the part that is shown
    high_ns: int

    @property
    def width_ns(self) -> int:
        return self.high_ns - self.low_ns

    def from_start(self, time_ns: float) -> float:
        """A time, from the start of the trace."""
        return time_ns - self.start_ns


# -- which part


def choose_trace(traces: Mapping[str, Trace]) -> Trace:
    """The trace of the URL, or the run's only one."""
    chosen = next(iter(traces))
    if len(traces) > 1:
        chosen = url_state.select(
            "Trace",
            list(traces),
            "trace",
            show=lambda t: f"{t}: {format.short(traces[t].file, 50)}",
            clears=("from", "to", "event"),
        )
    else:
        url_state.check("trace", [chosen])
    return traces[chosen]


def view_of(run_id: str, trace: Trace, steps: Sequence[StepTime]) -> View:
    """The part of a trace that the URL asks for, clipped to the trace."""
    starts = (trace.start_ns, *(step.start_ns for step in steps))
    ends = (trace.end_ns, *(step.end_ns for step in steps))
    start_ns = min(ns for ns in starts if ns is not None)
    end_ns = max(ns for ns in ends if ns is not None)
    low, high = url_state.number("from"), url_state.number("to")
    if low is None and high is None and url_state.get("around"):
        low, high = around(run_id, url_state.get("event"), start_ns)
    low = start_ns if low is None else start_ns + low
    high = end_ns if high is None else start_ns + high
    low = min(max(low, start_ns), end_ns - 1)
    high = min(max(high, low + min(NARROWEST_NS, end_ns - low)), end_ns)
    if high <= low:
        low, high = start_ns, end_ns
    return View(run_id, trace.trace_id, start_ns, end_ns, low, high)


def around(run_id: str, event: str, start_ns: int) -> tuple[int | None, int | None]:
    """The window of an event, with as much again on either side; from the trace's start."""
    kind, _, number = event.partition(":")
    if kind not in timeline.LANE_KINDS or not number.isdigit():
        return None, None
    if kind == "stream":
        found = data.device_event(run_id, int(number))
    else:
        found = data.host_event(run_id, kind, int(number))
    margin = max(found.dur_ns, 5_000)
    low = found.start_ns - start_ns
    return max(low - margin, 0), low + found.dur_ns + margin


def move(view: View, low: float, high: float) -> None:
    """Show another part: into the URL, and again."""
    start, end = view.start_ns, view.end_ns
    width = max(high - low, NARROWEST_NS)
    low = min(max(low, start), max(end - width, start))
    high = min(low + width, end)
    if low <= start and high >= end:
        url_state.put(**{"from": None, "to": None, "around": None})
    else:
        part = {"from": math.floor(low - start), "to": math.ceil(high - start)}
        url_state.put(**part, around=None)


def buttons(view: View, steps: Sequence[StepTime]) -> None:
    """Zoom and move without a mouse."""
    low, high, width = view.low_ns, view.high_ns, view.width_ns
    middle = (low + high) / 2
    row = st.container(horizontal=True, vertical_alignment="bottom")
    for text, icon, new_low, new_high in (
        ("Whole trace", ":material/fit_screen:", view.start_ns, view.end_ns),
        ("Zoom in", ":material/zoom_in:", middle - width / 4, middle + width / 4),
        ("Zoom out", ":material/zoom_out:", middle - width, middle + width),
        ("Earlier", ":material/chevron_left:", low - width / 2, high - width / 2),
        ("Later", ":material/chevron_right:", low + width / 2, high + width / 2),
    ):
        row.button(
            text, icon=icon, on_click=move, args=(view, new_low, new_high), key=f"move {text}"
        )
    if 0 < len(steps) < MOST_STEPS:
        step_choice(view, steps, row)


def step_choice(view: View, steps: Sequence[StepTime], place: DeltaGenerator) -> None:
    """Go to a step by its name."""
    by_id = {str(step.step_id): step for step in steps}

    def name(key: str) -> str:
        return f"{format.short(by_id[key].name, 30)} ({by_id[key].phase})"

    def jump() -> None:
        step = by_id.get(st.session_state["jump"] or "")
        if step:
            move(view, step.start_ns, step.start_ns + step.elapsed_ns)

    place.selectbox(
        "Go to a step",
        list(by_id),
        index=None,
        key="jump",
        format_func=name,
        on_change=jump,
        placeholder="step",
        width=260,
    )


# -- drawing


@dataclass(frozen=True)
class Content:
    """What is drawn of a view beside the accounts."""

    slices: pl.DataFrame
    threads: Mapping[int, str]  # names
    main_thread: int | None
    event: str  # the chosen one


def drawing(
    view: View, content: Content, profile: pl.DataFrame | None, lanes: Sequence[Lane]
) -> Chart:
    """The timeline; without `profile`, without the accounts."""
    unit, divisor = format.unit([view.width_ns])
    rows = timeline.rectangles(
        profile, content.slices, [lane.key for lane in lanes], view.start_ns, divisor
    )
    return timeline.draw(
        rows,
        [lane.label for lane in lanes],
        (view.from_start(view.low_ns) / divisor, view.from_start(view.high_ns) / divisor),
        unit,
        content.event,
        session.is_dark(),
    )


def lanes_of(content: Content, profile: pl.DataFrame | None) -> tuple[list[Lane], int]:
    """The lanes that are drawn, and how many are folded away: of quiet threads, then streams."""
    found = timeline.lanes(profile, content.slices, content.threads, content.main_thread)
    most = MOST_OF_ALL_LANES if url_state.get("lanes") == "all" else MOST_LANES
    return timeline.busiest(found, content.slices, most), max(0, len(found) - most)


def say_folded(folded: int) -> None:
    """That there are more lanes, and the way to them."""
    everything = url_state.get("lanes") == "all"
    if not folded and not everything:
        return
    row = st.container(horizontal=True, vertical_alignment="center")
    if folded:
        row.markdown(f"{folded} more lanes of quieter threads and streams are not drawn.")
    row.button(
        "Busiest lanes only" if everything else "Draw all lanes",
        on_click=lambda: url_state.put(lanes=None if everything else "all"),
    )


def profile_of(view: View, content: Content, is_long: bool) -> pl.DataFrame | None:
    """The accounts along the view; of a long trace, whose first reading takes seconds, the rest is
    shown meanwhile.
    """

    def read() -> pl.DataFrame | None:
        return data.profile(view.run_id, view.trace_id, view.low_ns, view.high_ns, PROFILE_COLUMNS)

    place = st.empty()
    was_read = f"accounts of {view.run_id} {view.trace_id}"
    if is_long and was_read not in st.session_state:
        with place.container(), st.spinner("Reading what the host was in, once for this trace …"):
            components.only_chart(
                drawing(view, content, None, lanes_of(content, None)[0]),
                "Timeline of ops, calls and streams",
            )
            profile = read()
            st.session_state[was_read] = True
    else:
        profile = read()
    place.empty()
    return profile


def show(view: View, content: Content, profile: pl.DataFrame | None) -> None:
    """The timeline, and what a person does with it."""
    st.caption(
        f"{format.duration(view.width_ns)} of {format.duration(view.end_ns - view.start_ns)}. Drag "
        "to mark a part and zoom to it; click an event for its launch, op and match. Short events "
        "of a pixel column are drawn as one."
    )
    lanes, folded = lanes_of(content, profile)
    say_folded(folded)
    selection = components.selectable_chart(
        drawing(view, content, profile, lanes),
        "timeline",
        "Timeline of host accounts, ops, calls, device idle time by account, and streams",
        content.slices,
        run_id=view.run_id,
        key=f"timeline {view.run_id} {view.trace_id} {view.low_ns} {view.high_ns}",
    )
    respond(selection, view, content.event)


def respond(selection: Mapping[str, Any], view: View, event: str) -> None:
    """Act on a drag or a click."""
    _, divisor = format.unit([view.width_ns])
    part: list[float] = selection.get("window", {}).get("x") or []
    if len(part) == 2 and part[1] > part[0]:
        low, high = (view.start_ns + edge * divisor for edge in part)
        st.button(
            f"Zoom to the marked {format.duration(high - low)}",
            icon=":material/zoom_in:",
            type="primary",
            on_click=move,
            args=(view, low, high),
            key="zoom to marked",
        )
    clicked: list[dict[str, str]] = selection.get("event") or []
    new = clicked[0].get("event", "") if clicked else ""
    if new and new != event and new != st.session_state.get("last click"):
        st.session_state["last click"] = new
        url_state.put(event=new)
        st.rerun()


# -- one event


def choose_event(slices: pl.DataFrame) -> str:
    """The event of the URL, or another of the window's longest: what a click does, by keys."""
    longest = slices.filter(pl.col("events") == 1).sort("busy_ns", descending=True)
    names = {
        f"{kind}:{number}": f"{timeline.LANE_KINDS[kind]} {lane}: {format.short(name, 60)} · "
        f"{format.duration(busy)}"
        for kind, lane, number, name, busy in longest.select(
            "lane_kind", "lane", "id", "name", "busy_ns"
        )
        .head(MOST_LISTED)
        .iter_rows()
    }
    chosen = url_state.get("event")
    options = ["", *([chosen] if chosen and chosen not in names else []), *names]
    return url_state.select(
        "Event",
        options,
        "event",
        default="",
        show=lambda key: names.get(key, key) or "choose one of the longest here, or click one",
    )


def details(view: View, event: str) -> None:
    """The event of the URL: kernel, op, launch and match."""
    kind, _, number = event.partition(":")
    if kind not in timeline.LANE_KINDS or not number.isdigit():
        return
    st.subheader("The chosen event", anchor=False)
    if kind == "stream":
        found = data.device_event(view.run_id, int(number))
        name = found.kernel
    else:
        found = data.host_event(view.run_id, kind, int(number))
        name = found.name
    st.code(name or "(no name)", language=None, wrap_lines=True)
    rows = event_figures(found, view)
    components.table(
        pl.DataFrame({"": list(rows), "value": list(rows.values())}),
        "Figures of the chosen event",
        "event",
        exact=pl.DataFrame([vars(found)], infer_schema_length=None),
        all_rows=True,
    )
    if isinstance(found, DeviceEvent):
        event_links(found, view, event)


def event_figures(found: DeviceEvent | HostCall | HostOp, view: View) -> dict[str, str]:
    """What is known of an event, in words; ids left out."""
    rows: dict[str, str] = {}
    for key, value in vars(found).items():
        if value is None or key in ("kernel", "name") or key.endswith("_id"):
            continue
        if key.endswith("start_ns"):
            offset = value - view.start_ns
            text = f"{format.duration(offset)} from the start ({offset:,} ns)"
        elif key.endswith("_ns"):
            text = f"{format.duration(value)} ({format.exact(value)})"
        else:
            text = str(value)
        label = components.words(key[:-3]) if key.endswith("_ns") else key.replace("_", " ")
        rows[label] = text
    return rows


def event_links(found: DeviceEvent, view: View, event: str) -> None:
    """From a device event to its kernel, and to the part from its launch to its end."""
    row = st.container(horizontal=True)
    if found.kernel_id is not None:
        components.link(
            row,
            "pages/kernels.py",
            "Every launch of this kernel",
            ":material/memory:",
            {"run": view.run_id, "kernel": str(found.kernel_id)},
        )
    if found.call_start_ns is not None:
        low = found.call_start_ns - view.start_ns
        high = found.start_ns + found.dur_ns - view.start_ns
        margin = max((high - low) // 5, 2_000)
        components.link(
            row,
            "pages/timeline.py",
            "From its launch to its end",
            ":material/zoom_in:",
            {
                "run": view.run_id,
                "from": str(max(low - margin, 0)),
                "to": str(high + margin),
                "event": event,
            },
        )


def main() -> None:
    """The page."""
    run = components.choose_run("timeline")
    if run is None:
        return
    run_id = run.run_id
    traces = {
        str(row.trace_id): row
        for row in data.traces(run_id)
        if row.start_ns is not None and row.end_ns is not None and row.end_ns > row.start_ns
    }
    if not traces:
        st.info("No event of this run has a time, so there is nothing to draw.")
        return
    trace = choose_trace(traces)
    steps = data.step_times(run_id, trace.trace_id)
    view = view_of(run_id, trace, steps)
    buttons(view, steps)
    slices = data.slices(run_id, view.trace_id, view.low_ns, view.high_ns, COLUMNS)
    content = Content(
        slices,
        data.threads(run_id),
        steps[0].thread_id if steps else None,
        url_state.get("event"),
    )
    profile = profile_of(view, content, trace.events > MANY_EVENTS)
    event = content.event
    if slices.is_empty() and (profile is None or profile.is_empty()):
        st.info("Nothing ran in this part of the trace.")
    else:
        show(view, content, profile)
        event = choose_event(slices)
    if event:
        details(view, event)


with components.page(
    "Timeline", "What ran when, and what was the host doing while the device had nothing to do?"
):
    main()
