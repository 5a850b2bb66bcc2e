"""What a span of time cost: a step, several added up, everything recorded.

The parts are small records, so that steps, sums and means share names and one line of doc a field.
A record with several bases has the fields of the last base first, in the order of `--json`. Times
are integer nanoseconds, unknown is None.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from operator import attrgetter

from analyzer.attribution import classification
from analyzer.attribution.totals import hdbi


@dataclass(frozen=True)
class AccountTime:
    """The launching threads' time in one account of the ledger."""

    ns: int  # its time
    exposed_ns: int | None  # of it, while the device was idle; None without device events


Ledger = dict[str, AccountTime]  # by account, in their fixed order


@dataclass(frozen=True)
class Activity:
    """What was launched and ran in a span; counts and times, which add up over spans."""

    kernels: int | None  # kernels that ran; None with graph replays recorded as one block
    memcpys: int  # copies that ran
    memsets: int  # memsets that ran
    launches: int  # kernel launches and graph launches
    graph_launches: int  # of them, graph launches
    launches_without_op: int  # launches outside of every op
    orphan_device_events: int  # device events whose launch is not in the trace
    launches_without_device_event: int  # launches whose work is not in the trace
    negative_gaps: int  # launches whose kernel starts before the call
    clean_launches: int  # launches on a stream that was seen idle
    bad_time_events: int  # events with unsound times, in no sum
    wall_ns: int  # of the launching thread, from start to end
    # Sum of kernel durations; None without device events, or as `kernels`.
    device_active_ns: int | None
    device_busy_ns: int | None  # union of all device events, per device, then summed
    device_event_sum_ns: int | None  # sum of all device events
    orphan_device_ns: int  # of it, orphans
    busy_in_window_ns: int | None  # the union, clipped to the span
    device_idle_ns: int | None  # the span less busy_in_window_ns
    t_py_ns: int | None  # Python before the outermost op; None without launch calls
    t_dispatch_ns: int | None  # from the outermost op to the launch


@dataclass(frozen=True)
class _Base:
    t_base_ns: int | None  # median T_dispatch outside of libraries


@dataclass(frozen=True)
class Translation:
    """What the host spent to get kernels launched, decomposed; times add up over spans."""

    ft_ns: int | None  # framework translation, dFT
    ct_ns: int | None  # CUDA-library translation, dCT
    kt_ns: int | None  # launch path at the floor, dKT
    kt_fw_ns: int | None  # launch path above the floor; None without kernel replay
    kt_fw_low_ns: int | None  # its lower bound
    kt_fw_high_ns: int | None  # its upper bound
    ct_paper_ns: int | None  # dCT by the paper's rule for libraries
    orchestration_ns: int | None  # T_Orchestration = dFT + dCT + dKT
    tklqt_ns: int | None  # launch and queueing time


@dataclass(frozen=True)
class _Balance:
    hdbi: float | None  # device active / (device active + orchestration)
    hdbi_busy: float | None  # the same by device busy time


@dataclass(frozen=True)
class _Floor:
    launch_floor_ns: int | None  # launch start to kernel start of the empty kernel
    floor_source: str  # null_kernel | trace | none


@dataclass(frozen=True)
class _Outside:
    active_outside_steps_ns: int | None  # kernels in no step; None in the figures of a step
    event_sum_outside_steps_ns: int | None  # device events in no step; None likewise


@dataclass(frozen=True)
class Totals(_Floor, _Outside, _Balance, Translation, _Base, Activity):
    """Everything recorded in a span, and its balance."""


@dataclass(frozen=True)
class _Place:
    step_id: int  # ordinal in the run
    trace_id: int  # its trace
    name: str  # of the annotation, or "trace" where the whole trace is one step
    phase: str  # prefill | decode | mixed | capture | step | trace
    index: int  # ordinal in its phase and trace
    thread_id: int | None  # the thread with most launches
    start_ns: int  # its start on the host
    end_ns: int  # its end on the host
    elapsed_ns: int  # start to the later of end_ns and the end of its last device event
    device_tail_ns: int  # of it, after the host's end
    engine: str | None  # that marked it
    batch: int | None  # requests, as the mark says
    ctx_tokens: int | None  # new tokens of prefilled requests
    gen_tokens: int | None  # new tokens of requests that generate
    is_warm_up: bool  # a slow first repetition, in no median


@dataclass(frozen=True)
class Step(Totals, _Place):
    """A step with its totals and its ledger."""

    ledger: Ledger  # of its launching threads


@dataclass(frozen=True)
class _Elapsed:
    elapsed_ns: int  # start to the later of the host's end and the device's
    device_tail_ns: int  # of it, after the host's end


@dataclass(frozen=True)
class Costs(_Elapsed, Translation, Activity):
    """What steps cost: the figures that add up over steps."""


@dataclass(frozen=True)
class _Steps:
    steps: int  # how many were added up


@dataclass(frozen=True)
class StepTotals(_Balance, Costs, _Steps):
    """Steps added up. A sum with an unknown is unknown."""

    ledger: Ledger  # of the launching threads, added up


def ordered(accounts: dict[str, AccountTime]) -> Ledger:
    """The accounts in their fixed order."""
    return {name: accounts[name] for name in classification.ACCOUNTS if name in accounts}


def added(parts: Sequence[Step]) -> StepTotals:
    """Steps added up, with their ledger and HDBI. A sum with an unknown is unknown."""
    names = [field.name for field in fields(Costs)]
    columns = zip(*map(attrgetter(*names), parts), strict=True)
    sums = dict.fromkeys(names) | {
        name: None if None in column else sum(column)
        for name, column in zip(names, columns, strict=False)
    }
    active, orchestration = sums["device_active_ns"], sums["orchestration_ns"]
    return StepTotals(
        steps=len(parts),
        hdbi=hdbi(active, orchestration),
        hdbi_busy=hdbi(sums["device_busy_ns"], orchestration),
        ledger=_added_ledgers(part.ledger for part in parts),
        **sums,  # pyright: ignore[reportArgumentType]  # known where each part's is
    )


def mean(sums: StepTotals) -> Costs:
    """The mean of the steps that were added up, each figure rounded."""
    n = max(sums.steps, 1)
    figures = {field.name: getattr(sums, field.name) for field in fields(Costs)}
    means = {name: None if value is None else round(value / n) for name, value in figures.items()}
    return Costs(**means)  # pyright: ignore[reportArgumentType]  # known where the sum is


def _added_ledgers(ledgers: Iterable[Ledger]) -> Ledger:
    times: dict[str, list[AccountTime]] = {}
    for ledger in ledgers:
        for account, time in ledger.items():
            times.setdefault(account, []).append(time)
    return ordered({account: _added_times(parts) for account, parts in times.items()})


def _added_times(parts: Sequence[AccountTime]) -> AccountTime:
    exposed = [time.exposed_ns for time in parts]
    known = [ns for ns in exposed if ns is not None]
    return AccountTime(
        sum(time.ns for time in parts), sum(known) if len(known) == len(exposed) else None
    )
