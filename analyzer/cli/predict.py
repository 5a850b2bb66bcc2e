"""`analyzer predict`: what a change would win, from one run."""

from __future__ import annotations

import argparse

from analyzer.cli.arguments import NEEDS, add_formats, add_store, form_of
from schemas.commands import Command


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    add_store(parser)
    add_formats(parser)
    parser.add_argument("run", metavar="RUN", nargs="?", default="latest")
    parser.add_argument(
        "--what",
        action="append",
        default=[],
        metavar="graphs|compile|cpu-faster:X|fuse:N",
        help="the change (repeatable; default: graphs, compile, cpu-faster:2 and fuse:2; also "
        "perfect-ranks and async-schedule)",
    )


def run(args: argparse.Namespace) -> int:
    """Print predictions."""
    from analyzer import queries
    from analyzer.render.document import show
    from analyzer.render.prediction import print_predictions
    from analyzer.reports.prediction import DEFAULT, predict

    with queries.connect(args.db) as connection:
        found = predict(connection, queries.find_run(connection, args.run), args.what or DEFAULT)
    show(found, print_predictions, form_of(args), f"Predictions from {found.run.name}")
    return 0


COMMAND = Command("predict", "What a change would win, from one run.", add_arguments, run, NEEDS)
