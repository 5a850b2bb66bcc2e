"""`analyzer verify`: check a store."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from analyzer.cli.arguments import NEEDS, add_store
from schemas.commands import Command
from schemas.extras import require


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    add_store(parser)
    parser.add_argument(
        "--data", type=Path, metavar="DIR", help="check a server's folder instead: all of its teams"
    )


def run(args: argparse.Namespace) -> int:
    """Check a store; 1 if something is wrong with it."""
    from analyzer.render.json_text import print_json
    from analyzer.store.verify import verify

    if args.data:
        require("server", "sqlalchemy")
        from analyzer.server.check import check

        problems = check(args.data)
    else:
        problems = verify(args.db)
    if args.json:
        print_json(problems)
    elif problems:
        for problem in problems:
            run_id = problem.run_id[:12] if problem.run_id else "-"
            sys.stdout.write(f"{run_id}  {problem.check}: {problem.message}\n")
    else:
        place = args.data or args.db
        sys.stdout.write(f"{place}: accounts add up, links resolve, hashes match.\n")
    return 1 if problems else 0


COMMAND = Command(
    "verify",
    "Check a store: accounts add up, links resolve, hashes match.",
    add_arguments,
    run,
    NEEDS,
)
