"""The study's GPU part: records run directories and raw samples, most valuable first.

The parent hands jobs to a worker process and watches it: a job that fails, hangs or takes the CUDA
context down costs itself only, and a new worker goes on. A job that the index calls done is
skipped.
"""

from __future__ import annotations

import queue
import subprocess
import sys
import threading
import time
from pathlib import Path

from benchmarks.study import index, jobs
from benchmarks.study.index import note, say
from benchmarks.study.jobs import Job
from benchmarks.study.worker import HANG_S

MOST_IN_A_ROW = 4  # workers that get nothing done, before the parent gives up
OVERTIME_S = 60.0  # a job is stopped that is not done so long after the budget's end
ROOT = Path(__file__).resolve().parents[2]


def record(out: Path, budget_s: float, only: list[int], rehearse: bool) -> int:
    """Run what is not done yet, until the budget is over; returns how many jobs failed."""
    out.mkdir(parents=True, exist_ok=True)
    end = time.monotonic() + budget_s
    done = {entry["name"] for entry in index.read(out) if entry["state"] == "done"}
    left = [
        job for job in jobs.planned() if job.name not in done and (not only or job.item in only)
    ]
    failed = in_a_row = 0
    while left:
        if in_a_row == MOST_IN_A_ROW:
            say(f"{in_a_row} workers in a row got nothing done; giving up")
            break
        if time.monotonic() > end:
            say(f"time is over; {len(left)} not begun: {', '.join(job.name for job in left)}")
            break
        worker = _Worker(out, left, end, rehearse)
        new = worker.watch()
        failed += new
        in_a_row = in_a_row + 1 if new and worker.finished == new else 0
        left = left[worker.finished :]
    return failed


class _Worker:
    """A process that does jobs in order; `finished` counts those that are over, well or not."""

    def __init__(self, out: Path, left: list[Job], end: float, rehearse: bool) -> None:
        self.out, self.end, self.left = out, end, left
        self.finished = 0
        command = [sys.executable, "-m", "benchmarks.study", "work"]
        command += [
            "--out",
            str(out.resolve()),
            "--seconds",
            f"{max(end - time.monotonic(), 0):.0f}",
        ]
        command += ["--jobs", *[job.name for job in left], *(["--rehearse"] if rehearse else [])]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)
        self.lines: queue.Queue[str | None] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.put(line)
        self.lines.put(None)

    def watch(self) -> int:
        """Until the worker ends or is stopped; returns how many of its jobs failed."""
        failed, began = 0, time.monotonic()
        while True:
            try:
                wait = min(HANG_S, self.end + OVERTIME_S - time.monotonic())
                line = self.lines.get(timeout=max(wait, 1.0))
            except queue.Empty:
                self.process.kill()
                say(f"{self._current()} hangs and is stopped")
                self.process.wait()
                self._give_up("took too long and was stopped", began)
                return failed + 1
            if line is None:
                break
            if line.startswith("BEGIN "):
                began = time.monotonic()
            elif line.startswith("END "):
                failed += "failed" in line
                self.finished += 1
        if self.process.wait() not in (0, 3):  # 3: it stopped after a failure, all written down
            self._give_up(f"the worker ended with {self.process.returncode}", began)
            failed += 1
        elif not self.process.returncode:
            self.finished = len(self.left)  # the rest did not fit into the time
        return failed

    def _current(self) -> str:
        return self.left[min(self.finished, len(self.left) - 1)].name

    def _give_up(self, reason: str, began: float) -> None:
        note(self.out, self._current(), "failed", time.monotonic() - began, reason)
        self.finished += 1
