"""A program of commands ends with an exit code, and says in one line why it did not work."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from schemas import commands
from schemas.commands import Command
from schemas.errors import HostboundError


def run_command(run: Callable[[argparse.Namespace], int], *argv: str, needs: str = "sys") -> int:
    def add_arguments(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--number", type=int, default=0)

    command = Command("go", "Goes.", add_arguments, run, (needs,))
    return commands.main(
        "prog", [command], argv, description="Does.", epilog="Start.", interrupted="all is well."
    )


def test_a_command_gets_its_options_and_gives_the_exit_code() -> None:
    assert run_command(lambda args: args.number, "go", "--number", "7") == 7


def test_what_a_user_can_mend_is_one_line_and_exit_code_2(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def refuses(args: argparse.Namespace) -> int:
        raise HostboundError("there is no x; give y.")

    assert run_command(refuses, "go") == 2
    assert capsys.readouterr().err == "prog: there is no x; give y.\n"


def test_an_interruption_says_what_holds(capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted(args: argparse.Namespace) -> int:
        raise KeyboardInterrupt

    assert run_command(interrupted, "go") == 130
    assert capsys.readouterr().err == "prog: interrupted; all is well.\n"


def test_a_bug_keeps_its_traceback() -> None:
    with pytest.raises(ZeroDivisionError):
        run_command(lambda args: 1 // 0, "go")


def test_a_module_that_is_not_installed_is_named_with_its_extra(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as ended:
        run_command(lambda args: 0, "go", needs="no_such_library_at_all")

    assert ended.value.code == 2
    assert "pip install 'hostbound[prog]'" in capsys.readouterr().err


@pytest.mark.parametrize(("argv", "code"), [(["--help"], 0), ([], 2), (["stop"], 2)])
def test_help_and_a_wrong_command_run_nothing(argv: list[str], code: int) -> None:
    def runs(args: argparse.Namespace) -> int:
        pytest.fail("a command ran")

    with pytest.raises(SystemExit) as ended:
        run_command(runs, *argv)
    assert ended.value.code == code


def test_a_reader_that_has_seen_enough_is_no_error(root: Path) -> None:
    """As `prog go | head -1` does."""
    code = """
import sys
from schemas import commands
def run(args):
    for _ in range(100_000):
        print("a line", flush=True)
command = commands.Command("go", "Goes.", lambda parser: None, run)
sys.exit(commands.main("prog", [command], ["go"], description="", epilog="", interrupted=""))
"""
    with subprocess.Popen(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(root)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        said = process.stderr.read()

    assert (process.returncode, said) == (0, b"")
