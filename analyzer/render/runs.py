"""Prints the list of runs, and what one run is and was read from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields

from rich.console import Console

from analyzer import numbers
from analyzer.queries.records import Description, ListedRun, Run
from analyzer.render.tables import heading, printable, table
from analyzer.reports.bands import reading

# Headers of traces carry names of people and machines: they are printed with --json only.
_NOT_PRINTED = ("manifest", "trace_metadata", "phases", "versions")


def print_runs(runs: Sequence[ListedRun], out: Console) -> None:
    """Print runs, one a line."""
    out.print(
        table(
            [
                ("id", "left"),
                ("name", "name"),
                ("mode", "left"),
                ("steps", "right"),
                ("kernels", "right"),
                ("step p50", "right"),
                ("GPU idle", "right"),
                ("HDBI", "right"),
                ("", "left"),
            ],
            [
                (
                    run.run_id[:8],
                    run.name,
                    run.mode,
                    numbers.count(run.steps),
                    numbers.count(run.kernels),
                    numbers.duration(run.step_elapsed_ns),
                    numbers.share(run.idle_share),
                    numbers.index(run.hdbi),
                    reading(run.hdbi),
                )
                for run in runs
            ],
            indent=0,
        )
    )


def print_run(value: Description, out: Console) -> None:
    """Print what a run is, its files, traces, notes and warnings."""
    run = value.run
    plain = {name: getattr(run, name) for name in _printed()}
    rows = [(name, str(field)) for name, field in plain.items() if field is not None]
    out.print(table([("", "left"), ("", "name")], rows, indent=0))
    if run.library_versions:
        versions = [(name, str(version)) for name, version in run.library_versions.items()]
        out.print(table([("", "left"), ("", "name")], versions))
    heading(out, "Files")
    out.print(
        table(
            [("file", "name"), ("role", "left"), ("size", "right"), ("sha256", "left")],
            [(f.file, f.role, numbers.size(f.bytes), f.sha256[:16]) for f in value.files],
        )
    )
    heading(out, "Traces")
    out.print(
        table(
            [
                ("file", "name"),
                ("role", "left"),
                ("rank", "right"),
                ("events", "right"),
                ("JSON", "right"),
            ],
            [
                (
                    t.file,
                    t.role,
                    numbers.count(t.rank),
                    numbers.count(t.events),
                    numbers.size(t.json_bytes),
                )
                for t in value.traces
            ],
        )
    )
    _passes_and_notes(run, out)
    if value.quality:
        heading(out, "What to know about this trace")
        for finding in value.quality:
            out.print(printable(f"  {finding.severity}: {finding.message}"))


def _printed() -> list[str]:
    return [field.name for field in fields(Run) if field.name not in _NOT_PRINTED]


def _passes_and_notes(run: Run, out: Console) -> None:
    manifest = run.recorded
    if manifest is None or not (manifest.passes or manifest.notes):
        return
    heading(out, "Passes and notes")
    for name, text in manifest.passes.items():
        out.print(printable(f"  {name}: {text}"))
    for note in manifest.notes:
        out.print(printable(f"  {note}"))
