"""Prints what a run's ranks waited for; names out of traces are text, never markup."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from analyzer import numbers
from analyzer.render.tables import bar, heading, printable, table
from analyzer.reports.ranks import RankReport


def print_ranks(value: RankReport | None, out: Console) -> None:
    """Print the ranks of a run; nothing for a run without."""
    if value is None:
        return
    heading(out, f"Ranks: {len(value.ranks)} (a median step; waits are within collectives)")
    out.print(Text(printable(f"  {value.sentence}")))
    most = max((one.wait_ns or 0 for one in value.ranks), default=0)
    out.print(
        table(
            [
                ("rank", "left"),
                ("steps", "right"),
                ("waits", "right"),
                ("", "left"),
                ("transfers", "right"),
                ("of a step", "right"),
                ("host ahead", "right"),
                ("clock", "right"),
                ("error", "right"),
            ],
            [
                (
                    one.label,
                    numbers.count(one.steps),
                    numbers.duration(one.wait_ns),
                    bar(one.wait_ns or 0, 2 * most),
                    numbers.duration(one.transfer_ns),
                    numbers.duration(one.elapsed_ns),
                    numbers.duration(one.ahead_ns),
                    numbers.signed(one.clock_offset_ns),
                    numbers.duration(one.clock_error_ns),
                )
                for one in value.ranks
            ],
        )
    )
    _left_out(value, out)
    _charges(value, out)
    _held_by(value, out)
    _collectives(value, out)


def _left_out(value: RankReport, out: Console) -> None:
    for one in value.ranks:
        if one.unrecorded_ns:
            out.print(
                Text(
                    f"  left out: {numbers.duration(one.unrecorded_ns)} that {one.label} waited "
                    "before anything of the late rank was recorded"
                )
            )
    if value.step_skew_p50_ns is not None:
        out.print(
            Text(
                f"  the ranks begin a step {numbers.duration(value.step_skew_p50_ns)} apart "
                f"(median; 95 % within {numbers.duration(value.step_skew_p95_ns)})"
            )
        )


def _charges(value: RankReport, out: Console) -> None:
    if not value.charges:
        return
    heading(out, "What the late rank did while another waited for it (all steps)")
    rows = [
        (
            f"{one.rank}",
            f"{one.late_rank}",
            one.account,
            numbers.duration(one.ns),
            numbers.share(one.share),
            bar(one.share, 1),
        )
        for one in value.charges[:12]
    ]
    columns = ("waits", "late", "account of the late", "time", "share", "")
    kinds = ("left", "left", "left", "right", "right", "left")
    out.print(table(list(zip(columns, kinds, strict=True)), rows))


def _held_by(value: RankReport, out: Console) -> None:
    rows = [
        (
            ("before " if one.is_before else "") + (one.held_by or numbers.UNKNOWN),
            one.account,
            f"{one.late_rank}",
            f"{one.rank}",
            numbers.duration(one.ns),
        )
        for one in value.held_by[:8]
    ]
    if rows:
        heading(out, "What held it")
        columns = ("op, call, range or kernel", "account", "late", "waits", "time")
        kinds = ("name", "left", "left", "left", "right")
        out.print(table(list(zip(columns, kinds, strict=True)), rows))


def _collectives(value: RankReport, out: Console) -> None:
    if not value.collectives:
        return
    heading(out, "Collectives (without waiting; skew: first rank's start to the last one's)")
    rows = [
        (
            one.collective,
            one.process_group,
            numbers.count(one.ranks),
            numbers.count(one.collectives),
            numbers.UNKNOWN if one.bytes is None else numbers.size(one.bytes),
            numbers.duration(one.transfer_p50_ns),
            _bandwidth(one.bus_bytes_per_s),
            numbers.duration(one.skew_p50_ns),
            numbers.duration(one.skew_p95_ns),
        )
        for one in value.collectives[:8]
    ]
    columns = ("collective", "group", "ranks", "n", "size", "p50", "bus", "skew p50", "p95")
    kinds = ("name", "left", *["right"] * 7)
    out.print(table(list(zip(columns, kinds, strict=True)), rows))


def _bandwidth(bytes_per_s: float | None) -> str:
    return numbers.UNKNOWN if bytes_per_s is None else f"{bytes_per_s / 1e9:.3g} GB/s"
