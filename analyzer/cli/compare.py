"""`analyzer compare`: runs against the first of them, and a gate for somebody's CI."""

from __future__ import annotations

import argparse
import sys

from analyzer.cli.arguments import NEEDS, add_store
from schemas.commands import Command


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    add_store(parser, served=True)
    parser.add_argument("runs", nargs="+", metavar="RUN")
    parser.add_argument(
        "--fail-if",
        action="append",
        default=[],
        metavar='"METRIC > +5%"',
        help="exit 1 if the condition holds for a run against the first (repeatable)",
    )


def run(args: argparse.Namespace) -> int:
    """Print a comparison; 1 if a --fail-if condition holds."""
    from analyzer import queries
    from analyzer.render.comparison import print_comparison
    from analyzer.render.json_text import print_json
    from analyzer.render.tables import console
    from analyzer.reports.comparison import compare
    from analyzer.reports.gate import judge_all
    from analyzer.reports.records import GatedComparison
    from analyzer.server import remote

    if args.server:
        query = [*(("run", run) for run in args.runs), *(("fail_if", c) for c in args.fail_if)]
        gated = remote.record(GatedComparison, args.server, "compare", query)
    else:
        with queries.connect(args.db) as connection:
            found = compare(connection, [queries.find_run(connection, run) for run in args.runs])
        gated = judge_all(found, args.fail_if)
    if args.json:
        print_json(gated)
    else:
        print_comparison(gated, console())
    failed = [gate for gate in gated.gates if gate.failed]
    for gate in failed:
        sys.stderr.write(
            f"analyzer: {gate.run}: {gate.condition} holds (was {gate.before}, is {gate.after})\n"
        )
    return 1 if failed else 0


COMMAND = Command("compare", "Compare runs with the first one.", add_arguments, run, NEEDS)
