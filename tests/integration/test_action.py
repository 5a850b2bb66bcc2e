"""The GitHub Action's steps, run in a shell: green, red, and one comment that is updated."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
EAGER, GRAPH = "gpt2-prefill-bs1-s512", "gpt2-prefill-bs1-s512-graph"
GH = """#!/bin/sh
# Says what it was asked; knows the comment whose id is in $GH_KNOWN.
echo "$@" >>"$GH_LOG"
case "$*" in *--jq*) [ -z "$GH_KNOWN" ] || echo "$GH_KNOWN" ;; esac
"""


@pytest.fixture
def shell(tmp_path: Path) -> dict[str, str]:
    """What the runner of a job gives its steps, and `analyzer` on the path."""
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "analyzer").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m analyzer.cli "$@"\n')
    (programs / "python").write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    (programs / "gh").write_text(GH)
    for program in programs.iterdir():
        program.chmod(0o755)
    return os.environ | {
        "PATH": f"{programs}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "RUNNER_TEMP": str(tmp_path),
        "GITHUB_STEP_SUMMARY": str(tmp_path / "summary.md"),
        "GITHUB_REPOSITORY": "team/model",
        "GH_LOG": str(tmp_path / "gh.log"),
        "GH_KNOWN": "",
    }


def run(step: str, shell: dict[str, str], **given: str) -> subprocess.CompletedProcess[str]:
    script = ROOT / "deploy" / "ci" / f"{step}.sh"
    environment = shell | {f"HOSTBOUND_{key.upper()}": value for key, value in given.items()}
    return subprocess.run(
        ["bash", script], env=environment, capture_output=True, text=True, check=False
    )


def compared(
    shell: dict[str, str], samples: Path, fail_if: str
) -> subprocess.CompletedProcess[str]:
    return run(
        "compare", shell, base=str(samples / EAGER), run=str(samples / GRAPH), fail_if=fail_if
    )


def test_a_good_change_is_green_and_the_summary_says_what_it_won(
    shell: dict[str, str], samples_dir: Path
) -> None:
    done = compared(shell, samples_dir, "launches > +5%\n\norchestration_ns > +5%\n")

    assert done.returncode == 0, done.stderr
    summary = Path(shell["GITHUB_STEP_SUMMARY"]).read_text(encoding="utf-8")
    assert "times faster than" in summary
    assert "| account |" in summary


def test_a_condition_that_holds_is_red_and_named(shell: dict[str, str], samples_dir: Path) -> None:
    done = compared(shell, samples_dir, "launches < -50%")

    assert done.returncode == 1
    assert "launches < -50% holds" in done.stderr
    assert "launches < -50% holds" in Path(shell["GITHUB_STEP_SUMMARY"]).read_text(encoding="utf-8")


def test_what_cannot_be_read_or_compared_is_refused(
    shell: dict[str, str], samples_dir: Path, tmp_path: Path
) -> None:
    (tmp_path / "broken.json").write_text("{", encoding="utf-8")
    sample = str(samples_dir / EAGER)

    broken = run("compare", shell, base=str(tmp_path / "broken.json"), run=sample)
    same = run("compare", shell, base=sample, run=sample)

    assert broken.returncode not in (0, 1)
    assert "broken.json" in broken.stderr
    assert same.returncode == 2
    assert "the same recording" in same.stderr


@pytest.mark.parametrize(("known", "method"), [("", "POST"), ("77", "PATCH")])
def test_a_pull_request_gets_one_comment_that_is_updated_in_place(
    shell: dict[str, str], samples_dir: Path, known: str, method: str
) -> None:
    assert compared(shell, samples_dir, "").returncode == 0

    done = run("comment", shell | {"GH_KNOWN": known}, pull_request="12")

    assert done.returncode == 0, done.stderr
    asked = Path(shell["GH_LOG"]).read_text(encoding="utf-8").splitlines()
    assert f"--method {method}" in asked[-1]
    assert ("issues/comments/77" if known else "issues/12/comments") in asked[-1]
    body = Path(shell["RUNNER_TEMP"]) / "hostbound-comment.md"
    assert body.read_text(encoding="utf-8").startswith("<!-- hostbound -->\n")
