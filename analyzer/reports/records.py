"""What reports, comparisons and predictions give back: records, a line a field.

Command line, `--json`, pages, API and notebooks take the same ones. Times are integer nanoseconds,
unknown is None. A time taken under the profiler is never called a latency. Fields stand in the
order in which `--json` has them.
"""

from __future__ import annotations

from dataclasses import dataclass

from analyzer.queries.costs import Costs, Ledger, Step, StepTotals, Totals
from analyzer.queries.records import (
    Check,
    Coverage,
    Family,
    Finding,
    Floor,
    Kernel,
    Latencies,
    MatchTier,
    Op,
    Run,
    StepGroup,
)
from analyzer.reports.ranks import RankFigures, RankReport

# -- what the traces can prove


@dataclass(frozen=True)
class Bound:
    """What a group of figures is, if not what it seems."""

    kind: str  # at least | at most | not judged
    figures: str  # the group in words
    reason: str  # what was found
    remedy: str  # what to do about it


@dataclass(frozen=True)
class Evidence:
    """What the traces of a run can prove: which figures are bounds, which are not judged."""

    sentence: str | None  # what is touched and why, in one line; None: nothing is
    bounds: dict[str, Bound]  # by group of figures; all others are sound
    checks: list[Check]  # one of each name, all traces together

    def kind(self, group: str) -> str:
        """at least | at most | not judged, of a group of figures; "" of a sound one."""
        return self.bounds[group].kind if group in self.bounds else ""


@dataclass(frozen=True)
class Diagnosis:
    """What the command `doctor` says of a run, or of a file that is in no store."""

    name: str  # shown
    run_id: str | None  # None: of a file
    evidence: Evidence  # what its traces can prove


# -- how fast the host was


@dataclass(frozen=True)
class UnprofiledStep:
    """The steps without profiler just before the traces, of one phase."""

    unprofiled_ns: int | None  # median
    inflation: float  # median of profiled over un-profiled step


@dataclass(frozen=True)
class HostSpeed:
    """What a manifest says of its host's speed: times of a fixed piece of work, more is slower."""

    definition: str  # what the fixed piece of work is
    traces_ns: int | None  # median during the traces
    trace_low_ns: int | None  # least during the traces
    trace_high_ns: int | None  # most during the traces
    latency_ns: int | None  # median during the latency requests
    floor_ns: int | None  # median during launch floor or kernel replay
    beside: dict[str, UnprofiledStep]  # by phase


@dataclass(frozen=True)
class PairedPhase:
    """Ratios of the other run's median step to the base's, trace by trace; None where unknown."""

    pairs: int  # of traces
    orchestration: float | None  # T_Orchestration: median of the ratios
    orchestration_interval: tuple[float, float] | None  # 90 % confidence; None for few pairs
    orchestration_ratios: list[float] | None  # of each pair
    elapsed: float | None  # profiled step: median of the ratios
    elapsed_interval: tuple[float, float] | None  # 90 % confidence; None for few pairs
    elapsed_ratios: list[float] | None  # of each pair
    unprofiled: float | None  # un-profiled step before it: median of the ratios
    unprofiled_interval: tuple[float, float] | None  # 90 % confidence; None for few pairs
    unprofiled_ratios: list[float] | None  # of each pair


@dataclass(frozen=True)
class PairedRatios:
    """Two runs that were recorded interleaved, compared trace by trace."""

    phases: dict[str, PairedPhase]  # by phase
    sentence: str  # in words


# -- prediction


@dataclass(frozen=True)
class Gap:
    """Time between two nodes of a graph replay."""

    low_ns: int  # 5 % of gaps are at most so long
    mean_ns: int  # mean
    high_ns: int  # 95 % of gaps are at most so long
    n: int  # gaps measured
    source: str  # where it was measured


@dataclass(frozen=True)
class PredictedRun:
    """The run that a prediction starts from."""

    run_id: str  # whole id
    name: str  # shown
    model: str | None  # as the recorder named it
    mode: str  # eager | hybrid | compile | graph | foreign
    gpu: str | None  # its name


@dataclass(frozen=True)
class PredictedPhase:
    """A phase's step as it is, and how well the schedule gives it back."""

    steps: int  # with kernels
    studied: int  # of them, played again as a schedule
    profiled_ns: int  # median studied step, under the profiler
    unprofiled_ns: int | None  # median step without the profiler
    base_ns: int  # what predictions are held against: un-profiled if known
    replay_error: float  # of the schedule against the recorded step: largest, with sign
    fit_error: float  # of the fitted schedule against base_ns: largest, with sign
    host_scale: float  # by which the host's work was scaled to fit base_ns
    one_thread: bool  # nearly all device work was launched by one thread
    streams: int  # that the device work ran on
    ledger: Ledger  # of the mean step


@dataclass(frozen=True)
class Prediction:
    """The median step of a phase after a change."""

    what: str  # the change, e.g. graphs or cpu-faster:2
    phase: str  # of the steps
    base_ns: int  # the step as it is
    predicted_ns: int | None  # None: bounds only, or no prediction
    low_ns: int | None  # lower bound
    high_ns: int | None  # upper bound
    nodes: int | None  # of graphs: device events of the step
    pieces: int | None  # of graphs: how many the step needs
    reason: str | None  # why there is no prediction, or what it stands on


@dataclass(frozen=True)
class MeasuredChange:
    """Another run of the store that made the change, beside what was predicted."""

    what: str  # the change
    phase: str  # of the steps
    run: str  # the other run's name
    measured_ns: int  # its median un-profiled step
    error: float | None  # predicted / measured - 1


@dataclass(frozen=True)
class Predictions:
    """What changes would win, predicted from one run."""

    run: PredictedRun  # from which
    gap: Gap | None  # between nodes of a graph; None if not measured on this GPU
    phases: dict[str, PredictedPhase]  # the step as it is, by phase
    predictions: list[Prediction]  # one for each phase and change
    measured: list[MeasuredChange]  # runs that made a change
    exposed: dict[str, dict[str, int]]  # ns by phase and account: what a change can win at most
    notes: list[str]  # what to know about it
    validated: str  # where the prediction was held against measurements


# -- report


@dataclass(frozen=True)
class PhaseFigures(StepTotals):
    """A phase's steps added up, and its median step over all traces of the run."""

    step_elapsed_ns: list[int]  # of each step
    step_wall_ns: list[int]  # of each step
    median_elapsed_ns: int  # median step
    median_wall_ns: int  # median step
    median_device_active_ns: int | None  # median step
    median_orchestration_ns: int | None  # median step; None if one is unknown


@dataclass(frozen=True)
class RunFigures:
    """What a comparison needs of a run: its times, no single event."""

    run: Run  # what it is
    totals: Totals  # everything recorded
    measured: StepTotals  # all steps added up
    phases: dict[str, PhaseFigures]  # by phase
    steps: list[Step]  # in order of time
    latency: Latencies | None  # without the profiler; None if not measured
    host_speed: HostSpeed | None  # None if not measured
    ranks: RankReport | None  # None where the traces are not ranks of one job
    evidence: Evidence  # what the traces can prove; figures that are not judged are None

    @property
    def is_whole_trace(self) -> bool:
        """No step was marked, so that each trace is one."""
        return all(step.phase == "trace" for step in self.steps)


@dataclass(frozen=True)
class Verdict:
    """How long the GPU waits, which account is to blame, how host-bound the steps are."""

    reading: str  # name of the band of HDBI, "unknown", or "not judged"
    unsupported: list[str]  # what the trace cannot tell: device, kernels, operators, launch floor
    hdbi: float | None  # over all steps
    largest_component: str | None  # of T_Orchestration
    idle_ns: int | None  # host time of the steps while the GPU was idle
    idle_share: float | None  # of the steps' host time
    most_exposed_account: str | None  # where most of idle_ns passes
    accounts: list[str]  # of the ledger, in their order
    sentence: str  # all of it in words


@dataclass(frozen=True)
class RunSummary(RunFigures):
    """Is the run host-bound, and what is to be known about it?"""

    verdict: Verdict  # the answer
    phase_verdicts: dict[str, Verdict]  # the same of each phase
    coverage: Coverage  # how much is linked and attributed
    inflation: dict[str, float] | None  # profiled over un-profiled step time, by phase
    quality: list[Finding]  # warnings first
    warnings: list[str]  # of them, the warnings' messages


@dataclass(frozen=True)
class RunReport(RunSummary):
    """Everything that the command `report` shows of a run."""

    steps_told: str  # how many steps there are and what told them
    step_groups: list[StepGroup]  # by phase and batch
    ledger: Ledger  # of the whole trace
    match: dict[str, MatchTier] | None  # by tier; None without kernel replay
    families: dict[str, Family]  # by name, most device time first
    kernels: list[Kernel]  # longest in sum first
    ops: list[Op]  # that cost the host most, first
    kernels_per_output_token: float | None  # None if tokens are unknown
    floors: list[Floor]  # measured launch floors
    predictions: Predictions | None  # None without kernels, or where steps are very long


# -- comparison


@dataclass(frozen=True)
class PhaseMeans(Costs):
    """A phase's mean step, its HDBI, and its median step."""

    hdbi: float | None  # over the phase
    median_elapsed_ns: int  # median step
    median_wall_ns: int  # median step
    median_device_active_ns: int | None  # median step
    median_orchestration_ns: int | None  # median step; None if one is unknown


@dataclass(frozen=True)
class ComparedRun:
    """One run's figures, per step."""

    run_id: str  # whole id
    name: str  # shown
    mode: str  # eager | hybrid | compile | graph | foreign
    steps: int  # added up
    hdbi: float | None  # over all steps
    hdbi_busy: float | None  # the same by device busy time
    reading: str  # name of the band of HDBI, "unknown", or "not judged"
    per_step: Costs  # the mean step
    totals: Totals  # everything recorded
    phases: dict[str, PhaseMeans]  # by phase
    ledger: Ledger  # of the mean step
    latency: Latencies | None  # without the profiler; None if not measured
    host_speed: HostSpeed | None  # None if not measured
    ranks: list[RankFigures] | None  # what each waited; None where the traces are not ranks
    evidence: Evidence  # what its traces can prove


@dataclass(frozen=True)
class TimeChange:
    """How a phase's step time changed."""

    before_ns: int  # median step of the base
    after_ns: int  # median step of the other
    relative: float | None  # after / before - 1
    noise: float  # relative changes up to this are none, where no bounds are known
    source: str  # un-profiled | profiled
    outcome: str  # same | faster | slower | not judged
    low: float | None  # the recordings speak for a relative change from here
    high: float | None  # to here, at 98 % confidence; None: too few units
    units: str | None  # that speak, e.g. 40 pairs of traces, 12 and 12 blocks of steps


@dataclass(frozen=True)
class SequenceMatch:
    """Steps of a phase in both runs."""

    steps: int  # of the same phase and place
    identical: int  # of them, with the same kernels in the same order


@dataclass(frozen=True)
class Sequences:
    """Did the steps launch the same kernels in the same order?"""

    phases: dict[str, SequenceMatch]  # by phase
    sentence: str  # in words


@dataclass(frozen=True)
class AccountChange:
    """An account of the mean step in both runs."""

    account: str  # of the ledger, or device_tail: device work after the host was done
    before_ns: int  # of the base
    after_ns: int  # of the other
    change_ns: int  # after - before
    before_exposed_ns: int | None  # of the base, while the device was idle
    after_exposed_ns: int | None  # of the other, while the device was idle


@dataclass(frozen=True)
class KernelChange:
    """A kernel in both runs, a step."""

    kernel: str  # raw name
    clean_name: str  # demangled, without arguments
    op: str | None  # innermost op that launched it
    family: str  # gemm, attention, elementwise, ...
    aligned_by: str  # identity | name
    status: str  # same, faster or slower (with more or fewer), appeared, vanished, fused
    fused: list[str]  # ops that it does, or kernels that do it now
    before: float  # how often in a step of the base
    after: float  # how often in a step of the other
    before_ns: int  # device time of the base
    after_ns: int  # device time of the other
    change_ns: int  # after - before


@dataclass(frozen=True)
class OpChange:
    """The launches under ops of one name in both runs, a step."""

    op: str  # its name
    status: str  # both | appeared | vanished | fused
    fused: list[str]  # kernels that do it now, or ops that it does
    before_launches: float  # in a step of the base
    after_launches: float  # in a step of the other
    before_ns: int  # cost on the host of the base
    after_ns: int  # cost on the host of the other
    change_ns: int  # after - before


@dataclass(frozen=True)
class Pair:
    """A run against the base."""

    base: str  # the base's name
    other: str  # the other's name
    verdict: str  # in words
    turns: PairedRatios | None  # trace by trace; None unless recorded interleaved
    warnings: list[str]  # what makes the two hard to compare
    times: dict[str, TimeChange]  # by phase
    sequences: Sequences | None  # None if a run has no kernels
    waterfall: list[AccountChange]  # from the base's mean step to the other's
    kernels: list[KernelChange]  # largest change first
    ops: list[OpChange]  # largest change first


@dataclass(frozen=True)
class Comparison:
    """Runs compared with the first of them."""

    verdict: str  # of the first pair
    runs: list[ComparedRun]  # the base first
    pairs: list[Pair]  # one for each further run


@dataclass(frozen=True)
class Gate:
    """A condition of somebody's CI, judged."""

    run: str  # name of the run that was judged
    condition: str  # as it was written
    before: float | None  # the base's value; None if unknown
    after: float | None  # the run's value; None if not judged
    failed: bool  # the condition holds
    not_judged: str | None  # why it cannot be judged; None: it was


@dataclass(frozen=True)
class GatedComparison(Comparison):
    """A comparison with the gates that were asked for."""

    gates: list[Gate]  # by condition, then run
