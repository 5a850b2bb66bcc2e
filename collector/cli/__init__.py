"""The command `collector`: record, replay, floor, doctor, upload; a module each.

torch is imported by the command that needs it, so that --help is quick.
"""

from __future__ import annotations

from collections.abc import Sequence

from collector.cli import doctor, floor, record, replay, upload
from schemas import commands
from schemas.commands import Command

COMMANDS = (
    Command(
        "record",
        "Record a workload into a run directory.",
        record.add_arguments,
        record.run,
        ("torch",),
    ),
    Command(
        "replay",
        "Redo the kernel replay of an existing run directory.",
        replay.add_arguments,
        replay.run,
        ("torch",),
    ),
    Command(
        "floor",
        "The launch floor of this host, by launch API.",
        floor.add_arguments,
        floor.run,
        ("torch",),
    ),
    Command("doctor", "What this host can do for a recording.", doctor.add_arguments, doctor.run),
    Command(
        "upload",
        "Send runs to a server; without a run, what is spooled.",
        upload.add_arguments,
        upload.run,
    ),
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code."""
    return commands.main(
        "collector",
        COMMANDS,
        argv,
        description="Record a model's traces, latency, kernel replays and launch floor on a GPU "
        "host.",
        epilog="Start with: collector doctor && collector record --model gpt2",
        interrupted="no run directory was written.",
    )
