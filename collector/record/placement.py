"""One CPU for the thread that measures: the CPUs of a virtual machine differ in speed.

Only the calling thread is placed. Threads of CUDA and of its profiler keep all CPUs, those that a
measurement starts included.
"""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path


def current_cpu() -> int | None:
    """Return the CPU on which this thread runs now; None where threads cannot be placed."""
    if not hasattr(os, "sched_setaffinity"):
        return None
    try:
        # proc(5): field 39, "processor"; the name before it may hold blanks and brackets.
        return int(Path("/proc/thread-self/stat").read_text().rpartition(")")[2].split()[36])
    except (OSError, ValueError, IndexError):
        return None


@contextmanager
def on_one_cpu(cpu: int | None) -> Generator[None, None, None]:
    """Run this thread on one CPU; None leaves it alone.

    Threads that are started meanwhile inherit the placement, and are freed of it at the end.
    """
    if cpu is None:
        yield
        return
    everywhere, known = os.sched_getaffinity(0), _threads()
    os.sched_setaffinity(0, {cpu})
    try:
        yield
    finally:
        os.sched_setaffinity(0, everywhere)
        for thread in _threads() - known:
            with suppress(OSError):  # it has ended
                os.sched_setaffinity(thread, everywhere)


def _threads() -> set[int]:
    return {int(path.name) for path in Path("/proc/self/task").iterdir()}
