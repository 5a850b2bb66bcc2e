"""Where the browser tests look for a browser, and what becomes of them without one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.browser import chromium


def program(folder: Path, name: str) -> Path:
    path = folder / name
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return path


def nobody() -> str | None:
    raise AssertionError("the system has a Chromium, so Playwright is not to be asked")


@pytest.mark.parametrize("name", chromium.NAMES)
def test_the_systems_chromium_is_taken_before_playwrights(tmp_path, monkeypatch, name):
    monkeypatch.setenv("PATH", str(tmp_path))
    path = program(tmp_path, name)
    assert chromium.find(nobody) == str(path)


def test_playwrights_own_is_taken_where_the_system_has_none(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    path = program(tmp_path, "chrome")
    assert chromium.find(lambda: str(path)) == str(path)


def test_where_playwright_would_put_one_is_no_browser_yet(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert chromium.find(lambda: str(tmp_path / "chrome")) is None
    assert chromium.find(lambda: None) is None


@pytest.mark.parametrize(
    ("ci", "outcome"), [("", "1 skipped"), ("true", "1 error"), ("1", "1 error")]
)
def test_without_a_browser_its_tests_are_skipped_with_a_reason_and_in_ci_fail(
    tmp_path, ci, outcome
):
    root = Path(__file__).resolve().parents[3]
    done = subprocess.run(
        [
            sys.executable, "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", "-m", "browser",
            "tests/browser/test_journey.py::test_a_slow_statement_is_cancelled_by_a_button",
        ],
        cwd=root,
        env={
            **os.environ,
            "CI": ci,
            "PATH": str(tmp_path),
            "PLAYWRIGHT_BROWSERS_PATH": str(tmp_path),
        },
        capture_output=True,
        text=True,
        check=False,
    )  # fmt: skip
    assert outcome in done.stdout
    assert "apt-get install chromium" in done.stdout
