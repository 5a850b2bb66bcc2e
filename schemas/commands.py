"""A program of commands: parses its command line, runs one command, ends with an exit code.

Exit codes: 0 good, 1 done with a finding, 2 refused (one line on stderr says why), 3 done, but what
was asked cannot be judged by what was recorded, 130 interrupted.
Results go to stdout, the rest to stderr. A module with commands must be quick to import: what a
command needs is imported when it runs. Standard library only.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from schemas.errors import HostboundError
from schemas.extras import require

NOT_JUDGED = 3


@dataclass(frozen=True)
class Command:
    """One command of a program.

    Attributes:
        name: What one types.
        summary: One sentence for --help.
        add_arguments: Adds its options to its parser.
        run: Does it; returns the exit code.
        needs: Modules that must be installed; the extra that brings them has the program's name.
    """

    name: str
    summary: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]
    needs: tuple[str, ...] = ()


def main(
    prog: str,
    commands: Sequence[Command],
    argv: Sequence[str] | None = None,
    *,
    description: str,
    epilog: str,
    interrupted: str,
) -> int:
    """Run the command that `argv` names (None: that of this process); returns its exit code.

    Args:
        interrupted: What holds after Ctrl-C, as the end of a sentence.

    Raises:
        SystemExit: The command line is none, asks for help, or a module is not installed.
    """
    args = _parser(prog, commands, description, epilog).parse_args(argv)
    command: Command = args.command
    require(prog, *command.needs)
    try:
        return command.run(args)
    except HostboundError as error:
        sys.stderr.write(f"{prog}: {error}\n")
        return 2
    except BrokenPipeError:  # the reader of the pipe has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        sys.stderr.write(f"{prog}: interrupted; {interrupted}\n")
        return 130


def _parser(
    prog: str, commands: Sequence[Command], description: str, epilog: str
) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=prog, description=description, epilog=epilog)
    group = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for command in commands:
        sub = group.add_parser(command.name, help=command.summary, description=command.summary)
        sub.set_defaults(command=command)
        command.add_arguments(sub)
    return parser
