"""A command whose libraries are missing says which extra to install, in one line, with exit code 2.

Each `cli.main` calls `require` before it imports anything heavy, so that the three commands can be
installed by `pip install hostbound` alone. Standard library only.
"""

from __future__ import annotations

import importlib.util
import sys


class MissingExtra(SystemExit):
    """Ends the command: `str()` is the line, `code` is 2."""

    def __init__(self, text: str) -> None:
        super().__init__(2)
        self.text = text

    def __str__(self) -> str:
        return self.text


def missing(*modules: str) -> list[str]:
    """Return those top-level modules that are not installed; imports none of them."""
    return [name for name in modules if importlib.util.find_spec(name) is None]


def require(extra: str, *modules: str) -> None:
    """Return if all `modules` are installed; else say so on stderr and end with exit code 2.

    Args:
        extra: Name in `pip install 'hostbound[extra]'`.
        modules: Import names that the extra brings, e.g. "duckdb", "polars".

    Raises:
        MissingExtra: A module is not installed.
    """
    absent = missing(*modules)
    if not absent:
        return
    text = (
        f"this command needs {', '.join(absent)}, not installed here: "
        f"pip install 'hostbound[{extra}]'"
    )
    sys.stderr.write(text + "\n")
    raise MissingExtra(text)
