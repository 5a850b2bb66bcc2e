"""The ledger tells copying from waiting for the device inside a copy."""

from __future__ import annotations

import pytest

US = 1000
LEDGER = "SELECT account, ns, exposed_ns FROM ledger WHERE step_id = 0 AND ns > 0"


def copied(trace, *, call_us: int, copy_at_us: int, copy_us: int = 10, **where):
    """A kernel [20, 120), and a copy call at 30 whose work begins at `copy_at_us`."""
    trace.add_annotation("step#0", 0, 200)
    trace.add_launch("gemm", 15, 100, 1)
    trace.add_call("cudaMemcpyAsync", 30, call_us, 2)
    trace.add_kernel("Memcpy DtoH", copy_at_us, copy_us, 2, category="gpu_memcpy", **where)
    return trace


def accounts(ask) -> dict[str, tuple[float, float]]:
    return {account: (ns / US, exposed / US) for account, ns, exposed in ask(LEDGER)}


def test_a_copy_that_blocks_waits_until_the_kernels_before_it_are_done(trace, stored):
    found = accounts(stored(copied(trace, call_us=110, copy_at_us=125), step_annotation="step#*"))
    assert found["copy_wait"] == (90, 0)  # from 30 to the kernel's end at 120
    assert found["memory"] == (20, 10)  # idle 120 to 125, copied 125 to 135, idle to 140
    assert sum(ns for ns, _ in found.values()) == 200


def test_a_copy_that_returns_before_its_work_is_done_waits_for_nothing(trace, stored):
    found = accounts(stored(copied(trace, call_us=20, copy_at_us=125), step_annotation="step#*"))
    assert "copy_wait" not in found
    assert found["memory"][0] == 20


def test_a_copy_beside_a_kernel_waits_only_until_it_begins(trace, stored):
    built = copied(trace, call_us=40, copy_at_us=50, stream=8)
    found = accounts(stored(built, step_annotation="step#*"))
    assert found["copy_wait"] == (20, 0)
    assert found["memory"] == (20, 0)


def test_work_of_another_device_is_not_waited_for(trace, stored):
    built = copied(trace, call_us=40, copy_at_us=50, device=1)
    assert "copy_wait" not in accounts(stored(built, step_annotation="step#*"))


@pytest.mark.parametrize("inside", ["cuMemcpyDtoHAsync_v2", "cudaMemcpyAsync"])
def test_a_call_within_the_copy_changes_nothing(trace, stored, inside):
    built = copied(trace, call_us=110, copy_at_us=125).add_call(inside, 35, 95, 2)
    found = accounts(stored(built, step_annotation="step#*"))
    assert found["copy_wait"] == (90, 0)
    assert found["memory"] == (20, 10)
