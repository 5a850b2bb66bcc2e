"""Writes a file or folder whole or not at all."""

from __future__ import annotations

import os
import shutil
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

import duckdb

from analyzer.errors import AnalyzerError


@contextmanager
def aside(out: Path) -> Generator[Path, None, None]:
    """A name beside `out` to write to; what is left of it on an error is removed.

    Raises:
        AnalyzerError: `out` exists, its folder does not, or the disk refuses.
    """
    if out.exists() or out.is_symlink():
        raise AnalyzerError(f"{out} exists already; remove it or name another target with --out.")
    if not out.parent.is_dir():
        raise AnalyzerError(
            f"{out.parent} is no folder; make it or name another target with --out."
        )
    temporary = out.with_name(f".{out.name}.{os.getpid()}.part")
    try:
        yield temporary
    except (OSError, duckdb.IOException) as error:
        reason = getattr(error, "strerror", None) or str(error).splitlines()[0]
        raise AnalyzerError(f"{out} cannot be written: {reason}. Nothing is left there.") from error
    finally:
        if temporary.is_dir():
            shutil.rmtree(temporary, ignore_errors=True)
        else:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
