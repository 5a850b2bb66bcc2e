"""The options of the commands that send runs to a server."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collector.upload.sending import Options


def add_arguments(parser: argparse.ArgumentParser, patience_s: float) -> None:
    """Add the options that say how a run is sent."""
    parser.add_argument(
        "--token-file",
        type=Path,
        metavar="FILE",
        help="the server's token (default: HOSTBOUND_TOKEN)",
    )
    parser.add_argument(
        "--insecure", action="store_true", help="send the token over plain http to another host"
    )
    parser.add_argument(
        "--spool",
        type=Path,
        nargs="?",
        metavar="DIR",
        help="where runs to be sent are noted (default: ~/.local/state/hostbound/spool)",
    )
    parser.add_argument(
        "--patience",
        type=float,
        default=patience_s,
        metavar="SECONDS",
        help="give up after this long without progress (default: %(default)g)",
    )
    parser.add_argument(
        "--delete-after",
        action="store_true",
        help="delete the run here once the server has acknowledged its hash",
    )


def options(args: argparse.Namespace) -> Options:
    """Return how these options say to send."""
    from collector.upload.sending import Options

    return Options(
        token_file=args.token_file,
        insecure=args.insecure,
        spool=args.spool,
        patience_s=args.patience,
        delete_after=args.delete_after,
        wait=getattr(args, "wait", False),
    )
