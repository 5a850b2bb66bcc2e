"""`analyzer predict`: what a change would win, from one run."""

from __future__ import annotations

import argparse

from analyzer.cli.arguments import NEEDS, add_store
from schemas.commands import Command


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    add_store(parser, served=True)
    parser.add_argument("run", metavar="RUN", nargs="?", default="latest")
    parser.add_argument(
        "--what",
        action="append",
        default=[],
        metavar="graphs|compile|cpu-faster:X|fuse:N",
        help="the change (repeatable; default: graphs, compile, cpu-faster:2 and fuse:2)",
    )


def run(args: argparse.Namespace) -> int:
    """Print predictions."""
    from analyzer import queries
    from analyzer.render.json_text import print_json
    from analyzer.render.prediction import print_predictions
    from analyzer.render.tables import console
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
    if args.json:
        print_json(found)
    else:
        print_predictions(found, console())
    return 0


COMMAND = Command("predict", "What a change would win, from one run.", add_arguments, run, NEEDS)
