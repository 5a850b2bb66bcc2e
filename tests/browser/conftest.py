"""A server on the sample runs and a Chromium that notes what the pages complain of and ask for."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from analyzer.ingest import ingest
from tests.browser import chromium
from tests.conftest import missing
from tests.support.browser import PATIENCE_MS, Watched

SAMPLES = ("bs1-s512", "bs1-s512-compile", "bs1-s512-graph", "bs8-s512")
FLAGS = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
)  # fmt: skip
START_S, STOP_S = 300, 120


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory, samples_dir: Path) -> Path:
    """Some samples; a test uploads another."""
    path = tmp_path_factory.mktemp("browser") / "store.duckdb"
    ingest([samples_dir / f"gpt2-prefill-{name}" for name in SAMPLES], path, jobs=1)
    return path


@contextmanager
def serving(store: Path, folder: Path, *options: str) -> Iterator[str]:
    """Address of the app, started as a person starts it."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    path = options[options.index("--base-path") + 1] if "--base-path" in options else ""
    command = [sys.executable, "-m", "webapp.cli", "--db", str(store), "--port", str(port)]
    root = Path(__file__).resolve().parents[2]
    with (folder / "webapp.log").open("w+") as log:
        process = subprocess.Popen(
            [*command, *options], cwd=root, stdout=log, stderr=subprocess.STDOUT, env={**os.environ}
        )
        base = f"http://127.0.0.1:{port}{path}"
        try:
            deadline = time.monotonic() + START_S
            while True:
                try:
                    with urllib.request.urlopen(f"{base}/_stcore/health", timeout=30):
                        break
                except (urllib.error.URLError, OSError):
                    if process.poll() is not None or time.monotonic() > deadline:
                        log.seek(0)
                        pytest.fail(f"the app did not start: {log.read()[-2000:]}")
                    time.sleep(0.1)
            yield base
        finally:
            process.terminate()
            process.wait(STOP_S)


@pytest.fixture(scope="session")
def server(store: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with serving(store, tmp_path_factory.mktemp("log")) as base:
        yield base


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """A headless Chromium."""
    try:
        from playwright import sync_api  # deferred: absent, the tests are skipped, in CI they fail
    except ImportError:
        missing("no playwright here: pip install 'hostbound[dev]'")
        raise
    path = chromium.find()
    if path is None:
        missing(chromium.MISSING)
    with sync_api.sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=path, headless=True, args=list(FLAGS))
        yield found
        found.close()


@pytest.fixture
def visit(browser: Any, server: str) -> Iterator[Callable[..., Watched]]:
    """Open a page in its own context; nothing may have complained or left the machine."""
    opened: list[tuple[Any, Watched]] = []

    def new(
        path: str = "", *, scheme: str = "light", width: int = 1440, base: str = server
    ) -> Watched:
        context = browser.new_context(
            viewport={"width": width, "height": 900}, color_scheme=scheme, accept_downloads=True
        )
        page = context.new_page()
        page.set_default_timeout(PATIENCE_MS)
        watched = Watched(page, base)
        page.on("console", watched.note_console)
        page.on("pageerror", lambda error: watched.console.append(str(error)))
        page.on("request", watched.note_request)
        opened.append((context, watched))
        watched.open(path)
        return watched

    yield new
    for context, watched in opened:
        context.close()
        assert watched.console == []
        assert watched.foreign == []
