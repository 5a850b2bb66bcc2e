"""`analyzer mcp`: the store for agents, over stdio."""

from __future__ import annotations

import argparse
from pathlib import Path

from analyzer.cli.arguments import DEFAULT_DB, NEEDS
from schemas.commands import Command
from schemas.extras import require


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument(
        "--db",
        type=Path,
        default=Path(DEFAULT_DB),
        metavar="FILE",
        help=f"the store (default: {DEFAULT_DB}); a .toml names a lake",
    )


def run(args: argparse.Namespace) -> int:
    """Answer until the client closes its end."""
    require("agents", "mcp")
    from analyzer.agents.mcp_server import build
    from analyzer.agents.tools import Tools
    from analyzer.store import open_store

    store = open_store(args.db)
    with store.reading():  # what is no store is said now, not to an agent
        pass
    build(Tools(lambda: store)).run("stdio")
    return 0


COMMAND = Command(
    "mcp",
    "Answer an agent's questions over the Model Context Protocol (stdio), read-only.",
    add_arguments,
    run,
    NEEDS,
)
