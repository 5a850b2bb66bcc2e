"""`analyzer maintain`: tidy a lake."""

from __future__ import annotations

import argparse
import sys

from analyzer.cli.arguments import NEEDS, add_store
from schemas.commands import Command


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    add_store(parser)
    parser.add_argument(
        "--keep-days",
        type=float,
        default=7.0,
        metavar="DAYS",
        help="commits younger than this stay readable as they were (default: 7)",
    )


def run(args: argparse.Namespace) -> int:
    """Tidy a lake."""
    from analyzer.render.json_text import print_json
    from analyzer.store import open_store

    done = open_store(args.db).maintain(args.keep_days)
    if args.json:
        print_json(done)
    else:
        for what, count in done.items():
            sys.stdout.write(f"{what}: {count}\n")
    return 0


COMMAND = Command(
    "maintain",
    "Tidy a lake: merge small files, delete old ones.",
    add_arguments,
    run,
    NEEDS,
)
