"""How fast the host was is measured beside each trace, and so is a request without profiler."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from collector import calibration, cli
from collector.calibration import DEFINITION, calibrate
from collector.record import trace_pass
from schemas.run_directory import read_manifest


def test_a_calibration_is_the_median_so_that_one_interruption_does_not_count() -> None:
    lengths = [100] * (calibration.REPETITIONS - 1) + [90_000]
    ticks = (tick for length in lengths for tick in (0, length))

    assert calibrate(lambda: next(ticks)) == 100


def test_the_request_just_before_a_trace_has_its_steps_and_no_marks(tmp_path: Path) -> None:
    class Request:
        steps = 0

        def prefill(self) -> list[int]:
            self.steps += 1
            return [0]

        decode = prefill

    request, path = Request(), tmp_path / "trace.json"

    times = trace_pass.record(request, 3, "cpu", path)

    assert (len(times.profiled), len(times.unprofiled), len(times.host_speed)) == (3, 3, 2)
    assert request.steps == 2 + 3 + 3  # the first two wake the host
    assert [p.name for p in tmp_path.iterdir()] == ["trace.json"]
    marks = [e for e in json.loads(path.read_bytes())["traceEvents"] if "#" in e.get("name", "")]
    assert len([e for e in marks if e.get("cat") == "user_annotation"]) == 3


@pytest.fixture(scope="module")
def run(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "first"
    short = ["--prompt-len", "8", "--new-tokens", "3", "--warmup", "1", "--latency-runs", "3"]
    where = ["--device", "cpu", "--dtype", "fp32", "--trace-runs", "2", "--out", str(out)]
    assert cli.main(["record", "--model", str(checkpoint), *short, *where]) == 0
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


def test_a_run_recorded_alone_is_of_no_group(run: Path) -> None:
    assert read_manifest(run).group is None


def test_own_code_gets_the_speeds_around_it(tmp_path: Path) -> None:
    import torch

    import collector

    with collector.recording(tmp_path / "mine", device="cpu", stacks=True):
        torch.ones(4).sum()

    (trace,) = read_manifest(tmp_path / "mine").traces
    assert len(trace.host_speed_ns or []) == 2
    assert trace.unprofiled_step_wall_ns is None
    with gzip.open(tmp_path / "mine" / "trace.json.gz") as stream:
        assert b"_entry" not in stream.read()  # the calibration is not part of the trace
