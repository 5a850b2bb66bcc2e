"""The main journey without a mouse: only keys, and only names that a screen reader says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.support.browser import LONGEST_TEST_S, Watched

pytestmark = [
    pytest.mark.browser,
    pytest.mark.xdist_group("browser"),
    pytest.mark.timeout(LONGEST_TEST_S),
]
EAGER, GRAPH = "gpt2-prefill-bs1-s512", "gpt2-prefill-bs1-s512-graph"
MOST_TABS = 150
MOST_TRIES = 60


class Keys:
    """A person who has a keyboard and hears the names of what has the focus."""

    def __init__(self, seen: Watched) -> None:
        self.seen, self.page = seen, seen.page

    def go(self, role: str, name: str | re.Pattern[str], within: str = "body") -> None:
        """Tab until something of this role and name has the focus."""
        wanted = self.page.locator(within).get_by_role(role, name=name)
        wanted.first.wait_for()
        self.page.wait_for_function("e => !e.disabled", arg=wanted.first.element_handle())
        for _ in range(MOST_TABS):
            if any(
                one.evaluate("e => e === e.getRootNode().activeElement") for one in wanted.all()
            ):
                return
            self.page.keyboard.press("Tab")
        raise AssertionError(f"Tab does not lead to the {role} {name!r} on {self.page.url}")

    def press(self, role: str, name: str | re.Pattern[str], within: str = "body") -> None:
        self.go(role, name, within)
        self.page.keyboard.press("Enter")

    def write(self, text: str, end: str = "") -> None:
        """Instead of what the focused field holds."""
        self.page.keyboard.press("ControlOrMeta+a")
        self.page.keyboard.press("Delete")
        self.page.keyboard.type(text)
        if end:
            self.page.keyboard.press(end)

    def file_chooser(self) -> Any:
        """What the focused button opens; the upload's script comes a moment after its button."""
        from playwright.sync_api import TimeoutError  # deferred: absent, `visit` says so

        for _ in range(MOST_TRIES):
            try:
                with self.page.expect_file_chooser(timeout=2_000) as asked:
                    self.page.keyboard.press("Enter")
                return asked.value
            except TimeoutError:
                continue
        raise AssertionError("Enter on the upload's button opens no file chooser")

    def arrives(self, heading: str) -> None:
        self.page.get_by_role("heading", name=heading, exact=True).wait_for()
        self.seen.settle()


def test_the_journey_by_keyboard_alone(visit, samples_dir: Path, tmp_path: Path):
    seen = visit()
    page, keys = seen.page, Keys(seen)

    # Load a run that the store has already, so that other tests count the same runs.
    keys.go("button", re.compile("^Upload$"))
    chosen = keys.file_chooser()
    chosen.set_files([str(p) for p in sorted((samples_dir / EAGER).iterdir())])
    page.get_by_text("is in the store already").wait_for()
    seen.settle()

    # Filter.
    keys.go("textbox", "Search")
    keys.write("graph", "Enter")
    page.get_by_text(re.compile(r"^1 of \d runs,")).wait_for()
    keys.go("textbox", "Search")
    keys.write("", "Enter")
    page.get_by_text(re.compile(r"^(\d) of \1 runs,")).wait_for()
    seen.settle()

    # Open a run.
    keys.press("link", re.compile(f"^{EAGER}$"))
    keys.arrives("Run")
    said = page.locator("[data-testid=stMain]").aria_snapshot()
    for heading in ("Does the GPU wait for the host?", "Where the launching thread was"):
        assert f'heading "{heading}"' in said
    page.get_by_label("HDBI 0.173 on a scale from 0, host-bound", exact=False).last.wait_for()

    # Zoom the timeline, and ask for an event.
    keys.press("link", re.compile("Timeline"), "[data-testid=stMain]")
    keys.arrives("Timeline")
    for _ in range(3):
        before = page.url
        keys.press("button", re.compile("Zoom in"))
        page.wait_for_function("before => location.href !== before", arg=before)
        seen.settle()
    seen.url_has("from=")
    keys.go("combobox", re.compile("Event"))
    page.keyboard.type("stream")
    page.get_by_role("option", name=re.compile("^stream")).first.wait_for()
    page.keyboard.press("Enter")
    page.get_by_role("heading", name="The chosen event").wait_for()
    seen.settle()

    # Compare eager and graph.
    keys.press("link", re.compile("Runs"), "header")
    keys.arrives("Runs")
    for name in (EAGER, GRAPH):
        keys.go("checkbox", re.compile(f"^Choose {name}$"))
        page.keyboard.press("Space")
        seen.settle()
    page.get_by_text("2 chosen").wait_for()
    keys.press("link", re.compile("Compare$"), "[data-testid=stMain]")
    keys.arrives(f"{GRAPH} against {EAGER}")
    page.get_by_label("Waterfall from the base's mean step time", exact=False).last.wait_for()

    # Query, and take the answer away.
    keys.press("link", re.compile("SQL"), "header")
    keys.arrives("SQL")
    keys.go("textbox", re.compile("SQL: one SELECT"))
    keys.write("SELECT 42 AS answer")
    keys.press("button", re.compile("Run$"))
    page.get_by_text("1 row, at most").wait_for()
    seen.settle()
    keys.press("button", re.compile("answer"))
    keys.go("button", "answer.csv")
    with page.expect_download() as answer:
        page.keyboard.press("Enter")
    answer.value.save_as(tmp_path / "answer.csv")
    assert (tmp_path / "answer.csv").read_text() == "answer\n42\n"
