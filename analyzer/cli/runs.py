"""`analyzer runs`: list the runs of the store."""

from __future__ import annotations

import argparse

from analyzer.cli.arguments import NEEDS, add_store
from schemas.commands import Command


def run(args: argparse.Namespace) -> int:
    """List runs."""
    from analyzer import queries
    from analyzer.render.json_text import print_json
    from analyzer.render.runs import print_runs
    from analyzer.render.tables import console

    with queries.connect(args.db) as connection:
        found = queries.listed_runs(connection)
    if args.json:
        print_json(found)
    else:
        print_runs(found, console())
    return 0


COMMAND = Command("runs", "List the runs of the store.", add_store, run, NEEDS)
