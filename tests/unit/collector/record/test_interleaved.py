"""Several variants are recorded by one process, trace by trace, each into a run of its own."""

from __future__ import annotations

import gzip
import json
import os
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from collector import cli
from collector.record import session, trace_pass
from collector.record.request import Request
from collector.replay import kernel_replay
from schemas.measurements import Latency, LaunchFloor, LaunchFloors
from schemas.run_directory import LATENCY, read_document, read_manifest

OPTIONS = ["--device", "cpu", "--dtype", "fp32", "--prompt-len", "8", "--new-tokens", "3"]
OPTIONS += ["--warmup", "1", "--trace-runs", "5", "--latency-runs", "12"]


def record(checkpoint: Path, out: Path, *more: str) -> int:
    return cli.main(["record", "--model", str(checkpoint), *OPTIONS, "--out", str(out), *more])


@pytest.fixture(scope="module")
def pair(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """An eager run beside one of mode graph."""
    folder = tmp_path_factory.mktemp("pair") / "runs"
    assert record(checkpoint, folder, "--name", "m", "--mode", "eager", "--mode", "graph") == 0
    return [folder / "m-eager", folder / "m-graph"]


def spans(run: Path) -> list[tuple[int, int]]:
    """From the first mark's start to the last one's end, in ns, of each trace in order."""
    found: list[tuple[int, int]] = []
    for trace in read_manifest(run).traces:
        value: dict[str, Any] = json.loads(gzip.decompress((run / trace.file).read_bytes()))
        base = int(value["baseTimeNanoseconds"])
        marks = [e for e in value["traceEvents"] if e.get("cat") == "user_annotation"]
        begin = min(float(e["ts"]) for e in marks)
        last = max(float(e["ts"]) + float(e["dur"]) for e in marks)
        found.append((base + round(begin * 1000), base + round(last * 1000)))
    return found


def test_traces_alternate_forth_and_back_and_never_overlap(pair: list[Path]) -> None:
    sides = [(span, letter) for run, letter in zip(pair, "ab", strict=True) for span in spans(run)]

    sides.sort()

    assert "".join(side for _, side in sides) == "abbaabbaab"
    assert all(first[1] < second[0] for (first, _), (second, _) in pairwise(sides))


def test_each_variant_is_a_run_of_its_own_in_one_group(pair: list[Path]) -> None:
    a, b = (read_manifest(run) for run in pair)

    assert a.group is not None
    assert b.group is not None
    assert a.group.id == b.group.id
    assert a.run_id != b.run_id
    assert [(g.variant, g.variants) for g in (a.group, b.group)] == [(1, 2), (2, 2)]
    assert a.group.cpu == b.group.cpu
    assert (a.group.cpu is None) == (not hasattr(os, "sched_setaffinity"))
    assert [(m.name, m.mode) for m in (a, b)] == [("m-eager", "eager"), ("m-graph", "graph")]


def test_speeds_and_unprofiled_steps_lie_beside_each_trace(pair: list[Path]) -> None:
    for run in pair:
        manifest = read_manifest(run)
        assert len(manifest.trace_speeds_ns()) == 2 * len(manifest.traces) == 10
        assert all(len(t.unprofiled_step_wall_ns or []) == 3 for t in manifest.traces)
        assert manifest.host_speed is not None
        assert len(manifest.host_speed.latency_ns) == 12


def test_as_many_latency_requests_count_as_were_asked_for(pair: list[Path]) -> None:
    for run in pair:
        latency = read_document(run / LATENCY, Latency)
        assert (latency.warmup, len(latency.requests)) == (1, 12)
        assert len(latency.steps["decode"]) == 2 * 12


def test_every_mode_meets_every_batch_size(checkpoint: Path, tmp_path: Path) -> None:
    more = ["--mode", "eager", "--mode", "graph", "--batch-size", "1", "--batch-size", "2"]

    assert record(checkpoint, tmp_path, *more, "--trace-runs", "1", "--latency-runs", "1") == 0

    found = [read_manifest(run) for run in sorted(tmp_path.iterdir())]
    assert [(m.mode, m.batch_size) for m in found] == [
        ("eager", 1),
        ("eager", 2),
        ("graph", 1),
        ("graph", 2),
    ]
    name = checkpoint.name
    assert found[3].name == f"{name}-graph-bs2-s8-m3"
    assert {m.group.id for m in found if m.group} == {found[0].group.id if found[0].group else ""}


def test_the_same_variant_twice_has_a_number(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    more = ["--name", "m", "--mode", "eager", "--mode", "eager", "--trace-runs", "1"]

    assert record(checkpoint, tmp_path, *more) == 0

    runs = [tmp_path / "m-eager", tmp_path / "m-eager-2"]
    assert sorted(tmp_path.iterdir()) == runs
    assert [read_manifest(run).name for run in runs] == ["m-eager", "m-eager-2"]
    assert capsys.readouterr().out.split() == [str(run) for run in runs]


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        (["--mode", "hybrid", "--batch-size", "2"], "batch 1"),
        (["--mode", "compile", "--batch-size", "1", "--batch-size", "2"], "one by one"),
        (["--batch-size", "1", "--batch-size", "0"], "--batch-size is 0"),
    ],
)
def test_one_variant_that_cannot_be_recorded_leaves_nothing_of_all(
    checkpoint: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    more: list[str],
    expected: str,
) -> None:
    assert record(checkpoint, tmp_path / "runs", "--mode", "eager", *more) == 2

    assert expected in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_an_error_in_the_last_trace_leaves_nothing_of_all(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded: list[int] = []
    original = trace_pass.record

    def fails(*args: Any) -> trace_pass.TraceTimes:
        recorded.append(1)
        if len(recorded) == 4:
            raise KeyboardInterrupt
        return original(*args)

    monkeypatch.setattr(trace_pass, "record", fails)

    more = ["--mode", "eager", "--mode", "eager", "--trace-runs", "2"]
    assert record(checkpoint, tmp_path / "runs", *more) == 130
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("modes", "is_placed"), [(1, False), (2, True)])
def test_the_main_thread_measures_on_one_cpu_if_there_are_several_variants(
    checkpoint: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    modes: int,
    is_placed: bool,
) -> None:
    if not hasattr(os, "sched_getaffinity") or len(os.sched_getaffinity(0)) < 2:
        pytest.skip("needs two CPUs, and threads that can be placed")
    everywhere, seen = os.sched_getaffinity(0), set[frozenset[int]]()
    original = trace_pass.run_request

    def request(*args: Any, **named: Any) -> list[int]:
        seen.add(frozenset(os.sched_getaffinity(0)))
        return original(*args, **named)

    monkeypatch.setattr(trace_pass, "run_request", request)

    more = ["--mode", "eager"] * modes
    assert record(checkpoint, tmp_path / "runs", *more, "--trace-runs", "1") == 0

    (cpus,) = seen
    assert (len(cpus) == 1) == is_placed
    assert os.sched_getaffinity(0) == everywhere


class Recorded:
    """A recording that writes down what it was told to do."""

    def __init__(self, name: str, trace_runs: int, log: list[str]) -> None:
        self.name = name
        self.run_id = name
        self.workload = None
        self.request = Request("m", device="cuda:0", trace_runs=trace_runs, replay_runs=None)
        self.floors: list[tuple[LaunchFloors, list[int]]] = []
        self._log = log

    def warm_up_profiler(self) -> None:
        self._log.append("warm")

    def record_trace(self, number: int) -> None:
        self._log.append(f"{self.name}{number}")

    def add_floors(self, floors: LaunchFloors, speeds_ns: list[int]) -> None:
        self.floors.append((floors, speeds_ns))


@pytest.mark.parametrize(
    ("names", "runs", "order", "samples"),
    [
        ("a", 3, "warm a0 a1 a2 floor", 150),
        ("ab", 2, "warm warm a0 b0 floor b1 a1 floor", 75),
        ("ab", 10, None, 30),
    ],
)
def test_the_floor_is_measured_among_the_traces_and_is_that_of_all_variants(
    monkeypatch: pytest.MonkeyPatch, names: str, runs: int, order: str | None, samples: int
) -> None:
    log: list[str] = []

    def floor(device: str, count: int) -> LaunchFloors:
        log.append("floor")
        assert (device, count) == ("cuda:0", samples)
        return LaunchFloors({}, {}, [LaunchFloor("cudaLaunchKernel", "d", [len(log)])])

    monkeypatch.setattr(kernel_replay, "floor", floor)
    monkeypatch.setattr(trace_pass, "unprofiled_request", lambda *_: [])
    recordings: list[Any] = [Recorded(name, runs, log) for name in names]

    session._Session(recordings)._record_traces()  # pyright: ignore[reportPrivateUsage]

    if order is not None:
        assert " ".join(log) == order
    parts = log.count("floor")
    assert log[-1] == "floor"
    (found,) = {json.dumps(r.floors[0][0].floors[0].samples_ns) for r in recordings}
    assert len(json.loads(found)) == parts == {1: 1, 2: 2, 10: 5}.get(runs if names != "a" else 1)
    assert all(len(recording.floors[0][1]) == 2 * parts for recording in recordings)


def test_a_floor_that_was_measured_in_parts_has_the_samples_of_all() -> None:
    def part(*samples: int, **others: list[int]) -> LaunchFloors:
        floors = [LaunchFloor("cuLaunchKernel", "d", [*samples])]
        floors += [LaunchFloor(api, "d", own) for api, own in others.items()]
        return LaunchFloors({"d": "text"}, {}, floors)

    parts = [part(1, 2), part(3), part(4, x=[9])]

    assert kernel_replay.joined(parts) == part(1, 2, 3, 4, x=[9])


@pytest.mark.parametrize("samples", ["0", "-1", "some"])
def test_a_number_of_samples_that_is_none_is_refused(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], samples: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        record(checkpoint, tmp_path / "runs", "--replay", samples)

    assert ended.value.code == 2
    assert "--replay" in capsys.readouterr().err
