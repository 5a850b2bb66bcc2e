"""Measuring while the host runs at one speed, that of this recording or of an earlier one."""

from __future__ import annotations

import platform
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from time import perf_counter_ns
from typing import Generic, TypeVar

from collector.calibration import DEFINITION, calibrate
from collector.errors import CollectorError
from collector.progress import say
from schemas.manifest import Environment
from schemas.run_directory import read_manifest

# How far from its target a speed may be, as a ratio less one. A profiled step changes less than in
# proportion to it (docs/decisions/0007), so two recordings like a third stay within 5 %.
OWN_TOLERANCE = 0.05
LIKE_TOLERANCE = 0.03

T = TypeVar("T")


def apart(one_ns: float, other_ns: float) -> float:
    """How much slower the slower of two speeds is: 0 if they are the same, 1 if twice as slow."""
    return max(one_ns, other_ns) / min(one_ns, other_ns) - 1


def in_words(now_ns: float, then_ns: float) -> str:
    """ "1.40 times slower": now against then."""
    return f"{1 + apart(now_ns, then_ns):.2f} times {'slower' if now_ns > then_ns else 'faster'}"


@dataclass(frozen=True)
class Target:
    """The speed that measurements are held to.

    Attributes:
        ns: Calibration in ns.
        tolerance: How far from it a measurement may be, as `apart` has it.
        words: Whose speed it is.
        like: `run_id` of another recording whose speed it is; None: the recording's own.
    """

    ns: int
    tolerance: float
    words: str
    like: str | None = None


def of_latency(speeds_ns: list[int]) -> Target:
    """The recording's own speed: the median of the calibrations of its latency pass."""
    return Target(round(median(speeds_ns)), OWN_TOLERANCE, "in the latency pass")


def of_run(run_dir: Path, here: Environment) -> Target:
    """The speed at which the traces of a run directory were recorded.

    Raises:
        RunDirectoryError: It is no run directory.
        CollectorError: It says nothing of its host's speed, or this is another kind of host.
    """
    manifest = read_manifest(run_dir)
    speeds = manifest.trace_speeds_ns()
    if manifest.host_speed is None or not speeds:
        raise CollectorError(
            f"{run_dir} does not say how fast its host was, so nothing can be recorded like it; "
            "record it again with this collector."
        )
    there = manifest.environment
    for what, then, now in (
        ("CPU", there.cpu, here.cpu),
        ("number of CPUs", there.cpu_count, here.cpu_count),
        ("GPU", there.gpu, here.gpu),
        ("Python", _minor(there.versions.get("python")), _minor(platform.python_version())),
        ("measure of speed", manifest.host_speed.definition, DEFINITION),
    ):
        if then != now:
            raise CollectorError(
                f"{run_dir} was recorded with another {what} ({then or 'unknown'}, here "
                f"{now or 'unknown'}), so speeds cannot be held against it; leave --like out."
            )
    return Target(round(median(speeds)), LIKE_TOLERANCE, f"in {manifest.name}", manifest.run_id)


def _minor(version: str | None) -> str | None:
    return None if version is None else ".".join(version.split(".")[:2])


@dataclass(frozen=True)
class Held(Generic[T]):
    """One measurement that was kept.

    Attributes:
        value: What `keep` made of it.
        speeds_ns: Calibrations just before and just after.
        attempts: How often it was measured.
        is_steady: Both speeds are within the tolerance of the target.
    """

    value: T
    speeds_ns: list[int]
    attempts: int
    is_steady: bool


class Steadiness:
    """Measures while the host runs at the target's speed, as far as a budget goes.

    The budget is the time spent waiting and on measurements that are thrown away, over all that is
    measured with one of these; what would have been done anyway costs nothing.

    Args:
        budget_s: Seconds; 0 measures once, at whatever speed.
    """

    def __init__(
        self,
        target: Target,
        budget_s: float,
        calibration: Callable[[], int] = calibrate,
        clock: Callable[[], int] = perf_counter_ns,
    ) -> None:
        self.target = target
        self._left_ns = round(budget_s * 1e9)
        self._calibrate = calibration
        self._clock = clock
        self._has_spoken = False

    def hold(self, wait: Callable[[], object], measure: Callable[[], Callable[[], T]]) -> Held[T]:
        """Measure until the host was steady before and after; without that, keep the best.

        Args:
            wait: Passes some time in the way the measurement does, so that neither CPU nor GPU
                falls asleep.
            measure: Takes one measurement; what it returns is called to keep it, in place of
                what was kept before. What is not kept is dropped before the next.
        """
        best: Held[T] | None = None
        attempts = 0
        while best is None or self._left_ns > 0:
            began = self._clock()
            before = self._calibrate()
            if self._off(before) and self._left_ns > 0:
                self._speak(before)
                wait()
                self._spend(began)
                continue
            keep = measure()
            after = self._calibrate()
            attempts += 1
            steady = not self._off(before) and not self._off(after)
            if best is None or self._distance(before, after) < self._distance(*best.speeds_ns):
                best = Held(keep(), [before, after], attempts, steady)
            del keep  # with the events of a trace that is not wanted
            if steady:
                break
            if self._left_ns > 0:
                self._speak(after)
            self._spend(began)
        return replace(best, attempts=attempts)

    def _spend(self, began_ns: int) -> None:
        self._left_ns -= max(self._clock() - began_ns, 1)

    def _off(self, speed_ns: int) -> bool:
        return apart(speed_ns, self.target.ns) > self.target.tolerance

    def _distance(self, *speeds_ns: int) -> float:
        return max(apart(speed, self.target.ns) for speed in speeds_ns)

    def _speak(self, speed_ns: int) -> None:
        if not self._has_spoken:
            say(
                f"the host runs {in_words(speed_ns, self.target.ns)} than {self.target.words}; "
                f"waiting for that speed, {self._left_ns / 1e9:.0f} s at most"
            )
        self._has_spoken = True


def unsteady_note(
    what: str, target: Target, speeds_ns: list[list[int]], budget_s: float
) -> str | None:
    """What the manifest says of measurements that were kept although the host was off its target.

    Args:
        what: A trace, a floor.
        speeds_ns: Calibrations before and after each.
    """
    worst = [max(pair, key=lambda speed: apart(speed, target.ns)) for pair in speeds_ns]
    off = [n for n, speed in enumerate(worst) if apart(speed, target.ns) > target.tolerance]
    if not off:
        return None
    farthest = max((worst[n] for n in off), key=lambda speed: apart(speed, target.ns))
    numbers = f"{what}s {', '.join(str(n + 1) for n in off)} of {len(worst)}"
    return (
        f"host speed: {numbers if len(worst) > 1 else what} recorded while the host ran up to "
        f"{in_words(farthest, target.ns)} than {target.words} (--steady-budget {budget_s:g})"
    )
