"""`analyzer ingest`: load run directories, trace files, or folders of them."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from analyzer.cli.arguments import NEEDS, add_store, positive
from schemas.commands import Command

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from analyzer.ingest.load import Ingested


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    add_store(parser)
    parser.add_argument("paths", nargs="+", type=Path, metavar="PATH")
    parser.add_argument(
        "--name", help="name of the run (one PATH; default: the file or folder name)"
    )
    parser.add_argument(
        "--step-annotation",
        action="append",
        default=[],
        metavar="GLOB",
        help="annotations that mark steps, e.g. 'step#*' (repeatable); needed for your own only",
    )
    parser.add_argument(
        "--capture-trace",
        type=Path,
        metavar="FILE",
        help="the trace that holds the capture of this one's graphs",
    )
    parser.add_argument(
        "--python-functions",
        action="store_true",
        help="store python_function events too (always counted)",
    )
    parser.add_argument("--replace", action="store_true", help="load again what is stored already")
    parser.add_argument(
        "--keep-originals",
        action="store_true",
        help="copy the files beside the store, into FILE.blobs",
    )
    parser.add_argument(
        "--jobs",
        type=positive,
        default=None,
        metavar="N",
        help="files prepared at once (default: the number of cores)",
    )
    parser.add_argument(
        "--engine",
        choices=("pool", "ray"),
        default="pool",
        help="where: processes of this machine (default), or a Ray cluster",
    )
    parser.add_argument(
        "--ray-address",
        metavar="HOST:PORT",
        help="the cluster (default: RAY_ADDRESS, else one of this machine alone)",
    )


def run(args: argparse.Namespace) -> int:
    """Load runs; 1 if some could not be read but others could, or a trace has warnings; 2 if none
    could.
    """
    from analyzer.ingest import executors
    from analyzer.ingest.load import ingest
    from analyzer.render.json_text import print_json

    with _Progress() as progress:
        results = _through_server(args, progress) or ingest(
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
        )
    if args.json:
        print_json(results)
    else:
        for result in results:
            _say(result, args.db)
    failed = [result for result in results if result.state == "failed"]
    for result in failed:
        sys.stderr.write(f"analyzer: {result.error}\n")
    if failed:
        return 2 if len(failed) == len(results) else 1
    return 1 if any(f.severity == "warning" for r in results for f in r.findings) else 0


def _through_server(
    args: argparse.Namespace, progress: Callable[[str, int, int], None]
) -> list[Ingested] | None:
    """Load through the server that owns the store; None if there is none."""
    from analyzer.errors import AnalyzerError
    from analyzer.server import discovery
    from analyzer.store import open_store

    found, remark = discovery.find(args.db)
    if remark:
        sys.stderr.write(f"analyzer: {remark}\n")
    if found is None:
        return None
    # What the API does not know.
    beyond = {
        "--keep-originals": args.keep_originals,
        "--engine ray": args.engine == "ray",
    }
    if asked := [option for option, wanted in beyond.items() if wanted]:
        if open_store(args.db).has_many_writers:
            return None  # which any number of processes may write to
        raise AnalyzerError(
            f"{args.db} belongs to the server at {found.url}, which does not take "
            f"{' and '.join(asked)}: stop it first, or load into another store with --db."
        )
    from analyzer.server.remote_ingest import ingest

    return ingest(
        found,
        args.paths,
        name=args.name,
        step_annotation=args.step_annotation,
        capture_trace=Path(args.capture_trace) if args.capture_trace else None,
        python_functions=args.python_functions,
        replace_runs=args.replace,
        progress=progress,
    )


def _say(result: Ingested, db: Path) -> None:
    from analyzer import numbers

    if result.state == "failed":
        return
    run_id = (result.run_id or "")[:12]
    line = f"{result.state}: {result.name} ({run_id})"
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

    def __init__(self) -> None:
        self._bar: Progress | None = None
        self._tasks: dict[str, TaskID] = {}

    def __enter__(self) -> _Progress:
        if sys.stderr.isatty():
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


COMMAND = Command(
    "ingest",
    "Load run directories, trace files, or folders of them.",
    add_arguments,
    run,
    NEEDS,
)
