"""Prints a report for a terminal of 100 columns. Kernel names are text, never markup."""

from __future__ import annotations

import shlex

from rich.console import Console
from rich.text import Text

from analyzer import numbers
from analyzer.queries.costs import Step, StepTotals
from analyzer.queries.records import Family, Finding, Op, Run
from analyzer.render.measurements import print_floors, print_host_speed, print_latency
from analyzer.render.prediction import prediction_table
from analyzer.render.ranks import print_ranks
from analyzer.render.step_groups import print_step_groups
from analyzer.render.tables import bar, heading, printable, table
from analyzer.reports.records import PhaseFigures, Predictions, RunReport
from analyzer.reports.verdict import ACCOUNT_MEANS


def print_report(value: RunReport, out: Console) -> None:
    """Print a report."""
    _head(value.run, value.steps_told, out)
    out.print()
    if value.evidence.sentence:
        doctor = f"`analyzer doctor {shlex.quote(value.run.name)}` says what to do."
        line = f"Evidence: {value.evidence.sentence} {doctor}"
        out.print(Text(printable(line), style="yellow"))
    out.print(Text(printable(value.verdict.sentence)))
    _balance(value, out)
    _ledger(value, out)
    print_ranks(value.ranks, out)
    _steps(value, out)
    _families(value.families, out)
    _kernels(value, out)
    _ops(value.ops, value.evidence.kind("host_cost"), out)
    print_latency(value, out)
    print_host_speed(value.host_speed, out)
    _predictions(value.predictions, out)
    print_floors(value.floors, out)
    _coverage(value, out)
    _quality(value.quality, out)


def _head(run: Run, steps_told: str, out: Console) -> None:
    out.print(Text(printable(f"{run.name}  "), style="bold") + Text(run.run_id[:12], style="dim"))
    facts = [
        run.model,
        run.mode,
        f"batch {run.batch_size}" if run.batch_size else None,
        f"prompt {run.prompt_len}" if run.prompt_len else None,
        f"{run.new_tokens} new tokens" if run.new_tokens else None,
        run.dtype,
        run.attention,
        run.gpu or "GPU not named",
    ]
    out.print(Text(printable("  ".join(str(fact) for fact in facts if fact))))
    out.print(Text(printable(f"steps: {steps_told}")))


def _balance(value: RunReport, out: Console) -> None:
    measured, totals = value.measured, value.totals
    lacking = value.verdict.unsupported
    steps = measured.steps
    whole = value.is_whole_trace
    heading(
        out,
        "Balance over the whole trace"
        if whole
        else f"Balance over {steps} step{'s' * (steps != 1)}",
    )
    # What the trace cannot tell is a dash, not a zero that looks sound.
    active = measured.device_active_ns
    orchestration = measured.orchestration_ns if totals.launches else None
    framework, library, paper = (
        None if "operators" in lacking or not totals.launches else ns
        for ns in (measured.ft_ns, measured.ct_ns, measured.ct_paper_ns)
    )
    path = measured.kt_ns if totals.launches else None
    # Without a floor T_Orchestration is unknown, and its parts may be larger than all else.
    largest = max(*(ns or 0 for ns in (orchestration, active, framework, library, path)), 1)
    floor = (
        f"launch floor {numbers.duration(totals.launch_floor_ns)} ({totals.floor_source})"
        if totals.launch_floor_ns is not None
        else "no launch floor"
    )

    kind = value.evidence.kind

    def timed(label: str, ns: int | None, note: str, group: str) -> tuple[str, str, str, str]:
        text = numbers.bounded(kind(group), numbers.duration(ns))
        return label, text, bar(ns or 0, largest), note

    above = "shown, in no sum" if measured.kt_fw_low_ns is not None else "needs kernel replay"
    rows = [
        (
            "HDBI",
            numbers.index(measured.hdbi),
            value.verdict.reading,
            "0 host-bound, 1 device-bound",
        ),
        timed(
            "T_DeviceActive",
            active,
            f"{numbers.bounded(kind('device_time'), numbers.count(measured.kernels))} kernels",
            "device_time",
        ),
        timed(
            "T_Orchestration",
            orchestration,
            f"{numbers.bounded(kind('launches'), numbers.count(measured.launches))} launches, "
            f"{numbers.count(measured.graph_launches)} of graphs",
            "host_cost",
        ),
        timed("  dFT framework", framework, "translation in Python and PyTorch", "host_cost"),
        timed(
            "  dCT CUDA library",
            library,
            f"by the paper's rule {numbers.duration(paper)}",
            "host_cost",
        ),
        timed("  dKT launch path", path, floor, "host_cost"),
        ("  above the floor", _above_floor(measured), "", above),
        (
            "TKLQT",
            numbers.duration(measured.tklqt_ns if totals.launches else None),
            "",
            "launch and queueing time",
        ),
        (
            "device busy",
            numbers.bounded(
                kind("device_time"),
                numbers.duration(None if "device" in lacking else measured.device_busy_ns),
            ),
            "",
            f"union of all events; HDBI by it {numbers.index(measured.hdbi_busy)}",
        ),
    ]
    if totals.event_sum_outside_steps_ns:
        rows.append(
            (
                "outside the steps",
                numbers.duration(totals.event_sum_outside_steps_ns),
                "",
                "device time that belongs to no step; kernels in it "
                f"{numbers.duration(totals.active_outside_steps_ns)}",
            )
        )
    out.print(table([("", "left"), ("", "right"), ("", "left"), ("", "name")], rows))


def _above_floor(measured: StepTotals) -> str:
    low, high = measured.kt_fw_low_ns, measured.kt_fw_high_ns
    if low is None:
        return numbers.UNKNOWN
    if measured.kt_fw_ns is not None or low == high:
        return numbers.duration(low)
    return f"{numbers.duration(low)} to {numbers.duration(high)}"


def _ledger(value: RunReport, out: Console) -> None:
    ledger = value.measured.ledger
    wall = sum(entry.ns for entry in ledger.values())
    if not wall:
        return
    idle = value.verdict.idle_ns
    at_most = value.evidence.kind("device_idle") + " " * bool(value.evidence.kind("device_idle"))
    heading(out, "Ledger of the launching thread (exposed: while the GPU was idle)")
    rows = [
        (
            name,
            numbers.duration(entry.ns),
            numbers.share(entry.ns / wall),
            numbers.duration(None if idle is None else entry.exposed_ns),
            "" if entry.exposed_ns is None else bar(entry.exposed_ns, wall),
            ACCOUNT_MEANS[name],
        )
        for name, entry in ledger.items()
        if entry.ns
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
            else f"GPU idle {at_most}{numbers.share(value.verdict.idle_share)} of it",
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


def _steps(value: RunReport, out: Console) -> None:
    if value.is_whole_trace:
        return
    heading(out, "Steps (profiled times, not latencies)")
    rows: list[tuple[str, ...]] = []
    shown = value.steps[:12]
    for step in shown:
        rows.append(_step_row(step.name, 1, step, value))
    if len(value.steps) > len(shown):
        rows.append((f"... {len(value.steps) - len(shown)} more", *[""] * 8))
    for phase, sums in value.phases.items():
        if sums.steps > 1:
            rows.append(_step_row(f"all {phase}, mean", sums.steps, sums, value))
            rows.append(_median_row(phase, sums, value))
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
    print_step_groups(value.step_groups, out)


def _step_row(name: str, n: int, row: Step | StepTotals, value: RunReport) -> tuple[str, ...]:
    bounded, kind = numbers.bounded, value.evidence.kind

    def mean(value: int | None) -> float | None:
        return None if value is None else value / n

    idle, wall = row.device_idle_ns, row.wall_ns
    active: int | None = row.device_active_ns
    orchestration = row.orchestration_ns
    if "device" in value.verdict.unsupported:
        active = orchestration = idle = None
    return (
        name,
        bounded(kind("step_time"), numbers.duration(mean(row.elapsed_ns))),
        bounded(kind("host_time"), numbers.duration(mean(wall))),
        bounded(kind("device_time"), numbers.duration(mean(active))),
        bounded(kind("host_cost"), numbers.duration(mean(orchestration))),
        numbers.index(row.hdbi),
        bounded(kind("launches"), numbers.count(mean(row.launches))),
        bounded(kind("device_time"), numbers.count(mean(row.kernels))),
        bounded(
            kind("device_idle"), numbers.share(idle / wall if idle is not None and wall else None)
        ),
    )


def _median_row(phase: str, sums: PhaseFigures, value: RunReport) -> tuple[str, ...]:
    bounded, kind = numbers.bounded, value.evidence.kind
    active, orchestration = sums.median_device_active_ns, sums.median_orchestration_ns
    if "device" in value.verdict.unsupported:
        active = orchestration = None
    return (
        f"all {phase}, median",
        bounded(kind("step_time"), numbers.duration(sums.median_elapsed_ns)),
        bounded(kind("host_time"), numbers.duration(sums.median_wall_ns)),
        bounded(kind("device_time"), numbers.duration(active)),
        bounded(kind("host_cost"), numbers.duration(orchestration)),
        *[""] * 4,
    )


def _families(families: dict[str, Family], out: Console) -> None:
    if not families:
        return
    heading(out, "Kernel families")
    rows = [
        (
            name,
            numbers.duration(row.device_ns),
            numbers.share(row.share),
            numbers.count(row.events),
            numbers.count(row.distinct_kernels or None),
            numbers.duration(row.launch_ns),
            numbers.duration(row.above_floor_ns),
            numbers.duration(row.ft_ns),
            numbers.duration(row.ct_ns),
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


def _kernels(value: RunReport, out: Console) -> None:
    if not value.kernels:
        return
    heading(out, "Longest kernels")
    rows = [
        (
            row.clean_name,
            row.op or numbers.UNKNOWN,
            numbers.count(row.kernels),
            numbers.duration(row.device_ns),
            numbers.duration(row.p50_ns),
            numbers.duration(row.launch_ns),
            row.match_tier or numbers.UNKNOWN,
        )
        for row in value.kernels[:10]
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


def _ops(ops: list[Op], kind: str, out: Console) -> None:
    if not ops:
        return
    heading(out, "Operators that cost the host most")
    rows = [
        (
            row.op,
            numbers.count(row.launches),
            numbers.bounded(kind, numbers.duration(row.host_ns)),
            numbers.duration(row.t_py_ns),
            numbers.duration(row.t_dispatch_ns),
            numbers.duration(row.ct_ns),
            numbers.duration(row.device_ns),
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


def _predictions(value: Predictions | None, out: Console) -> None:
    if value is None or not value.predictions:
        return
    prediction_table(value, out)
    out.print(Text(f"  {value.validated}"))


def _coverage(value: RunReport, out: Console) -> None:
    heading(out, "Coverage")
    c, totals = value.coverage, value.totals
    events = c.device_events

    def of(part: int, whole: int) -> str:
        return f"{numbers.count(part)} of {numbers.count(whole)}" + (
            f" ({part / whole:.1%})" if whole else ""
        )

    rows = [
        ("device events with a launch", of(c.with_launch, events)),
        ("device events with an op", of(c.with_op, events)),
        ("launches on an idle stream (clean)", of(c.clean_launches, c.launches)),
        (
            "orphans",
            f"{numbers.count(totals.orphan_device_events)}, "
            f"{numbers.duration(totals.orphan_device_ns)} of device time",
        ),
        (
            "kernels",
            f"{numbers.count(totals.kernels)}, {numbers.count(c.distinct_kernels)} names, "
            f"{numbers.count(c.kernel_identities)} identities",
        ),
    ]
    if value.kernels_per_output_token is not None:
        rows.append(("kernels per output token", numbers.count(value.kernels_per_output_token)))
    match = value.match
    if match is None:
        rows.append(("kernel replay", "none in this run: no match tiers"))
    else:
        for tier, row in match.items():
            rows.append(
                (
                    f"match {tier}",
                    f"{numbers.count(row.launches)} launches, "
                    f"{numbers.share(row.cost_share)} of the cost",
                )
            )
    out.print(table([("", "left"), ("", "left")], rows))


def _quality(quality: list[Finding], out: Console) -> None:
    if not quality:
        return
    heading(out, "What to know about this trace")
    for row in quality:
        style = "yellow" if row.severity == "warning" else "dim"
        line = Text("  ")
        line.append(f"{row.severity}: ", style=style)
        line.append(printable(row.message))
        out.print(line)
