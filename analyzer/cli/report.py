"""`analyzer report`: where a run's time went, and how host-bound it is."""

from __future__ import annotations

import argparse

from analyzer.cli.arguments import NEEDS, add_formats, add_store, form_of
from schemas.commands import Command


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    add_store(parser, served=True)
    add_formats(parser)
    parser.add_argument(
        "run",
        metavar="RUN",
        nargs="?",
        default="latest",
        help="id, prefix, name, or latest (default)",
    )


def run(args: argparse.Namespace) -> int:
    """Print a report."""
    from analyzer import queries
    from analyzer.render.document import show
    from analyzer.render.report import print_report
    from analyzer.reports.records import RunReport
    from analyzer.reports.report import report
    from analyzer.server import remote

    if args.server:
        path = f"runs/{remote.part(args.run)}/report"
        found = remote.record(RunReport, args.server, path)
    else:
        with queries.connect(args.db) as connection:
            found = report(connection, queries.find_run(connection, args.run))
    show(found, print_report, form_of(args), found.run.name)
    return 0


COMMAND = Command(
    "report", "Where a run's time went, and how host-bound it is.", add_arguments, run, NEEDS
)
