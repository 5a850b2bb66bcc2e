"""`analyzer export`: a run's tables, or its trace with our attribution."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from analyzer.cli.arguments import NEEDS, add_store
from schemas.commands import Command


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    add_store(parser)
    parser.add_argument("run", metavar="RUN")
    parser.add_argument(
        "--format",
        choices=("parquet", "csv", "chrome", "perfetto", "original"),
        default="parquet",
        help="chrome, perfetto: for ui.perfetto.dev; original: what it was loaded from, if kept",
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=None,
        metavar="PATH",
        help="folder, or file for a trace (default: by the run's name)",
    )


def run(args: argparse.Namespace) -> int:
    """Write a run's tables or its annotated trace."""
    from analyzer import queries
    from analyzer.render.export import export
    from analyzer.render.json_text import print_json
    from analyzer.render.traces.files import SUFFIXES

    with queries.connect(args.db) as connection:
        run_id = queries.find_run(connection, args.run)
        name = queries.run(connection, run_id).name
    safe = "".join(c if c.isalnum() or c in "-_." else "_" for c in name).strip(".") or run_id[:12]
    default = safe + SUFFIXES.get(args.format, f"-{args.format}")
    written = export(args.db, run_id, args.format, args.out or Path(default))
    if args.json:
        print_json([str(path) for path in written])
    else:
        for path in written:
            sys.stdout.write(f"{path}\n")
    return 0


COMMAND = Command(
    "export", "Write a run's tables, or its trace with our attribution.", add_arguments, run, NEEDS
)
