"""A browser page that is watched: what the app's pages complain of and ask for."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PAGES = {
    "runs": "",
    "run": "run?run=gpt2-prefill-bs1-s512",
    "timeline": "timeline?run=gpt2-prefill-bs1-s512&from=12000000&to=13500000",
    "kernels": "kernels?run=gpt2-prefill-bs1-s512&kernel=5",
    "compare": "compare?runs=gpt2-prefill-bs1-s512,gpt2-prefill-bs1-s512-graph",
    "sweep": "sweep",
    "sql": "sql?run=1",
}
# Nobody waits so long, but for a condition: a machine that is busy with other work is slow.
PATIENCE_MS = 120_000
LONGEST_TEST_S = 1_800


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

    def still(self) -> None:
        """Wait until what fades in or moves has come to its end."""
        self.page.wait_for_function(
            """() => document.getAnimations().every(one => one.playState !== 'running'
              || one.effect.getComputedTiming().endTime === Infinity)""",
            timeout=PATIENCE_MS,
        )

    def url_has(self, part: str) -> None:
        """Wait until the URL holds this."""
        self.page.wait_for_function(
            "part => location.href.includes(part)", arg=part, timeout=PATIENCE_MS
        )

    def offers_first(self, name: str) -> None:
        """Wait until the open list begins with a run of this name: Enter then takes it."""
        self.page.wait_for_function(
            """start => document.querySelector('[role=option]')?.textContent.startsWith(start)""",
            arg=f"{name} ·",
            timeout=PATIENCE_MS,
        )

    def take(self, file: str, path: Path) -> None:
        """Take a file away, by the menu below its table or chart."""
        menu = self.page.get_by_test_id("stPopoverButton")
        menu.filter(has_text=file.rpartition(".")[0]).first.click()
        with self.page.expect_download() as taken:
            self.page.get_by_role("button", name=file).click()
        taken.value.save_as(path)
        self.page.keyboard.press("Escape")

    def note_console(self, message: Any) -> None:
        # Opened below the root, Streamlit first looks for its server at the page's address.
        probe = "/_stcore/" in message.location.get("url", "") and "404" in message.text
        if message.type == "error" and not probe:
            self.console.append(message.text)

    def note_request(self, request: Any) -> None:
        if not request.url.startswith((f"{self.base}/", "data:", "blob:")):
            self.foreign.append(request.url)
