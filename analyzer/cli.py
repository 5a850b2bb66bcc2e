"""The command `analyzer`: ingest, runs, show, report, predict, compare, sql, export, verify.

Exit codes: 0 good, 1 done with a finding, 2 refused (one line on stderr says why). Results go to
stdout, the rest to stderr. Heavy libraries are imported by the command that needs them, so that
--help is quick.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from analyzer.server import commands as server_commands
from analyzer.store import open_store
from schemas.errors import HostboundError
from schemas.extras import require

if TYPE_CHECKING:
    from analyzer.ingest.ingested import Ingested

DEFAULT_DB = "hostbound.duckdb"


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code."""
    parser = _parser()
    args = parser.parse_args(argv)
    require("analyzer", "duckdb", "polars", "pyarrow", "numpy", "msgspec", "rich")
    command: Callable[[argparse.Namespace], int] = args.command
    try:
        return command(args)
    except HostboundError as error:
        sys.stderr.write(f"analyzer: {error}\n")
        return 2
    except BrokenPipeError:  # the reader of the pipe has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        sys.stderr.write("analyzer: interrupted; the store is as it was before this run.\n")
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="analyzer",
        description="Is the GPU waiting for the host, and which layer of the software stack is to "
        "blame?",
        epilog="Start with: analyzer ingest TRACE.json.gz && analyzer report latest",
    )
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")

    def add(
        name: str, function: Callable[[argparse.Namespace], int], summary: str
    ) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=summary, description=summary)
        sub.set_defaults(command=function)
        sub.add_argument(
            "--db",
            type=Path,
            default=Path(DEFAULT_DB),
            metavar="FILE",
            help=f"the store (default: {DEFAULT_DB}); a .toml names a lake, see docs/operations.md",
        )
        sub.add_argument("--json", action="store_true", help="print JSON instead of text")
        return sub

    ingest = add("ingest", ingest_command, "Load run directories, trace files, or folders of them.")
    ingest.add_argument("paths", nargs="+", type=Path, metavar="PATH")
    ingest.add_argument(
        "--name", help="name of the run (one PATH; default: the file or folder name)"
    )
    ingest.add_argument(
        "--step-annotation",
        action="append",
        default=[],
        metavar="GLOB",
        help="annotations that mark steps, e.g. 'step#*' (repeatable)",
    )
    ingest.add_argument(
        "--capture-trace",
        type=Path,
        metavar="FILE",
        help="the trace that holds the capture of this one's graphs",
    )
    ingest.add_argument(
        "--python-functions",
        action="store_true",
        help="store python_function events too (always counted)",
    )
    ingest.add_argument("--replace", action="store_true", help="load again what is stored already")
    ingest.add_argument(
        "--keep-originals",
        action="store_true",
        help="copy the files beside the store, into FILE.blobs",
    )
    ingest.add_argument(
        "--jobs",
        type=_positive,
        default=None,
        metavar="N",
        help="files prepared at once (default: the number of cores)",
    )
    ingest.add_argument(
        "--engine",
        choices=("pool", "ray"),
        default="pool",
        help="where: processes of this machine (default), or a Ray cluster",
    )
    ingest.add_argument(
        "--ray-address",
        metavar="HOST:PORT",
        help="the cluster (default: RAY_ADDRESS, else one of this machine alone)",
    )

    add("runs", runs_command, "List the runs of the store.")
    show = add("show", show_command, "Show a run's manifest, files and warnings.")
    show.add_argument("run", metavar="RUN", help="id, unique prefix of one, name, or latest")
    report = add("report", report_command, "Where a run's time went, and how host-bound it is.")
    report.add_argument(
        "run",
        metavar="RUN",
        nargs="?",
        default="latest",
        help="id, prefix, name, or latest (default)",
    )
    predict = add("predict", predict_command, "What a change would win, from one run.")
    predict.add_argument("run", metavar="RUN", nargs="?", default="latest")
    predict.add_argument(
        "--what",
        action="append",
        default=[],
        metavar="graphs|compile|cpu-faster:X|fuse:N",
        help="the change (repeatable; default: graphs, compile, cpu-faster:2 and fuse:2)",
    )
    compare = add("compare", compare_command, "Compare runs with the first one.")
    compare.add_argument("runs", nargs="+", metavar="RUN")
    compare.add_argument(
        "--fail-if",
        action="append",
        default=[],
        metavar='"METRIC > +5%"',
        help="exit 1 if the condition holds for a run against the first (repeatable)",
    )
    sql = add("sql", sql_command, "Ask the store in SQL, read-only, without file access.")
    sql.add_argument("sql", metavar="SQL", help='e.g. "SELECT * FROM run_totals"')
    sql.add_argument("--format", choices=("table", "csv", "json", "parquet"), default=None)
    sql.add_argument(
        "--limit", type=_positive, default=None, metavar="N", help="at most so many rows"
    )
    sql.add_argument("--time-limit", type=float, default=60.0, metavar="SECONDS")
    export = add(
        "export", export_command, "Write a run's tables, or its trace with our attribution."
    )
    export.add_argument("run", metavar="RUN")
    export.add_argument(
        "--format",
        choices=("parquet", "csv", "chrome", "original"),
        default="parquet",
        help="chrome: for ui.perfetto.dev; original: what it was loaded from, if that was kept",
    )
    export.add_argument(
        "--out",
        type=Path,
        default=None,
        metavar="PATH",
        help="folder, or file for chrome (default: by the run's name)",
    )
    verify = add(
        "verify", verify_command, "Check a store: accounts add up, links resolve, hashes match."
    )
    verify.add_argument(
        "--data", type=Path, metavar="DIR", help="check a server's folder instead: all of its teams"
    )
    maintain = add("maintain", maintain_command, "Tidy a lake: merge small files, delete old ones.")
    maintain.add_argument(
        "--keep-days",
        type=float,
        default=7.0,
        metavar="DAYS",
        help="commits younger than this stay readable as they were (default: 7)",
    )
    server_commands.add(commands, DEFAULT_DB)
    return parser


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is less than 1")
    return value


def _print_json(value: Any) -> None:
    import orjson

    sys.stdout.write(orjson.dumps(value, option=orjson.OPT_INDENT_2, default=str).decode() + "\n")


def ingest_command(args: argparse.Namespace) -> int:
    """Load runs; 1 if some could not be read but others could, or a trace has warnings; 2 if none
    could.
    """
    from analyzer.ingest import executors
    from analyzer.ingest.load import ingest

    with _Progress(len(args.paths)) as progress:
        results = ingest(
            args.paths,
            args.db,
            name=args.name,
            step_annotation=args.step_annotation,
            capture_trace=args.capture_trace,
            python_functions=args.python_functions,
            replace_runs=args.replace,
            keep_originals=args.keep_originals,
            jobs=args.jobs,
            engine=executors.Ray(args.ray_address) if args.engine == "ray" else None,
            progress=progress,
            remark=lambda text: sys.stderr.write(f"analyzer: {text}\n"),
        )
    if args.json:
        _print_json([asdict(result) for result in results])
    else:
        for result in results:
            _say_ingested(result, args.db)
    failed = [result for result in results if result.state == "failed"]
    for result in failed:
        sys.stderr.write(f"analyzer: {result.error}\n")
    if failed:
        return 2 if len(failed) == len(results) else 1
    return 1 if any(f.severity == "warning" for r in results for f in r.findings) else 0


def _say_ingested(result: Ingested, db: Path) -> None:
    from analyzer import numbers

    if result.state == "failed":
        return
    run = (result.run_id or "")[:12]
    line = f"{result.state}: {result.name} ({run})"
    if result.events is not None:
        seconds = sum(
            s or 0 for s in (result.read_seconds, result.analyse_seconds, result.write_seconds)
        )
        line += (
            f", {numbers.count(result.kernels)} kernels, {numbers.count(result.steps)} "
            f"step{'s' * (result.steps != 1)}, {numbers.count(result.events)} events "
            f"({numbers.size(result.json_bytes)}) in {seconds:.2f} s"
        )
    sys.stdout.write(f"{line} -> {db}\n")
    for finding in result.findings:
        if finding.severity == "warning":
            sys.stdout.write(f"  warning: {finding.message}\n")


class _Progress:
    """A progress bar on a terminal, nothing elsewhere."""

    def __init__(self, sources: int) -> None:
        self._bar: Any = None
        self._tasks: dict[str, Any] = {}
        self._on = sys.stderr.isatty()
        self._sources = sources

    def __enter__(self) -> _Progress:
        if self._on:
            from rich.console import Console
            from rich.progress import Progress

            self._bar = Progress(console=Console(file=sys.stderr), transient=True)
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar:
            self._bar.stop()

    def __call__(self, path: str, done: int, total: int) -> None:
        if not self._bar:
            return
        if path not in self._tasks:
            self._tasks[path] = self._bar.add_task(Path(path).name[:50], total=total)
        self._bar.update(self._tasks[path], completed=done)


def runs_command(args: argparse.Namespace) -> int:
    """List runs."""
    from analyzer import numbers, queries
    from analyzer.render.report import console, table
    from analyzer.reports.report import reading

    with queries.connect(args.db) as connection:
        found = queries.runs(connection).to_dicts()
    if args.json:
        _print_json(found)
        return 0
    rows = [
        (
            run["run_id"][:8],
            run["name"],
            run["mode"],
            numbers.count(run["steps"]),
            numbers.count(run["kernels"]),
            numbers.duration(run["step_elapsed_ns"]),
            numbers.duration(run["orchestration_ns"]),
            numbers.index(run["hdbi"]),
            reading(run["hdbi"]),
        )
        for run in found
    ]
    console().print(
        table(
            [
                ("id", "left"),
                ("name", "name"),
                ("mode", "left"),
                ("steps", "right"),
                ("kernels", "right"),
                ("step p50", "right"),
                ("T_Orch", "right"),
                ("HDBI", "right"),
                ("", "left"),
            ],
            rows,
            indent=0,
        )
    )
    return 0


def show_command(args: argparse.Namespace) -> int:
    """Show what a run is and what it was read from."""
    import json

    from analyzer import numbers, queries
    from analyzer.render.report import console, heading, printable, table

    with queries.connect(args.db) as connection:
        run_id = queries.find_run(connection, args.run)
        run = queries.run(connection, run_id)
        files = queries.files(connection, run_id)
        traces = queries.traces(connection, run_id)
        quality = queries.quality(connection, run_id)
    for key in ("manifest", "trace_metadata", "phases", "versions"):
        run[key] = json.loads(run[key]) if run.get(key) else None
    for trace in traces:
        trace["metadata"] = json.loads(trace["metadata"])
    if args.json:
        _print_json({"run": run, "files": files, "traces": traces, "quality": quality})
        return 0
    out = console()
    # Headers of traces carry names of people and machines: they are printed with --json only.
    plain = {
        k: v
        for k, v in run.items()
        if k not in ("manifest", "trace_metadata", "phases", "versions") and v is not None
    }
    out.print(
        table([("", "left"), ("", "name")], [(k, str(v)) for k, v in plain.items()], indent=0)
    )
    if run["versions"]:
        out.print(
            table([("", "left"), ("", "name")], [(k, str(v)) for k, v in run["versions"].items()])
        )
    heading(out, "Files")
    out.print(
        table(
            [("file", "name"), ("role", "left"), ("size", "right"), ("sha256", "left")],
            [(f["file"], f["role"], numbers.size(f["bytes"]), f["sha256"][:16]) for f in files],
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
                    t["file"],
                    t["role"],
                    numbers.count(t["rank"]),
                    numbers.count(t["events"]),
                    numbers.size(t["json_bytes"]),
                )
                for t in traces
            ],
        )
    )
    if run["manifest"] and (run["manifest"].get("passes") or run["manifest"].get("notes")):
        heading(out, "Passes and notes")
        passes: dict[str, str] = run["manifest"].get("passes") or {}
        notes: list[str] = run["manifest"].get("notes") or []
        for name, text in passes.items():
            out.print(printable(f"  {name}: {text}"))
        for note in notes:
            out.print(printable(f"  {note}"))
    if quality:
        heading(out, "What to know about this trace")
        for row in quality:
            out.print(printable(f"  {row['severity']}: {row['message']}"))
    return 0


def report_command(args: argparse.Namespace) -> int:
    """Print a report."""
    from analyzer import queries
    from analyzer.render.report import console, print_report
    from analyzer.reports.report import report

    with queries.connect(args.db) as connection:
        value = report(connection, queries.find_run(connection, args.run))
    if args.json:
        _print_json(value)
    else:
        print_report(value, console())
    return 0


def predict_command(args: argparse.Namespace) -> int:
    """Print predictions."""
    from analyzer import queries
    from analyzer.render.prediction import print_predictions
    from analyzer.render.report import console
    from analyzer.reports.prediction import DEFAULT, predict

    with queries.connect(args.db) as connection:
        value = predict(
            connection, queries.find_run(connection, args.run), args.what or list(DEFAULT)
        )
    if args.json:
        _print_json(value)
    else:
        print_predictions(value, console())
    return 0


def compare_command(args: argparse.Namespace) -> int:
    """Print a comparison; 1 if a --fail-if condition holds."""
    from analyzer import queries
    from analyzer.render.comparison import print_comparison
    from analyzer.render.report import console
    from analyzer.reports.comparison import compare, gate

    with queries.connect(args.db) as connection:
        value = compare(connection, [queries.find_run(connection, run) for run in args.runs])
    value["gates"] = [
        {"run": other["name"], **gate(condition, value["runs"][0], other)}
        for condition in args.fail_if
        for other in value["runs"][1:]
    ]
    failed = [g for g in value["gates"] if g["failed"]]
    if args.json:
        _print_json(value)
    else:
        print_comparison(value, console())
    for g in failed:
        sys.stderr.write(
            f"analyzer: {g['run']}: {g['condition']} holds (was {g['before']}, is {g['after']})\n"
        )
    return 1 if failed else 0


def sql_command(args: argparse.Namespace) -> int:
    """Run one read-only statement."""
    from analyzer.store.sandbox import run_sql, write_table

    form = args.format or ("json" if args.json else "table")
    table = run_sql(args.db, args.sql, limit=args.limit, time_limit_s=args.time_limit)
    write_table(table, form, sys.stdout.buffer if form == "parquet" else sys.stdout)
    return 0


def export_command(args: argparse.Namespace) -> int:
    """Write a run's tables or its annotated trace."""
    from analyzer import queries
    from analyzer.render.export import export

    with queries.connect(args.db) as connection:
        run_id = queries.find_run(connection, args.run)
        name = queries.run(connection, run_id)["name"]
    safe = "".join(c if c.isalnum() or c in "-_." else "_" for c in name).strip(".") or run_id[:12]
    default = f"{safe}.trace.json.gz" if args.format == "chrome" else f"{safe}-{args.format}"
    written = export(args.db, run_id, args.format, args.out or Path(default))
    if args.json:
        _print_json([str(path) for path in written])
    else:
        for path in written:
            sys.stdout.write(f"{path}\n")
    return 0


def verify_command(args: argparse.Namespace) -> int:
    """Check a store; 1 if something is wrong with it."""
    from analyzer.store.verify import verify

    if args.data:
        require("server", "sqlalchemy")
        from analyzer.server.check import check

        problems = check(args.data)
    else:
        problems = verify(args.db)
    if args.json:
        _print_json([asdict(problem) for problem in problems])
    elif problems:
        for problem in problems:
            run = problem.run_id[:12] if problem.run_id else "-"
            sys.stdout.write(f"{run}  {problem.check}: {problem.message}\n")
    else:
        place = args.data or args.db
        sys.stdout.write(f"{place}: accounts add up, links resolve, hashes match.\n")
    return 1 if problems else 0


def maintain_command(args: argparse.Namespace) -> int:
    """Tidy a lake."""

    done = open_store(args.db).maintain(args.keep_days)
    if args.json:
        _print_json(done)
    else:
        for what, count in done.items():
            sys.stdout.write(f"{what}: {count}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
