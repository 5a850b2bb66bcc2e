"""What ran when: host, calls, streams, and what the host did while the device was idle."""

from __future__ import annotations

import math
from typing import Any

import polars as pl
import streamlit as st

from webapp import address, charts, data, format, frame

COLUMNS = 700
PROFILE_COLUMNS = 350
NARROWEST_NS = 200
MOST_LISTED = 200
MOST_LANES = 24
# Events from which the accounts take so long to read that the rest is drawn first.
MANY_EVENTS = 300_000


def whole_number(name: str) -> int | None:
    """A number of the address; what is no number is not there."""
    try:
        return int(address.get(name))
    except ValueError:
        return None


def window(start_ns: int, end_ns: int) -> tuple[int, int]:
    """The part of the trace that the address asks for, clipped to the trace."""
    low, high = whole_number("from"), whole_number("to")
    low = start_ns if low is None else start_ns + low
    high = end_ns if high is None else start_ns + high
    low = min(max(low, start_ns), end_ns - 1)
    high = min(max(high, low + min(NARROWEST_NS, end_ns - low)), end_ns)
    return (low, high) if high > low else (start_ns, end_ns)


def move(start_ns: int, end_ns: int, low: float, high: float) -> None:
    """Show another part: into the address, and again."""
    width = max(high - low, NARROWEST_NS)
    low = min(max(low, start_ns), max(end_ns - width, start_ns))
    high = min(low + width, end_ns)
    if low <= start_ns and high >= end_ns:
        address.put(**{"from": None, "to": None})
    else:
        address.put(**{"from": math.floor(low - start_ns), "to": math.ceil(high - start_ns)})


def buttons(start_ns: int, end_ns: int, low: int, high: int, steps: list[dict[str, Any]]) -> None:
    """Zoom and move without a mouse."""
    width, middle = high - low, (low + high) / 2
    row = st.container(horizontal=True, vertical_alignment="bottom")
    moves = (
        ("Whole trace", ":material/fit_screen:", start_ns, end_ns, ""),
        ("Zoom in", ":material/zoom_in:", middle - width / 4, middle + width / 4, ""),
        ("Zoom out", ":material/zoom_out:", middle - width, middle + width, ""),
        ("Earlier", ":material/chevron_left:", low - width / 2, high - width / 2, ""),
        ("Later", ":material/chevron_right:", low + width / 2, high + width / 2, ""),
    )
    for text, icon, new_low, new_high, _ in moves:
        row.button(
            text,
            icon=icon,
            on_click=move,
            args=(start_ns, end_ns, new_low, new_high),
            key=f"move {text}",
        )
    if steps:
        names = {str(step["step_id"]): step for step in steps}

        def jump() -> None:
            step = names.get(st.session_state["jump"] or "")
            if step:
                move(start_ns, end_ns, step["start_ns"], step["start_ns"] + step["elapsed_ns"])

        row.selectbox(
            "Go to a step",
            list(names),
            index=None,
            key="jump",
            format_func=lambda key: (
                f"{format.short(names[key]['name'], 30)} ({names[key]['phase']})"
            ),
            on_change=jump,
            placeholder="step",
            width=260,
        )


def details(run_id: str, event: str, origin_ns: int) -> None:
    """The event of the address: kernel, op, launch and match."""
    kind, _, number = event.partition(":")
    if kind not in ("stream", "op", "region", "call") or not number.isdigit():
        return
    st.subheader("The chosen event", anchor=False)
    if kind == "stream":
        found = data.ask("device_event", run_id, int(number))
        title = found["kernel"]
    else:
        found = data.ask("host_event", run_id, kind, int(number))
        title = found["name"]
    st.code(title or "(no name)", language=None, wrap_lines=True)
    rows: list[tuple[str, str]] = []
    for key, value in found.items():
        if value is None or key in ("kernel", "name") or key.endswith("_id"):
            continue
        if key.endswith("start_ns"):
            text = f"{format.duration(value - origin_ns)} from the start ({value - origin_ns:,} ns)"
        elif key.endswith("_ns"):
            text = f"{format.duration(value)} ({format.exact(value)})"
        else:
            text = str(value)
        rows.append((frame.words(key[:-3]) if key.endswith("_ns") else key.replace("_", " "), text))
    frame.table(
        pl.DataFrame({"": [r[0] for r in rows], "value": [r[1] for r in rows]}),
        "Figures of the chosen event",
        "event",
        exact=pl.DataFrame([found], infer_schema_length=None),
        height="content",
    )
    if kind == "stream":
        row = st.container(horizontal=True)
        if found["kernel_id"] is not None:
            frame.go(
                "pages/kernels.py",
                "Every launch of this kernel",
                ":material/memory:",
                {"run": run_id, "kernel": str(found["kernel_id"])},
                row,
            )
        if found["call_start_ns"] is not None:
            low = found["call_start_ns"] - origin_ns
            high = found["start_ns"] + found["dur_ns"] - origin_ns
            margin = max((high - low) // 5, 2000)
            frame.go(
                "pages/timeline.py",
                "From its launch to its end",
                ":material/zoom_in:",
                {
                    "run": run_id,
                    "from": str(max(low - margin, 0)),
                    "to": str(high + margin),
                    "event": event,
                },
                row,
            )


def main() -> None:
    """The page."""
    run = frame.choose_run()
    if run is None:
        return
    run_id = run["run_id"]
    frame.links(run_id, "timeline")
    traces = {
        str(row["trace_id"]): row
        for row in data.ask("traces", run_id)
        if row["start_ns"] is not None and row["end_ns"] > row["start_ns"]
    }
    if not traces:
        st.info("No event of this run has a time, so there is nothing to draw.")
        return
    trace = next(iter(traces))
    if len(traces) > 1:
        trace = address.select(
            "Trace",
            list(traces),
            "trace",
            show=lambda t: f"{t}: {format.short(traces[t]['file'], 50)}",
        )
    trace_id = int(trace)
    steps = data.ask("step_times", run_id, trace_id)
    start_ns = min([traces[trace]["start_ns"], *(step["start_ns"] for step in steps)])
    end_ns = max([traces[trace]["end_ns"], *(step["end_ns"] for step in steps)])
    low, high = window(start_ns, end_ns)
    buttons(start_ns, end_ns, low, high, steps if len(steps) < 2000 else [])
    slices = data.ask("slices", run_id, trace_id, low, high, COLUMNS)
    threads = data.ask("threads", run_id)
    main_thread = steps[0]["thread_id"] if steps else None
    unit, scale = format.unit([high - low])
    event = address.get("event")

    def drawing(profile: pl.DataFrame | None) -> Any:
        lanes = charts.lanes(profile, slices, threads, main_thread)[:MOST_LANES]
        rows = charts.timeline_rows(profile, slices, [key for key, _ in lanes], start_ns, scale)
        return charts.timeline(
            rows,
            [label for _, label in lanes],
            ((low - start_ns) / scale, (high - start_ns) / scale),
            unit,
            event,
            frame.is_dark(),
        )

    place = st.empty()
    read = f"accounts of {run_id} {trace}"
    if traces[trace]["events"] > MANY_EVENTS and read not in st.session_state:
        with place.container(), st.spinner("Reading what the host was in, once for this trace …"):
            frame.only_chart(drawing(None), "Timeline of ops, calls and streams")
            profile = data.profile(run_id, trace_id, low, high, PROFILE_COLUMNS)
            st.session_state[read] = True
    else:
        profile = data.profile(run_id, trace_id, low, high, PROFILE_COLUMNS)
    place.empty()
    if slices.is_empty() and (profile is None or profile.is_empty()):
        st.info("Nothing ran in this part of the trace.")
    else:
        st.caption(
            f"{format.duration(high - low)} of {format.duration(end_ns - start_ns)}. Drag to mark "
            "a part and zoom to it; click an event for its launch, op and match. Short events of a "
            "pixel column are drawn as one."
        )
        state = frame.chart(
            drawing(profile),
            "timeline",
            "Timeline of host accounts, ops, calls, device idle time by account, and streams",
            slices,
            of=run_id,
            on_select="rerun",
            key=f"timeline {run_id} {trace} {low} {high}",
        )
        respond(state, start_ns, end_ns, scale, event)
        event = choose_event(slices)
    if event:
        details(run_id, event, start_ns)


def choose_event(slices: pl.DataFrame) -> str:
    """The event of the address, or another of the window's longest: what a click does, by keys."""
    longest = slices.filter(pl.col("events") == 1).sort("busy_ns", descending=True)
    names = {
        f"{kind}:{number}": f"{charts.LANE_KINDS[kind]} {lane}: {format.short(name, 60)} · "
        f"{format.duration(busy)}"
        for kind, lane, number, name, busy in longest.select(
            "lane_kind", "lane", "id", "name", "busy_ns"
        )
        .head(MOST_LISTED)
        .iter_rows()
    }
    chosen = address.get("event")
    options = ["", *([chosen] if chosen and chosen not in names else []), *names]
    return address.select(
        "Event",
        options,
        "event",
        default="",
        show=lambda key: names.get(key, key) or "choose one of the longest here, or click one",
    )


def respond(state: Any, start_ns: int, end_ns: int, scale: float, event: str) -> None:
    """Act on a drag or a click."""
    selection = (state or {}).get("selection", {})
    part = selection.get("window", {}).get("x")
    if part and len(part) == 2 and part[1] > part[0]:
        low, high = (start_ns + edge * scale for edge in part)
        st.button(
            f"Zoom to the marked {format.duration(high - low)}",
            icon=":material/zoom_in:",
            type="primary",
            on_click=move,
            args=(start_ns, end_ns, low, high),
            key="zoom to marked",
        )
    clicked = selection.get("event") or []
    new = clicked[0].get("event", "") if clicked else ""
    if new and new != event and new != st.session_state.get("last click"):
        st.session_state["last click"] = new
        address.put(event=new)
        st.rerun()


with frame.page(
    "Timeline", "What ran when, and what was the host doing while the device had nothing to do?"
):
    main()
