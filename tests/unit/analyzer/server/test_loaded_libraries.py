"""What of the server the command line and the pages load: nothing of its libraries."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

LIBRARIES = (
    "fastapi",
    "uvicorn",
    "starlette",
    "prometheus_client",
    "httpx",
    "authlib",
    "sqlalchemy",
)


@pytest.mark.parametrize(
    "module",
    ["analyzer.cli", "analyzer.server", "analyzer.server.pages", "analyzer.server.discovery"],
)
def test_the_servers_libraries_are_loaded_by_the_server_alone(root: Path, module: str) -> None:
    """The analyzer and the web app are installed without them."""
    code = f"import sys, {module}; print([m for m in {LIBRARIES!r} if m in sys.modules])"

    done = subprocess.run(
        [sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True
    )

    assert done.stdout.strip() == "[]"
