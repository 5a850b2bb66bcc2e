"""`collector record --turns` in processes of its own, on a tiny model and a CPU."""

from __future__ import annotations

import gzip
import json
import signal
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from collector import cli
from collector.replay import kernel_replay
from schemas.manifest import Partner
from schemas.measurements import LaunchFloor, LaunchFloors
from schemas.run_directory import LATENCY, read_manifest

ROOT = Path(__file__).parents[4]
OPTIONS = ["--device", "cpu", "--dtype", "fp32", "--prompt-len", "8", "--new-tokens", "3"]
OPTIONS += ["--warmup", "1"]


def command(checkpoint: Path, out: Path, *more: str) -> list[str]:
    shared = ["--turns", str(out.parent / "turns"), "--out", str(out), "--name", out.name]
    return ["record", "--model", str(checkpoint), *OPTIONS, *shared, *more]


def start(checkpoint: Path, out: Path, *more: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "collector.cli", *command(checkpoint, out, *more)],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def end(process: subprocess.Popen[str]) -> str:
    """What it said, at the end of a good recording."""
    _, said = process.communicate(timeout=120)
    assert process.returncode == 0, said
    return said


@pytest.fixture(scope="module")
def pair(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """An eager run of batch 1 beside one of batch 2 in mode graph, which has a trace more."""
    folder = tmp_path_factory.mktemp("pair")
    a, b = folder / "a", folder / "b"
    one = start(checkpoint, a, "--latency-runs", "12", "--trace-runs", "4")
    more = ["--latency-runs", "7", "--trace-runs", "5", "--mode", "graph", "--batch-size", "2"]
    two = start(checkpoint, b, *more)
    end(one)
    end(two)
    return a, b


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


@pytest.mark.slow
def test_traces_alternate_forth_and_back_and_never_overlap(pair: tuple[Path, Path]) -> None:
    a, b = (spans(run) for run in pair)
    if read_manifest(pair[0]).turns.seat == 2:  # type: ignore[union-attr]
        sides = [(span, "b") for span in b] + [(span, "a") for span in a]
        expected = "abbaabbab"
    else:
        sides = [(span, "a") for span in a] + [(span, "b") for span in b]
        expected = "baabbaabb"

    sides.sort()

    assert "".join(side for _, side in sides) == expected
    assert all(first[1] < second[0] for (first, _), (second, _) in pairwise(sides))


@pytest.mark.slow
def test_both_manifests_say_with_whom_the_turns_were_taken(pair: tuple[Path, Path]) -> None:
    a, b = (read_manifest(run) for run in pair)

    assert a.turns is not None
    assert b.turns is not None
    assert {a.turns.seat, b.turns.seat} == {1, 2}
    assert (a.turns.of, b.turns.of) == (2, 2)
    assert a.turns.cpu == b.turns.cpu is not None
    assert a.turns.partners == [Partner(b.run_id, "b")]
    assert b.turns.partners == [Partner(a.run_id, "a")]
    assert (a.mode, b.mode) == ("eager", "graph")
    assert [note for m in (a, b) for note in m.notes if note.startswith("turns: ")] == []


@pytest.mark.slow
def test_speeds_are_noted_and_nothing_is_recorded_twice(pair: tuple[Path, Path]) -> None:
    for run in pair:
        manifest = read_manifest(run)
        assert [trace.attempts for trace in manifest.traces] == [1] * len(manifest.traces)
        assert len(manifest.trace_speeds_ns()) == 2 * len(manifest.traces)


@pytest.mark.slow
def test_as_many_latency_requests_count_as_were_asked_for(pair: tuple[Path, Path]) -> None:
    for run, requests in zip(pair, (12, 7), strict=True):
        latency = json.loads((run / LATENCY).read_bytes())
        assert len(latency["requests"]) == len(latency["steps"]["prefill"]) == requests
        assert len(latency["steps"]["decode"]) == 2 * requests
        for request in latency["requests"]:
            assert request["ttft_ns"] + sum(request["itl_ns"]) == request["total_ns"]


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_a_recording_goes_on_when_its_partner_is_interrupted_or_killed(
    checkpoint: Path, tmp_path: Path, how: signal.Signals
) -> None:
    few = ["--latency-runs", "2", "--trace-runs"]
    one = start(checkpoint, tmp_path / "a", *few, "40")
    two = start(checkpoint, tmp_path / "b", *few, "1000")
    assert two.stderr is not None
    for line in two.stderr:
        if line.startswith("recording trace 2 of"):
            two.send_signal(how)
            break
    said = end(one)
    two.communicate()

    assert two.returncode == (130 if how == signal.SIGINT else -signal.SIGKILL)
    assert not (tmp_path / "b").exists()
    assert "in turns: b ended early; going on without it" in said
    manifest = read_manifest(tmp_path / "a")
    assert len(manifest.traces) == 40
    assert "turns: b ended early; going on without it" in manifest.notes


def test_a_partner_that_never_comes_costs_the_patience_and_one_line(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    few = ["--latency-runs", "2", "--trace-runs", "1", "--turns-patience", "0"]

    assert cli.main(command(checkpoint, tmp_path / "a", *few)) == 0

    lines = [line for line in capsys.readouterr().err.splitlines() if "in turns" in line]
    assert lines == ["in turns: 1 of 2 recordings did not come in time; going on without"]
    manifest = read_manifest(tmp_path / "a")
    assert manifest.turns is not None
    assert manifest.turns.partners == []
    assert "turns: 1 of 2 recordings did not come in time; going on without" in manifest.notes


def test_a_recording_that_is_refused_takes_no_seat(checkpoint: Path, tmp_path: Path) -> None:
    out = tmp_path / "a"

    assert cli.main(command(checkpoint, out, "--latency-runs", "0")) == 2
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        (["--turns", ""], "--turns is empty"),
        (["--turns-of", "1"], "--turns-of is 1"),
        (["--turns-of", "1000000000"], "--turns-of is 1000000000"),
        (["--turns-patience", "nan"], "--turns-patience is nan"),
        (["--like", "runs/first"], "leave --like out"),
    ],
)
def test_what_makes_no_turns_is_refused(
    checkpoint: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    more: list[str],
    expected: str,
) -> None:
    assert cli.main(command(checkpoint, tmp_path / "a", *more)) == 2

    assert expected in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_script_takes_no_turns(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / "my.py"
    script.write_text("")

    assert cli.main(["record", "--turns", str(tmp_path / "t"), "--script", str(script)]) == 2
    assert "--turns is for --model" in capsys.readouterr().err


def test_a_floor_that_was_measured_in_parts_has_the_samples_of_all() -> None:
    def part(*samples: int, **others: list[int]) -> LaunchFloors:
        floors = [LaunchFloor("cuLaunchKernel", "d", [*samples])]
        floors += [LaunchFloor(api, "d", own) for api, own in others.items()]
        return LaunchFloors({"d": "text"}, {}, floors)

    parts = [part(1, 2), part(3), part(4, x=[9])]

    assert kernel_replay.joined(parts) == part(1, 2, 3, 4, x=[9])
