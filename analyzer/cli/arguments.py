"""What the commands on a store have in common: `--db`, `--json`, and the modules they need."""

from __future__ import annotations

import argparse
from pathlib import Path

from analyzer.server.commands import DEFAULT_DB, NEEDS, TOKEN_VARIABLE

__all__ = ["DEFAULT_DB", "NEEDS", "add_formats", "add_store", "form_of", "positive"]


def add_store(parser: argparse.ArgumentParser, served: bool = False) -> None:
    """Add `--db` and `--json`; `served`: and `--server`."""
    where = parser.add_mutually_exclusive_group() if served else parser
    if served:
        where.add_argument(
            "--server", metavar="URL", help=f"ask a server, with the token in {TOKEN_VARIABLE}"
        )
    where.add_argument(
        "--db",
        type=Path,
        default=Path(DEFAULT_DB),
        metavar="FILE",
        help=f"the store (default: {DEFAULT_DB}); a .toml names a lake, see docs/operations.md",
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")


def add_formats(parser: argparse.ArgumentParser) -> None:
    """Add `--format`."""
    parser.add_argument(
        "--format",
        choices=("text", "json", "markdown", "html"),
        default=None,
        help="markdown fits an issue or a pull request; html is one file that opens offline",
    )


def form_of(args: argparse.Namespace) -> str:
    """The format that was asked for; `--json` is one of them."""
    return args.format or ("json" if args.json else "text")


def positive(text: str) -> int:
    """An integer from 1 on."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is less than 1")
    return value
