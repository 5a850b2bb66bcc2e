"""The command `analyzer`, a module a command; `schemas.commands` has the exit codes.

What a command needs is imported when it runs, so that --help is quick.
"""

from __future__ import annotations

from collections.abc import Sequence

from analyzer.cli import (
    compare,
    doctor,
    export,
    ingest,
    life,
    maintain,
    mcp,
    predict,
    report,
    runs,
    show,
    sql,
    verify,
)
from analyzer.server import commands as server
from schemas import commands

COMMANDS = (
    ingest.COMMAND,
    runs.COMMAND,
    show.COMMAND,
    report.COMMAND,
    doctor.COMMAND,
    predict.COMMAND,
    compare.COMMAND,
    sql.COMMAND,
    export.COMMAND,
    verify.COMMAND,
    maintain.COMMAND,
    mcp.COMMAND,
    *life.COMMANDS,
    *server.COMMANDS,
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code."""
    return commands.main(
        "analyzer",
        COMMANDS,
        argv,
        description="Is the GPU waiting for the host, and which layer of the software stack is to "
        "blame?",
        epilog="Start with: analyzer ingest TRACE.json.gz && analyzer report latest",
        interrupted="the store is as it was before this run.",
    )
