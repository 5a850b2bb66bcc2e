"""`analyzer predict`: what a change would win, from one run."""

from __future__ import annotations

import argparse

from analyzer.cli.arguments import NEEDS, add_formats, add_store, form_of
from schemas.commands import Command


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    add_store(parser, served=True)
    add_formats(parser)
    parser.add_argument("run", metavar="RUN", nargs="?", default="latest")
    parser.add_argument(
        "--what",
        action="append",
        default=[],
        metavar="graphs|compile|cpu-faster:X|fuse:N",
        help="the change (repeatable; default: graphs, compile, cpu-faster:2 and fuse:2; also "
        "perfect-ranks, async-schedule and persistent)",
    )


def run(args: argparse.Namespace) -> int:
    """Print predictions."""
    from analyzer import queries
    from analyzer.render.document import show
    from analyzer.render.prediction import print_predictions
    from analyzer.reports.prediction import DEFAULT, predict
    from analyzer.reports.records import Predictions
    from analyzer.server import remote

    if args.server:
        path = f"runs/{remote.part(args.run)}/predict"
        query = [("what", what) for what in args.what]
        found = remote.record(Predictions, args.server, path, query)
    else:
        with queries.connect(args.db) as connection:
            run_id = queries.find_run(connection, args.run)
            found = predict(connection, run_id, args.what or DEFAULT)
    show(found, print_predictions, form_of(args), f"Predictions from {found.run.name}")
    return 0


COMMAND = Command("predict", "What a change would win, from one run.", add_arguments, run, NEEDS)
