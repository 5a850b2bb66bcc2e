"""The thread that measures stays on one CPU, no other does."""

from __future__ import annotations

import os
import threading
from collections.abc import Generator

import pytest

from collector.record.placement import current_cpu, on_one_cpu

pytestmark = pytest.mark.skipif(
    not hasattr(os, "sched_setaffinity"), reason="threads cannot be placed on this system"
)


@pytest.fixture
def cpus() -> Generator[set[int], None, None]:
    """Where this process may run; afterwards again."""
    found = os.sched_getaffinity(0)
    if len(found) < 2:
        pytest.skip("one CPU")
    yield found
    os.sched_setaffinity(0, found)


def test_it_is_there_within_and_everywhere_afterwards(cpus: set[int]) -> None:
    cpu = current_cpu()

    with on_one_cpu(cpu):
        assert os.sched_getaffinity(0) == {cpu}
        assert current_cpu() == cpu

    assert os.sched_getaffinity(0) == cpus


def test_without_a_cpu_it_is_left_alone(cpus: set[int]) -> None:
    with on_one_cpu(None):
        assert os.sched_getaffinity(0) == cpus


def test_an_error_within_gives_the_cpus_back(cpus: set[int]) -> None:
    with pytest.raises(ZeroDivisionError), on_one_cpu(max(cpus)):
        _ = 1 / 0

    assert os.sched_getaffinity(0) == cpus


def test_threads_that_are_started_within_are_not_left_there(cpus: set[int]) -> None:
    done = threading.Event()
    with on_one_cpu(max(cpus)):
        thread = threading.Thread(target=done.wait)
        thread.start()
    assert thread.native_id is not None
    try:
        assert os.sched_getaffinity(thread.native_id) == cpus
    finally:
        done.set()
        thread.join()
