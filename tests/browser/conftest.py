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
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from analyzer.ingest import ingest
from tests.browser import chromium
from tests.conftest import missing

SAMPLES = ("bs1-s512", "bs1-s512-compile", "bs1-s512-graph", "bs8-s512")
PAGES = {
    "runs": "",
    "run": "run?run=gpt2-prefill-bs1-s512",
    "timeline": "timeline?run=gpt2-prefill-bs1-s512&from=12000000&to=13500000",
    "kernels": "kernels?run=gpt2-prefill-bs1-s512&kernel=5",
    "compare": "compare?runs=gpt2-prefill-bs1-s512,gpt2-prefill-bs1-s512-graph",
    "sweep": "sweep",
    "sql": "sql?run=1",
}
FLAGS = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
)  # fmt: skip
PATIENCE_MS = 20_000


@dataclass
class Watched:
    """A browser page, what its console says and which addresses it asks for."""

    page: Any
    base: str
    console: list[str] = field(default_factory=list)
    foreign: list[str] = field(default_factory=list)

    def open(self, path: str) -> None:
        self.page.goto(f"{self.base}/{path}")
        self.settle()

    def settle(self) -> None:
        """Wait until the server has answered all."""
        self.page.wait_for_selector("h1", timeout=PATIENCE_MS)
        self.page.wait_for_selector(
            "[data-testid='stApp'][data-test-script-state='notRunning']", timeout=PATIENCE_MS
        )

    def drawn(self) -> None:
        """Wait until the browser has painted all that it was given."""
        self.page.wait_for_function(
            """() => !document.querySelector('[data-testid=stSkeleton]')
              && [...document.querySelectorAll('[data-testid=stVegaLiteChart]')]
                .every(e => e.querySelector('canvas, svg'))""",
            timeout=PATIENCE_MS,
        )

    def note_console(self, message: Any) -> None:
        # Opened below the root, Streamlit first looks for its server at the page's address.
        probe = "/_stcore/" in message.location.get("url", "") and "404" in message.text
        if message.type == "error" and not probe:
            self.console.append(message.text)

    def note_request(self, request: Any) -> None:
        if not request.url.startswith((f"{self.base}/", "data:", "blob:")):
            self.foreign.append(request.url)


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory, samples_dir: Path) -> Path:
    """Some samples; a test uploads another."""
    path = tmp_path_factory.mktemp("browser") / "store.duckdb"
    ingest([samples_dir / f"gpt2-prefill-{name}" for name in SAMPLES], path, jobs=1)
    return path


@pytest.fixture(scope="session")
def server(store: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of the app, started as a person starts it."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    log = (tmp_path_factory.mktemp("log") / "webapp.log").open("w+")
    command = [sys.executable, "-m", "webapp.cli", "--db", str(store), "--port", str(port)]
    root = Path(__file__).resolve().parents[2]
    process = subprocess.Popen(
        command, cwd=root, stdout=log, stderr=subprocess.STDOUT, env={**os.environ}
    )
    base = f"http://127.0.0.1:{port}"
    try:
        deadline = time.monotonic() + 60
        while True:
            try:
                with urllib.request.urlopen(f"{base}/_stcore/health", timeout=2):
                    break
            except (urllib.error.URLError, OSError):
                if process.poll() is not None or time.monotonic() > deadline:
                    log.seek(0)
                    pytest.fail(f"the app did not start: {log.read()[-2000:]}")
                time.sleep(0.1)
        yield base
    finally:
        process.terminate()
        process.wait(20)
        log.close()


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

    def new(path: str = "", *, scheme: str = "light", width: int = 1440) -> Watched:
        context = browser.new_context(
            viewport={"width": width, "height": 900}, color_scheme=scheme, accept_downloads=True
        )
        page = context.new_page()
        page.set_default_timeout(PATIENCE_MS)
        watched = Watched(page, server)
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
