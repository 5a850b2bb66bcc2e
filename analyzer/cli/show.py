"""`analyzer show`: a run's manifest, files and warnings."""

from __future__ import annotations

import argparse

from analyzer.cli.arguments import NEEDS, add_store
from schemas.commands import Command


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    add_store(parser)
    parser.add_argument("run", metavar="RUN", help="id, unique prefix of one, name, or latest")


def run(args: argparse.Namespace) -> int:
    """Show what a run is and what it was read from."""
    from analyzer import queries
    from analyzer.render.json_text import print_json
    from analyzer.render.runs import print_run
    from analyzer.render.tables import console

    with queries.connect(args.db) as connection:
        found = queries.description(connection, queries.find_run(connection, args.run))
    if args.json:
        print_json(found.with_json())
    else:
        print_run(found, console())
    return 0


COMMAND = Command("show", "Show a run's manifest, files and warnings.", add_arguments, run, NEEDS)
