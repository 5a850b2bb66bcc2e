"""A recording is held to one speed of the host, within a budget; the clock is the test's."""

from __future__ import annotations

import gzip
import json
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from collector import calibration, cli
from collector.calibration import DEFINITION, calibrate
from collector.errors import CollectorError
from collector.record import in_turns, steadiness
from collector.record.steadiness import Held, Steadiness, Target, of_run, unsteady_note
from schemas.manifest import Environment, HostSpeed, Manifest, TraceFile
from schemas.run_directory import MANIFEST, read_manifest

HERE = Environment(cpu="a CPU", cpu_count=16, gpu="a GPU")
MS = 1_000_000
TARGET = Target(5 * MS, 0.05, "in the latency pass")


class Host:
    """A host whose calibrations are given in ms; each takes 0.1 s, waiting and measuring 1 s."""

    def __init__(self, *speeds_ms: float) -> None:
        self._speeds: Iterator[float] = iter(speeds_ms)
        self.now_ns = 0
        self.waited = 0
        self.measured = 0
        self.kept: list[int] = []

    def calibration(self) -> int:
        self.now_ns += 100 * MS
        return round(next(self._speeds) * MS)

    def clock(self) -> int:
        return self.now_ns

    def wait(self) -> None:
        self.waited += 1
        self.now_ns += 1000 * MS

    def measure(self) -> Callable[[], int]:
        self.measured += 1
        self.now_ns += 1000 * MS
        number = self.measured

        def keep() -> int:
            self.kept.append(number)
            return number

        return keep

    def steadiness(self, budget_s: float, target: Target = TARGET) -> Steadiness:
        return Steadiness(target, budget_s, self.calibration, self.clock)

    def hold(self, budget_s: float) -> Held[int]:
        return self.steadiness(budget_s).hold(self.wait, self.measure)


def test_a_calibration_is_the_median_so_that_one_interruption_does_not_count() -> None:
    lengths = [100] * (calibration.REPETITIONS - 1) + [90_000]
    ticks = (tick for length in lengths for tick in (0, length))

    assert calibrate(lambda: next(ticks)) == 100


def test_on_a_steady_host_everything_is_measured_once_and_costs_no_budget() -> None:
    host = Host(5.0, 5.1, 4.9, 5.0)
    steadiness = host.steadiness(1)

    first = steadiness.hold(host.wait, host.measure)
    second = steadiness.hold(host.wait, host.measure)

    assert (first.value, first.attempts, first.is_steady) == (1, 1, True)
    assert first.speeds_ns == [5 * MS, 5_100_000]
    assert (second.value, second.attempts, second.is_steady) == (2, 1, True)
    assert host.waited == 0


def test_a_measurement_in_which_the_host_changed_its_speed_is_taken_again() -> None:
    host = Host(5.0, 2.4, 5.0, 5.0)

    held = host.hold(20)

    assert (held.value, held.attempts, held.is_steady) == (2, 2, True)
    assert held.speeds_ns == [5 * MS, 5 * MS]


def test_nothing_is_measured_while_the_host_is_known_to_be_off() -> None:
    host = Host(2.4, 2.4, 5.0, 5.0)

    held = host.hold(20)

    assert (host.waited, host.measured, held.attempts) == (2, 1, 1)


def test_when_the_budget_is_gone_the_measurement_nearest_to_the_target_is_kept() -> None:
    host = Host(5.0, 6.0, 5.0, 7.0, 5.0, 8.0)

    held = host.hold(3)  # 1.2 s an attempt

    assert (held.value, held.attempts, held.is_steady) == (1, 3, False)
    assert held.speeds_ns == [5 * MS, 6 * MS]
    assert host.kept == [1]


def test_a_budget_of_zero_measures_once_at_whatever_speed() -> None:
    host = Host(2.4, 2.4)

    held = host.hold(0)

    assert (held.value, held.attempts, held.is_steady, host.waited) == (1, 1, False, 0)


def test_the_budget_is_one_for_all_measurements() -> None:
    host = Host(*[2.4] * 20)
    steadiness = host.steadiness(2)

    first = steadiness.hold(host.wait, host.measure)
    waited = host.waited
    second = steadiness.hold(host.wait, host.measure)

    assert (first.is_steady, second.is_steady) == (False, False)
    assert (waited, host.waited) == (2, 2)


def test_an_attempt_that_is_not_kept_is_dropped_before_the_next_one() -> None:
    class Events:
        pass

    host = Host(5.0, 7.0, 5.0, 9.0, 5.0, 5.0)
    alive: list[weakref.ref[Events]] = []

    def measure() -> Callable[[], int]:
        assert [ref() for ref in alive if ref() is not None] == []
        events = Events()
        alive.append(weakref.ref(events))
        return lambda: id(events)

    assert host.steadiness(20).hold(host.wait, measure).attempts == 3


def test_only_the_trace_that_is_kept_is_on_the_disk(tmp_path: Path) -> None:
    """Three attempts: the second is the steady one, the first was kept until then."""

    class Request:
        steps = 0

        def prefill(self) -> list[int]:
            self.steps += 1
            return [0]

        decode = prefill

    host, request, path = Host(5.0, 7.0, 5.0, 5.0), Request(), tmp_path / "trace.json"

    held = in_turns.record_trace(request, 3, "cpu", path, host.steadiness(20))

    assert (held.attempts, len(held.value.profiled), len(held.value.unprofiled)) == (2, 3, 3)
    assert request.steps == 2 + 2 * (3 + 3)
    assert [p.name for p in tmp_path.iterdir()] == ["trace.json"]
    marks = [e for e in json.loads(path.read_bytes())["traceEvents"] if "#" in e.get("name", "")]
    assert len([e for e in marks if e.get("cat") == "user_annotation"]) == 3


def test_the_note_says_which_traces_and_how_far_off() -> None:
    speeds = [[5 * MS, 5 * MS], [5 * MS, 7 * MS], [4 * MS, 5 * MS]]

    note = unsteady_note("trace", TARGET, speeds, 20)

    assert note == (
        "host speed: traces 2, 3 of 3 recorded while the host ran up to 1.40 times slower than in "
        "the latency pass (--steady-budget 20)"
    )
    assert unsteady_note("trace", TARGET, speeds[:1], 20) is None
    assert unsteady_note("launch floor", TARGET, speeds[1:2], 0) == (
        "host speed: launch floor recorded while the host ran up to 1.40 times slower than in the "
        "latency pass (--steady-budget 0)"
    )


def manifest(**changed: object) -> Manifest:
    made = Manifest(
        "0123",
        "first",
        "2026-01-01T00:00:00+00:00",
        "eager",
        [
            TraceFile("trace.json.gz", host_speed_ns=[5 * MS, 5_200_000]),
            TraceFile("trace-2.json.gz", host_speed_ns=[4_900_000, 5 * MS]),
        ],
        environment=replace(HERE, versions={"python": steadiness.platform.python_version()}),
        host_speed=HostSpeed(DEFINITION, target_ns=4 * MS),
    )
    return replace(made, **changed)  # type: ignore[arg-type]


def written(folder: Path, value: Manifest) -> Path:
    folder.mkdir()
    (folder / MANIFEST).write_text(value.to_json())
    return folder


def test_the_target_of_like_is_the_speed_at_which_that_run_was_traced(tmp_path: Path) -> None:
    target = of_run(written(tmp_path / "a", manifest()), HERE)

    assert (target.ns, target.like) == (5 * MS, "0123")
    assert target.tolerance == pytest.approx(0.03)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (manifest(host_speed=None), "does not say how fast its host was"),
        (manifest(traces=[TraceFile("trace.json.gz")]), "does not say how fast its host was"),
        (manifest(environment=replace(HERE, cpu="other")), "another CPU (other, here a CPU)"),
        (manifest(environment=replace(HERE, cpu_count=2)), "another number of CPUs (2, here 16)"),
        (manifest(environment=replace(HERE, gpu=None)), "another GPU (unknown, here a GPU)"),
        (manifest(environment=replace(HERE, versions={"python": "3.9.1"})), "another Python (3.9"),
    ],
)
def test_like_refuses_a_run_that_cannot_be_held_against_this_host(
    tmp_path: Path, value: Manifest, expected: str
) -> None:
    with pytest.raises(CollectorError) as refused:
        of_run(written(tmp_path / "a", value), HERE)

    assert expected in str(refused.value)
    assert "\n" not in str(refused.value)


def test_like_refuses_another_measure_of_speed(tmp_path: Path) -> None:
    other = manifest(host_speed=HostSpeed("a loop in C"))

    with pytest.raises(CollectorError, match="another measure of speed"):
        of_run(written(tmp_path / "a", other), HERE)


# -- the command, on a tiny model


def record(checkpoint: Path, out: Path, *more: str) -> int:
    short = ["--prompt-len", "8", "--new-tokens", "3", "--warmup", "1", "--latency-runs", "3"]
    where = ["--device", "cpu", "--dtype", "fp32", "--trace-runs", "2", "--out", str(out)]
    return cli.main(["record", "--model", str(checkpoint), *short, *where, *more])


@pytest.fixture(scope="module")
def run(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "first"
    assert record(checkpoint, out, "--steady-budget", "0", "--name", "first") == 0
    return out


def test_each_trace_has_the_speeds_around_it_and_the_unprofiled_steps_before_it(run: Path) -> None:
    found = read_manifest(run)

    assert found.host_speed is not None
    assert found.host_speed.definition == DEFINITION
    assert len(found.host_speed.latency_ns) == 3
    assert found.host_speed.floor_ns is None
    for trace in found.traces:
        assert len(trace.host_speed_ns or []) == 2
        assert len(trace.unprofiled_step_wall_ns or []) == len(trace.step_wall_ns) == 3
        assert trace.attempts == 1


def test_a_run_recorded_like_another_names_it_and_says_if_the_speed_was_not_reached(
    checkpoint: Path, run: Path, tmp_path: Path
) -> None:
    """The first run is made to say that its host was ten times as fast as any is now."""
    first = read_manifest(run)
    fast = [replace(t, host_speed_ns=[30_000, 30_000]) for t in first.traces]
    like = written(tmp_path / "fast", replace(first, traces=fast))

    assert record(checkpoint, tmp_path / "b", "--like", str(like), "--steady-budget", "0.05") == 0

    found = read_manifest(tmp_path / "b")
    assert found.host_speed is not None
    assert (found.host_speed.target_ns, found.host_speed.like) == (30_000, first.run_id)
    (note,) = [note for note in found.notes if note.startswith("host speed: ")]
    assert "traces 1, 2 of 2" in note
    assert "times slower than in first" in note


def test_a_run_like_nothing_is_refused_before_the_model_is_built(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert record(checkpoint, tmp_path / "b", "--like", str(tmp_path / "nowhere")) == 2

    (line,) = capsys.readouterr().err.strip().splitlines()
    assert "is not a run directory" in line
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("budget", ["-1", "nan", "inf"])
def test_a_budget_that_is_no_time_is_refused(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], budget: str
) -> None:
    assert record(checkpoint, tmp_path / "b", "--steady-budget", budget) == 2
    assert "--steady-budget is" in capsys.readouterr().err


def test_a_script_is_not_recorded_like_a_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "my.py"
    script.write_text("")

    assert cli.main(["record", "--like", str(tmp_path), "--script", str(script)]) == 2
    assert "--like is for --model" in capsys.readouterr().err


def test_own_code_gets_the_speeds_around_it(tmp_path: Path) -> None:
    import torch

    import collector

    with collector.recording(tmp_path / "mine", device="cpu", stacks=True):
        torch.ones(4).sum()

    (trace,) = read_manifest(tmp_path / "mine").traces
    assert len(trace.host_speed_ns or []) == 2
    assert (trace.unprofiled_step_wall_ns, trace.attempts) == (None, None)
    with gzip.open(tmp_path / "mine" / "trace.json.gz") as stream:
        assert b"_entry" not in stream.read()  # the calibration is not part of the trace
