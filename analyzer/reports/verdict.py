"""The verdict on a run in words: how long the GPU waits, where, and what HDBI says beside it.

Takes sums that are there already. Time leads, as it is what can be won; HDBI weighs costs, which
may overlap, so where the two point apart the reason is said too.
"""

from __future__ import annotations

from collections.abc import Sequence

from analyzer import numbers
from analyzer.queries.costs import StepTotals, Totals
from analyzer.reports.bands import BANDS, band_of
from analyzer.reports.evidence import NOT_JUDGED
from analyzer.reports.records import Bound

ACCOUNT_MEANS = {
    "python": "Python and everything else outside operators",
    "region": "compiled-region wrappers: guards, generated glue code",
    "framework": "PyTorch operators: dispatch, shapes, allocation",
    "library": "inside CUDA libraries' host code (cuBLAS, cuDNN)",
    "launch": "in kernel launch calls",
    "graph_launch": "in graph launch calls",
    "memory": "in copy, memset and allocation calls",
    "copy_wait": "in copies, waiting for earlier work of the device",
    "wait": "waiting for the device",
    "other_call": "in other CUDA calls (attributes, events, module loading)",
}
_WAITS = ("copy_wait", "wait")
_NOT_LAUNCHING = ("memory", *_WAITS, "other_call")  # in no T_Orchestration
# The shares of time in which the GPU waits that go with each band of HDBI, in their order.
_EXPECTED = ((0.3, 1.0), (0.2, 0.6), (0.0, 0.3))
# A part of this share is large enough to be the reason of a difference.
_LARGE = 0.1


def exposed(measured: StepTotals) -> dict[str, int] | None:
    """Time of each account while the device was idle; None where that is unknown."""
    times = {account: time.exposed_ns for account, time in measured.ledger.items()}
    known = {account: ns for account, ns in times.items() if ns is not None}
    return known if known and len(known) == len(times) else None


def sentence(
    measured: StepTotals,
    totals: Totals,
    unsupported: Sequence[str],
    balance: Bound | None = None,
    idleness: Bound | None = None,
) -> str:
    """The verdict in words: the GPU's waiting and its largest account, HDBI, why they differ.

    Args:
        unsupported: What the trace cannot tell; see `Verdict`.
        balance, idleness: What the evidence says of HDBI and of the device's idle time; None:
            sound.
    """
    if balance and totals.kernels != 0:
        lead = "" if idleness else _waiting(measured, totals)
        parts = [lead, _not_judged(measured, balance, idleness)]
    else:
        lead = _waiting(measured, totals) if idleness is None else _bounded(measured, idleness)
        parts = [lead, _balance(measured, totals, unsupported)]
        if not unsupported and not idleness:
            parts.append(_why_apart(measured, totals))
    return " ".join(part for part in parts if part)


def _idle_share(measured: StepTotals) -> float | None:
    """The share of the steps' host time in which the device was idle; None for none or unknown."""
    times = exposed(measured)
    wall = sum(entry.ns for entry in measured.ledger.values())
    return sum(times.values()) / wall if times and wall and sum(times.values()) else None


def _bounded(measured: StepTotals, idleness: Bound) -> str:
    """How much of the host's time the GPU waits, where only a bound is known."""
    share = _idle_share(measured)
    if share is None:
        return ""
    return (
        f"The GPU waits for {idleness.kind} {numbers.share(share)} of the steps' host time: "
        f"{idleness.reason}."
    )


def _not_judged(measured: StepTotals, balance: Bound, idleness: Bound | None) -> str:
    """Why HDBI is not judged, and what is still known of the idle GPU, in one sentence."""
    share = _idle_share(measured)
    if idleness is not None and idleness.kind == NOT_JUDGED:
        return f"HDBI and GPU idle time are not judged: {balance.reason}."
    if idleness is None or share is None:
        return f"HDBI is not judged: {balance.reason}."
    return (
        f"The GPU waits for {idleness.kind} {numbers.share(share)} of the steps' host time, and "
        f"HDBI is not judged: {balance.reason}."
    )


def _waiting(measured: StepTotals, totals: Totals) -> str:
    """How much of the host's time the GPU waits, and what the host is in meanwhile."""
    times = exposed(measured)
    wall = sum(entry.ns for entry in measured.ledger.values())
    if times is None or not wall:
        return ""
    device = "device" if totals.kernels == 0 else "GPU"
    idle = sum(times.values())
    lead = (
        f"The {device} waits for {numbers.share(idle / wall)} of the steps' host time "
        f"({numbers.duration(idle)} of {numbers.duration(wall)})"
    )
    if not idle:
        return f"{lead}."
    worst = max(times, key=lambda account: times[account])
    found = (
        f"{lead}; the largest part of that, {numbers.share(times[worst] / idle)}, passes in "
        f"{worst} ({ACCOUNT_MEANS[worst]})."
    )
    if worst in _WAITS:
        found += " There both wait: between kernels, or for work that is not in the trace."
    return found


def _balance(measured: StepTotals, totals: Totals, unsupported: Sequence[str]) -> str:
    """HDBI in words, or why there is none."""
    if "kernels" in unsupported:
        return "The trace holds no kernel, so it says nothing about a GPU."
    if not totals.launches:
        return (
            "HDBI is unknown: the trace holds no launch call, so nothing says what launching cost "
            "the host."
        )
    if measured.hdbi is None:
        return "HDBI is unknown: the launch floor is missing, so T_Orchestration is too."
    if "operators" in unsupported:
        return (
            "The trace holds no operators, so what they cost the host is unknown: T_Orchestration "
            "is the launch path alone and HDBI an upper bound."
        )
    return f"HDBI {numbers.index(measured.hdbi)}, {band_of(measured.hdbi).sentence}"


def _why_apart(measured: StepTotals, totals: Totals) -> str:
    """Why HDBI and the share of waiting point apart; nothing where they agree."""
    times = exposed(measured)
    wall = sum(entry.ns for entry in measured.ledger.values())
    if measured.hdbi is None or times is None or not wall:
        return ""
    idle = sum(times.values())
    least, most = _EXPECTED[BANDS.index(band_of(measured.hdbi))]
    if least <= idle / wall <= most:
        return ""
    if idle / wall < least:
        reasons = _hidden_costs(measured, totals)
        rest = "the host prepares work while the device does other work"
    else:
        reasons = _other_waiting(measured, times)
        rest = "HDBI weighs costs, and part of the device's work hides behind the host's"
    return f"The two differ: {'; '.join(reasons) or rest}."


def _hidden_costs(measured: StepTotals, totals: Totals) -> list[str]:
    """Why the GPU waits less than the costs of launching suggest."""
    found: list[str] = []
    outside, own = totals.event_sum_outside_steps_ns or 0, measured.device_event_sum_ns or 0
    if outside > _LARGE * own:
        found.append(
            f"{numbers.duration(outside)} of device work that no step launched keeps the GPU busy "
            "and is in no HDBI"
        )
    path, orchestration = measured.kt_ns or 0, measured.orchestration_ns or 0
    if totals.floor_source == "trace" and path > orchestration / 2:
        found.append(
            f"{numbers.share(path / orchestration)} of T_Orchestration is the launch path, whose "
            f"floor ({numbers.duration(totals.launch_floor_ns)}) is an estimate from "
            f"{numbers.count(totals.clean_launches)} launches"
        )
    return found


def _other_waiting(measured: StepTotals, times: dict[str, int]) -> list[str]:
    """Why the GPU waits more than the costs of launching suggest."""
    found: list[str] = []
    if measured.device_tail_ns > _LARGE * measured.wall_ns:
        found.append(
            f"kernels run on for {numbers.duration(measured.device_tail_ns)} after the host has "
            "ended its steps, which is no host time"
        )
    idle = sum(times.values())
    calls = {account: times[account] for account in _NOT_LAUNCHING if times.get(account)}
    if sum(calls.values()) > idle / 3:
        found.append(
            f"{numbers.share(sum(calls.values()) / idle)} of the waiting passes in "
            f"{' and '.join(a for a in calls if calls[a] > _LARGE * idle) or 'calls'}, which "
            "T_Orchestration does not hold"
        )
    active, busy = measured.device_active_ns or 0, measured.device_busy_ns or 0
    if active > (1 + _LARGE) * busy:
        found.append("kernels of several streams overlap, and HDBI counts each")
    return found
