"""Prints what was measured without the profiler: latency, the host's speed, launch floors."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from analyzer import numbers
from analyzer.queries.records import Floor
from analyzer.render.tables import heading, table
from analyzer.reports.records import HostSpeed, RunSummary


def print_latency(value: RunSummary, out: Console) -> None:
    """Print latencies, and how much longer profiled steps took; nothing if not measured."""
    latency = value.latency
    if not latency:
        return
    heading(out, "Latency, measured without the profiler")
    rows = [
        (
            name,
            numbers.count(row.n),
            *[numbers.duration(ns) for ns in (row.p50_ns, row.p95_ns, row.p99_ns, row.mean_ns)],
        )
        for name, row in latency.items()
    ]
    out.print(
        table(
            [
                ("", "left"),
                ("n", "right"),
                ("p50", "right"),
                ("p95", "right"),
                ("p99", "right"),
                ("mean", "right"),
            ],
            rows,
        )
    )
    beside = value.host_speed.beside if value.host_speed else {}
    for phase, factor in (value.inflation or {}).items():
        than = " as the un-profiled one just before it" if phase in beside else ""
        out.print(Text(f"  a profiled {phase} step takes {factor:.2f} times as long{than}"))


def print_host_speed(speed: HostSpeed | None, out: Console) -> None:
    """Print how fast the host was; nothing if not measured."""
    if speed is None:
        return
    heading(out, "Host speed: the time of a fixed piece of work, more is slower")
    spread = (
        ""
        if speed.traces_ns is None
        else f"{numbers.duration(speed.trace_low_ns)} to {numbers.duration(speed.trace_high_ns)}"
    )
    rows = [
        ("during the traces", numbers.duration(speed.traces_ns), spread),
        ("during the latency requests", numbers.duration(speed.latency_ns), ""),
        ("during floor or kernel replay", numbers.duration(speed.floor_ns), ""),
    ]
    out.print(table([("", "left"), ("", "right"), ("", "left")], rows))


def print_floors(floors: list[Floor], out: Console) -> None:
    """Print launch floors; nothing if not measured."""
    if not floors:
        return
    heading(out, "Launch floor, measured with an empty kernel")
    rows = [
        (
            floor.launch_api,
            floor.definition.replace("_", " "),
            numbers.count(floor.n),
            *(
                numbers.duration(ns)
                for ns in (floor.p5_ns, floor.p50_ns, floor.mean_ns, floor.p95_ns)
            ),
        )
        for floor in floors
    ]
    figures = [(name, "right") for name in ("n", "p5", "p50", "mean", "p95")]
    out.print(table([("launch API", "left"), ("definition", "left"), *figures], rows))
