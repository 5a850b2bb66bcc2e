"""The process pool gives every result once, and outlives workers that die."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from analyzer.ingest.executors import Lost, Pool

POOL_OF_SLEEPERS = """
import os, sys, time
from pathlib import Path
from analyzer.ingest.executors import Pool

def sleep(folder):
    (Path(folder) / str(os.getpid())).touch()
    time.sleep(600)

if __name__ == "__main__":
    list(Pool(2).map(sleep, [sys.argv[1]] * 2))
"""


def double(number: int) -> int:
    return 2 * number


def die_once(mark: Path) -> str:
    """Kill the process that works on it, unless that happened before."""
    try:
        mark.touch(exist_ok=False)
    except FileExistsError:
        return mark.name
    os.kill(os.getpid(), signal.SIGKILL)
    return "never"


def die_always(name: str) -> str:
    if name == "bad":
        os.kill(os.getpid(), signal.SIGKILL)
    return name


def complain(number: int) -> int:
    raise ValueError(f"{number} is wrong")


def test_every_item_has_one_result_whatever_the_number_of_workers() -> None:
    for workers in (1, 3):
        found = dict(Pool(workers).map(double, list(range(10))))
        assert found == {number: 2 * number for number in range(10)}
    assert list(Pool(2).map(double, [])) == []


@pytest.mark.slow
def test_items_whose_worker_was_killed_are_done_again(tmp_path: Path) -> None:
    marks = [tmp_path / f"{number}" for number in range(3)]
    assert sorted(Pool(2).map(die_once, marks)) == [(0, "0"), (1, "1"), (2, "2")]


@pytest.mark.slow
def test_an_item_that_kills_every_worker_is_lost_and_takes_no_other_with_it() -> None:
    items = ["a", "bad", "b", "c", "d", "e"]
    found = dict(Pool(2).map(die_always, items))
    lost = found.pop(1)
    assert isinstance(lost, Lost)
    assert "died" in lost.error
    assert found == {index: name for index, name in enumerate(items) if name != "bad"}


@pytest.mark.slow
def test_workers_end_when_the_process_that_started_them_is_killed(tmp_path: Path) -> None:
    script = tmp_path / "pool.py"  # a file: its processes import it
    script.write_text(POOL_OF_SLEEPERS)
    folder = tmp_path / "marks"
    folder.mkdir()
    process = subprocess.Popen(
        [sys.executable, str(script), str(folder)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    while len(marks := list(folder.iterdir())) < 2:
        assert process.poll() is None
        time.sleep(0.05)
    process.kill()
    process.wait()
    deadline = time.monotonic() + 30
    while any(Path(f"/proc/{mark.name}").exists() for mark in marks):
        assert time.monotonic() < deadline, "workers outlive their parent"
        time.sleep(0.05)


def test_what_the_function_raises_is_raised() -> None:
    with pytest.raises(ValueError, match="1 is wrong"):
        list(Pool(1).map(complain, [1]))
