"""How fast the host is at this moment: the time of a fixed piece of work, in integer nanoseconds.

A host may run at two speeds, a factor of two apart, and change between them every second or every
minute (a virtual machine whose neighbours work, a laptop that grows warm). Host times of two
recordings are comparable only if they were taken at the same speed. More nanoseconds are slower.
"""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from time import perf_counter_ns

LOOPS = 6_000
REPETITIONS = 7
DEFINITION = (
    f"pure Python: {LOOPS} calls of a function that writes a tuple of a number and its text into a "
    f"dict of 256; median of {REPETITIONS} in a row"
)


def calibrate(clock: Callable[[], int] = perf_counter_ns) -> int:
    """Return the time of the fixed work in ns, for about 5 to 20 ms.

    The median and not the least of the repetitions: a step of milliseconds feels a core that is
    taken away now and then, and so must this.
    """
    times: list[int] = []
    for _ in range(REPETITIONS):
        began = clock()
        _work()
        times.append(clock() - began)
    return max(round(median(times)), 1)


def _work() -> int:
    """Calls, objects that come and go, a dict: what an eager step's Python does."""
    table: dict[int, tuple[int, str]] = {}
    total = 0
    for number in range(LOOPS):
        total += _entry(table, number)
    return total


def _entry(table: dict[int, tuple[int, str]], number: int) -> int:
    table[number & 255] = (number, str(number & 15))
    return len(table)
