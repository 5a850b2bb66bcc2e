"""Prints a report for a terminal of 100 columns. Kernel names are text, never markup."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from analyzer import numbers
from analyzer.reports.report import ACCOUNT_MEANS

WIDTH = 100
BAR = 24


def console(file: Any = None) -> Console:
    """A console that wraps at 100 columns and colours only a terminal."""
    return Console(
        width=WIDTH, file=file, highlight=False, emoji=False, markup=False, soft_wrap=False
    )


def table(
    columns: Sequence[tuple[str, str]], rows: Sequence[Sequence[str]], indent: int = 2
) -> Table:
    """A plain table; a column is (heading, "left" | "right" | "name"); names are cut to fit."""
    result = Table(
        box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=any(h for h, _ in columns)
    )
    result.add_column("", width=max(indent - 2, 0))
    for heading, kind in columns:
        result.add_column(
            Text(heading, style="dim"),
            justify="right" if kind == "right" else "left",
            no_wrap=True,
            overflow="ellipsis",
            ratio=1 if kind == "name" else None,
        )
    result.expand = any(kind == "name" for _, kind in columns)
    for row in rows:
        result.add_row("", *[Text(printable(cell)) for cell in row])
    return result


def printable(text: str) -> str:
    """A stranger's text: what would move the cursor of a terminal is shown as an escape."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def bar(part: float, whole: float) -> str:
    """A bar of at most BAR characters."""
    return "█" * round(BAR * part / whole) if whole > 0 else ""


def heading(out: Console, text: str) -> None:
    """A section's title."""
    out.print()
    out.print(Text(text, style="bold"))


def print_report(value: dict[str, Any], out: Console) -> None:
    """Print everything of `report.report`."""
    _head(value["run"], out)
    out.print()
    out.print(Text(value["verdict"]["sentence"]))
    _balance(value, out)
    _ledger(value, out)
    _steps(value, out)
    _families(value["families"], out)
    _kernels(value, out)
    _ops(value["ops"], out)
    _latency(value, out)
    _host_speed(value["host_speed"], out)
    _predictions(value["predictions"], out)
    _floors(value["floors"], out)
    _coverage(value, out)
    _quality(value["quality"], out)


def _head(run: dict[str, Any], out: Console) -> None:
    out.print(
        Text(printable(f"{run['name']}  "), style="bold") + Text(run["run_id"][:12], style="dim")
    )
    facts = [
        run["model"],
        run["mode"],
        f"batch {run['batch_size']}" if run["batch_size"] else None,
        f"prompt {run['prompt_len']}" if run["prompt_len"] else None,
        f"{run['new_tokens']} new tokens" if run["new_tokens"] else None,
        run["dtype"],
        run["attention"],
        run["gpu"] or "GPU not named",
    ]
    out.print(Text(printable("  ".join(str(fact) for fact in facts if fact))))


def _balance(value: dict[str, Any], out: Console) -> None:
    measured, totals = value["measured"], value["totals"]
    lacking = value["verdict"]["unsupported"]
    steps = measured["steps"]
    whole = all(step["phase"] == "trace" for step in value["steps"])
    heading(
        out,
        "Balance over the whole trace"
        if whole
        else f"Balance over {steps} step{'s' * (steps != 1)}",
    )
    # What the trace cannot tell is a dash, not a zero that looks sound.
    active = None if "kernels" in lacking else measured["device_active_ns"]
    orchestration = measured["orchestration_ns"] if totals["launches"] else None
    framework, library, paper = (
        None if "operators" in lacking or not totals["launches"] else measured[key]
        for key in ("ft_ns", "ct_ns", "ct_paper_ns")
    )
    path = measured["kt_ns"] if totals["launches"] else None
    largest = max(orchestration or 0, active or 0, 1)
    floor = (
        f"launch floor {numbers.duration(totals['launch_floor_ns'])} ({totals['floor_source']})"
        if totals["launch_floor_ns"] is not None
        else "no launch floor"
    )

    def timed(label: str, ns: int | None, note: str) -> tuple[str, str, str, str]:
        return label, numbers.duration(ns), bar(ns or 0, largest), note

    above = "shown, in no sum" if measured["kt_fw_low_ns"] is not None else "needs kernel replay"
    rows = [
        (
            "HDBI",
            numbers.index(measured["hdbi"]),
            value["verdict"]["reading"],
            "0 host-bound, 1 device-bound",
        ),
        timed("T_DeviceActive", active, f"{numbers.count(measured['kernels'])} kernels"),
        timed(
            "T_Orchestration",
            orchestration,
            f"{numbers.count(measured['launches'])} launches, "
            f"{numbers.count(measured['graph_launches'])} of graphs",
        ),
        timed("  dFT framework", framework, "translation in Python and PyTorch"),
        timed("  dCT CUDA library", library, f"by the paper's rule {numbers.duration(paper)}"),
        timed("  dKT launch path", path, floor),
        ("  above the floor", _above_floor(measured), "", above),
        (
            "TKLQT",
            numbers.duration(measured["tklqt_ns"] if totals["launches"] else None),
            "",
            "launch and queueing time",
        ),
        (
            "device busy",
            numbers.duration(None if "device" in lacking else measured["device_busy_ns"]),
            "",
            f"union of all events; HDBI by it {numbers.index(measured['hdbi_busy'])}",
        ),
    ]
    out.print(table([("", "left"), ("", "right"), ("", "left"), ("", "name")], rows))


def _above_floor(measured: dict[str, Any]) -> str:
    low, high = measured["kt_fw_low_ns"], measured["kt_fw_high_ns"]
    if low is None:
        return numbers.UNKNOWN
    if measured["kt_fw_ns"] is not None or low == high:
        return numbers.duration(low)
    return f"{numbers.duration(low)} to {numbers.duration(high)}"


def _ledger(value: dict[str, Any], out: Console) -> None:
    ledger = value["measured"]["ledger"]
    wall = sum(entry["ns"] for entry in ledger.values())
    if not wall:
        return
    idle = value["verdict"]["idle_ns"]
    heading(out, "Ledger of the launching thread (exposed: while the GPU was idle)")
    rows = [
        (
            name,
            numbers.duration(entry["ns"]),
            numbers.share(entry["ns"] / wall),
            numbers.duration(None if idle is None else entry["exposed_ns"]),
            "" if idle is None else bar(entry["exposed_ns"], wall),
            ACCOUNT_MEANS[name],
        )
        for name, entry in ledger.items()
        if entry["ns"]
    ]
    rows.append(
        (
            "sum",
            numbers.duration(wall),
            "100 %",
            numbers.duration(idle),
            "",
            ""
            if idle is None
            else f"GPU idle {numbers.share(value['verdict']['idle_share'])} of it",
        )
    )
    out.print(
        table(
            [
                ("account", "left"),
                ("time", "right"),
                ("share", "right"),
                ("exposed", "right"),
                ("", "left"),
                ("", "name"),
            ],
            rows,
        )
    )


def _steps(value: dict[str, Any], out: Console) -> None:
    if all(step["phase"] == "trace" for step in value["steps"]):
        return
    heading(out, "Steps (profiled times, not latencies)")
    rows: list[tuple[str, ...]] = []
    shown = value["steps"][:12]
    for step in shown:
        rows.append(_step_row(step["name"], 1, step, value["verdict"]["unsupported"]))
    if len(value["steps"]) > len(shown):
        rows.append((f"... {len(value['steps']) - len(shown)} more", *[""] * 8))
    for phase, sums in value["phases"].items():
        if sums["steps"] > 1:
            rows.append(
                _step_row(
                    f"all {phase}, mean", sums["steps"], sums, value["verdict"]["unsupported"]
                )
            )
            rows.append(_median_row(phase, sums, value["verdict"]["unsupported"]))
    out.print(
        table(
            [
                ("step", "name"),
                ("elapsed", "right"),
                ("host", "right"),
                ("device", "right"),
                ("T_Orch", "right"),
                ("HDBI", "right"),
                ("launches", "right"),
                ("kernels", "right"),
                ("GPU idle", "right"),
            ],
            rows,
        )
    )


def _step_row(name: str, n: int, row: dict[str, Any], lacking: list[str]) -> tuple[str, ...]:
    def mean(value: int | None) -> float | None:
        return None if value is None else value / n

    idle, wall = row["device_idle_ns"], row["wall_ns"]
    if "device" in lacking:
        row, idle = {**row, "device_active_ns": None, "orchestration_ns": None}, None
    return (
        name,
        numbers.duration(mean(row["elapsed_ns"])),
        numbers.duration(mean(wall)),
        numbers.duration(mean(row["device_active_ns"])),
        numbers.duration(mean(row["orchestration_ns"])),
        numbers.index(row["hdbi"]),
        numbers.count(mean(row["launches"])),
        numbers.count(mean(row["kernels"])),
        numbers.share(idle / wall if idle is not None and wall else None),
    )


def _median_row(phase: str, sums: dict[str, Any], lacking: list[str]) -> tuple[str, ...]:
    device = ("device_active_ns", "orchestration_ns")
    return (
        f"all {phase}, median",
        *(
            numbers.duration(
                None if "device" in lacking and key in device else sums[f"median_{key}"]
            )
            for key in ("elapsed_ns", "wall_ns", *device)
        ),
        *[""] * 4,
    )


def _families(families: dict[str, dict[str, Any]], out: Console) -> None:
    if not families:
        return
    heading(out, "Kernel families")
    rows = [
        (
            name,
            numbers.duration(row["device_ns"]),
            numbers.share(row["share"]),
            numbers.count(row["events"]),
            numbers.count(row["distinct_kernels"] or None),
            numbers.duration(row["launch_ns"]),
            numbers.duration(row["above_floor_ns"]),
            numbers.duration(row["ft_ns"]),
            numbers.duration(row["ct_ns"]),
        )
        for name, row in families.items()
    ]
    out.print(
        table(
            [
                ("family", "left"),
                ("device", "right"),
                ("share", "right"),
                ("events", "right"),
                ("distinct", "right"),
                ("launch p50", "right"),
                ("above floor", "right"),
                ("dFT", "right"),
                ("dCT", "right"),
            ],
            rows,
        )
    )


def _kernels(value: dict[str, Any], out: Console) -> None:
    if not value["kernels"]:
        return
    heading(out, "Longest kernels")
    rows = [
        (
            row["clean_name"],
            row["op"] or numbers.UNKNOWN,
            numbers.count(row["kernels"]),
            numbers.duration(row["device_ns"]),
            numbers.duration(row["p50_ns"]),
            numbers.duration(row["launch_ns"]),
            row["match_tier"] or numbers.UNKNOWN,
        )
        for row in value["kernels"][:10]
    ]
    out.print(
        table(
            [
                ("kernel", "name"),
                ("op", "left"),
                ("n", "right"),
                ("device", "right"),
                ("p50", "right"),
                ("launch", "right"),
                ("match", "left"),
            ],
            rows,
        )
    )


def _ops(ops: list[dict[str, Any]], out: Console) -> None:
    if not ops:
        return
    heading(out, "Operators that cost the host most")
    rows = [
        (
            row["op"],
            numbers.count(row["launches"]),
            numbers.duration(row["host_ns"]),
            numbers.duration(row["t_py_ns"]),
            numbers.duration(row["t_dispatch_ns"]),
            numbers.duration(row["ct_ns"]),
            numbers.duration(row["device_ns"]),
        )
        for row in ops[:10]
    ]
    out.print(
        table(
            [
                ("op", "name"),
                ("launches", "right"),
                ("host", "right"),
                ("T_py", "right"),
                ("T_dispatch", "right"),
                ("dCT", "right"),
                ("device", "right"),
            ],
            rows,
        )
    )


def _latency(value: dict[str, Any], out: Console) -> None:
    latency = value["latency"]
    if not latency:
        return
    heading(out, "Latency, measured without the profiler")
    rows = [
        (
            name,
            numbers.count(row["n"]),
            *[numbers.duration(row[k]) for k in ("p50_ns", "p95_ns", "p99_ns", "mean_ns")],
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
    inflation: dict[str, float] = value["inflation"] or {}
    beside: dict[str, Any] = value["host_speed"]["beside"] if value["host_speed"] else {}
    for phase, factor in inflation.items():
        than = " as the un-profiled one just before it" if phase in beside else ""
        out.print(Text(f"  a profiled {phase} step takes {factor:.2f} times as long{than}"))


def _host_speed(speed: dict[str, Any] | None, out: Console) -> None:
    if speed is None:
        return
    heading(out, "Host speed: the time of a fixed piece of work, more is slower")
    spread = (
        ""
        if speed["traces_ns"] is None
        else f"{numbers.duration(speed['trace_low_ns'])} to "
        f"{numbers.duration(speed['trace_high_ns'])}"
    )
    rows = [
        ("during the traces", numbers.duration(speed["traces_ns"]), spread),
        ("during the latency requests", numbers.duration(speed["latency_ns"]), ""),
        ("during floor or kernel replay", numbers.duration(speed["floor_ns"]), ""),
    ]
    if speed["like"]:
        rows.append(("held to that of another run", numbers.duration(speed["target_ns"]), ""))
    out.print(table([("", "left"), ("", "right"), ("", "left")], rows))
    for note in speed["notes"]:
        out.print(Text(printable(f"  {note}")))


def _predictions(value: dict[str, Any] | None, out: Console) -> None:
    if value is None or not value["predictions"]:
        return
    prediction_table(value, out)
    out.print(Text(f"  {value['validated']}"))


def prediction_table(value: dict[str, Any], out: Console) -> None:
    """Each change and phase: predicted time, bounds, what it is against the step as it is."""
    heading(out, "Predicted step times")
    rows: list[tuple[str, ...]] = []
    reasons: dict[str, None] = {}
    for p in value["predictions"]:
        best = p["predicted_ns"]
        rows.append(
            (
                p["what"],
                p["phase"],
                numbers.duration(p["base_ns"]),
                numbers.duration(best),
                f"{numbers.duration(p['low_ns'])} to {numbers.duration(p['high_ns'])}",
                numbers.UNKNOWN if not best else f"{p['base_ns'] / best:.2f} x",
            )
        )
        if p["reason"]:
            reasons[f"{p['what']}: {p['reason']}"] = None
    out.print(
        table(
            [
                ("change", "left"),
                ("phase", "left"),
                ("now", "right"),
                ("predicted", "right"),
                ("bounds", "right"),
                ("speed", "right"),
            ],
            rows,
        )
    )
    for reason in reasons:
        out.print(Text(printable(f"  {reason}")))


def _coverage(value: dict[str, Any], out: Console) -> None:
    heading(out, "Coverage")
    c, totals = value["coverage"], value["totals"]
    events = c["device_events"]

    def of(part: int, whole: int) -> str:
        return f"{numbers.count(part)} of {numbers.count(whole)}" + (
            f" ({part / whole:.1%})" if whole else ""
        )

    rows = [
        ("device events with a launch", of(c["with_launch"], events)),
        ("device events with an op", of(c["with_op"], events)),
        ("launches on an idle stream (clean)", of(c["clean_launches"], c["launches"])),
        (
            "orphans",
            f"{numbers.count(totals['orphan_device_events'])}, "
            f"{numbers.duration(totals['orphan_device_ns'])} of device time",
        ),
        (
            "kernels",
            f"{numbers.count(totals['kernels'])}, {numbers.count(c['distinct_kernels'])} names, "
            f"{numbers.count(c['kernel_identities'])} identities",
        ),
    ]
    if value["kernels_per_output_token"] is not None:
        rows.append(("kernels per output token", numbers.count(value["kernels_per_output_token"])))
    match = value["match"]
    if match is None:
        rows.append(("kernel replay", "none in this run: no match tiers"))
    else:
        for tier, row in match.items():
            rows.append(
                (
                    f"match {tier}",
                    f"{numbers.count(row['launches'])} launches, "
                    f"{numbers.share(row['cost_share'])} of the cost",
                )
            )
    out.print(table([("", "left"), ("", "left")], rows))


def _floors(floors: list[dict[str, Any]], out: Console) -> None:
    if not floors:
        return
    heading(out, "Launch floor, measured with an empty kernel")
    rows = [
        (
            floor["launch_api"],
            floor["definition"].replace("_", " "),
            numbers.count(floor["n"]),
            *(numbers.duration(floor[key]) for key in ("p5_ns", "p50_ns", "mean_ns", "p95_ns")),
        )
        for floor in floors
    ]
    figures = [(name, "right") for name in ("n", "p5", "p50", "mean", "p95")]
    out.print(table([("launch API", "left"), ("definition", "left"), *figures], rows))


def _quality(quality: list[dict[str, Any]], out: Console) -> None:
    if not quality:
        return
    heading(out, "What to know about this trace")
    for row in quality:
        style = "yellow" if row["severity"] == "warning" else "dim"
        line = Text("  ")
        line.append(f"{row['severity']}: ", style=style)
        line.append(printable(row["message"]))
        out.print(line)
