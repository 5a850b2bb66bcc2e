"""A progress line on a terminal, nothing elsewhere."""

from __future__ import annotations

import sys
from time import monotonic


class Progress:
    """One line on stderr, rewritten in place; silent where stderr is no terminal."""

    def __init__(self, label: str) -> None:
        self._label = label
        self._on = sys.stderr.isatty()
        self._last = 0.0

    def __call__(self, done: int, total: int) -> None:
        now = monotonic()
        if not self._on or (done < total and now - self._last < 0.1):
            return
        self._last = now
        width = 30
        filled = width * done // max(total, 1)
        sys.stderr.write(f"\r{self._label} [{'#' * filled}{'.' * (width - filled)}] {done}/{total}")
        if done >= total:
            sys.stderr.write("\n")
        sys.stderr.flush()


def say(text: str) -> None:
    """One line about what is going on, on stderr."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()
