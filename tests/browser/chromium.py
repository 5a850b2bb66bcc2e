"""Which Chromium the browser tests drive: the system's, else the one that Playwright installs.

As a program it prints the path, or says what is missing and exits with 1; `make test` asks so.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome")
MISSING = (
    "no Chromium here, so the browser tests cannot run; on Debian: apt-get install chromium, "
    "elsewhere: playwright install chromium"
)


def of_playwright() -> str | None:
    """Where Playwright's own Chromium is or would be; None without Playwright."""
    try:
        from playwright import sync_api  # deferred: it starts a driver, and may not be there
    except ImportError:
        return None
    with sync_api.sync_playwright() as playwright:
        return playwright.chromium.executable_path


def find(own: Callable[[], str | None] = of_playwright) -> str | None:
    """Path of a Chromium; None if there is none.

    Args:
        own: Tells where another one may be; asked if the search path has none.
    """
    for name in NAMES:
        if path := shutil.which(name):
            return path
    path = own()
    return path if path and Path(path).is_file() else None


if __name__ == "__main__":
    found = find()
    print(found or MISSING, file=sys.stdout if found else sys.stderr)
    sys.exit(not found)
