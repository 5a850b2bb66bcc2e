"""`analyzer compare`: runs against the first of them, and a gate for somebody's CI."""

from __future__ import annotations

import argparse
import sys

from analyzer.cli.arguments import NEEDS, add_formats, add_store, form_of
from schemas.commands import NOT_JUDGED, Command


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    add_store(parser, served=True)
    add_formats(parser)
    parser.add_argument("runs", nargs="+", metavar="RUN")
    parser.add_argument(
        "--fail-if",
        action="append",
        default=[],
        metavar='"METRIC > +5%"',
        help="exit 1 if the condition holds for a run against the first, 3 if a trace cannot tell; "
        "`slower`: a step became slower, by more than noise explains (repeatable)",
    )


def run(args: argparse.Namespace) -> int:
    """Print a comparison; 1 if a --fail-if condition holds, 3 if what was asked rests on a figure
    that a trace cannot support.
    """
    from analyzer import queries
    from analyzer.render.comparison import print_comparison
    from analyzer.render.document import show
    from analyzer.reports.comparison import compare, rests_on_touched
    from analyzer.reports.comparison.gate import judge_all
    from analyzer.reports.records import GatedComparison
    from analyzer.server import remote

    if args.server:
        query = [*(("run", run) for run in args.runs), *(("fail_if", c) for c in args.fail_if)]
        gated = remote.record(GatedComparison, args.server, "compare", query)
    else:
        with queries.connect(args.db) as connection:
            found = compare(connection, [queries.find_run(connection, run) for run in args.runs])
        gated = judge_all(found, args.fail_if)
    show(gated, print_comparison, form_of(args), " and ".join(run.name for run in gated.runs))
    failed = [gate for gate in gated.gates if gate.failed]
    for gate in failed:
        sys.stderr.write(
            f"analyzer: {gate.run}: {gate.condition} holds "
            f"(was {_plain(gate.before)}, is {_plain(gate.after)})\n"
        )
    unjudged = [gate for gate in gated.gates if gate.not_judged]
    for gate in unjudged:
        sys.stderr.write(
            f"analyzer: {gate.run}: {gate.condition} is not judged: {gate.not_judged}\n"
        )
    if failed:
        return 1
    return NOT_JUDGED if unjudged or (not args.fail_if and rests_on_touched(gated)) else 0


def _plain(value: float | None) -> str:
    """A figure as it is, whether JSON made a float of it or not."""
    return str(int(value) if value is not None and value == int(value) else value)


COMMAND = Command("compare", "Compare runs with the first one.", add_arguments, run, NEEDS)
