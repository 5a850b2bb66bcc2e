"""The documents beside a manifest: what is written is read back, damage is refused in one line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest

from schemas.errors import RunDirectoryError
from schemas.measurements import (
    KernelReplay,
    Latency,
    LatencyRequest,
    LaunchFloor,
    LaunchFloors,
    ReplayedKernel,
    ReplayedOp,
)
from schemas.run_directory import KERNEL_REPLAY, LATENCY, NULL_KERNEL, read_document

KINDS: dict[str, type[Any]] = {
    LATENCY: Latency,
    NULL_KERNEL: LaunchFloors,
    KERNEL_REPLAY: KernelReplay,
}


@pytest.mark.parametrize(
    "value",
    [
        Latency("d", 1, [LatencyRequest(9, [1, 2], 12), LatencyRequest(9)], {"decode": [1, 2]}),
        LaunchFloors({"d": "text"}, {"x": "why"}, [LaunchFloor("cuLaunchKernel", "d", [-3, 4])]),
        KernelReplay("d", [ReplayedOp("aten::mm", reason="no schema")]),
        KernelReplay(
            "d", [ReplayedOp("aten::mm", samples=1, kernels=[ReplayedKernel(0, "k", [1, 1, 1])])]
        ),
    ],
)
def test_what_is_written_is_read_back(tmp_path: Path, value: Any) -> None:
    path = tmp_path / "value.json"
    path.write_bytes(orjson.dumps(value))

    assert read_document(path, type(value)) == value


@pytest.mark.parametrize("file", KINDS)
def test_the_samples_are_read_and_written_as_they_are(samples_dir: Path, file: str) -> None:
    path = samples_dir / "gpt2-bs1-s512" / file

    value = read_document(path, KINDS[file])

    assert orjson.loads(orjson.dumps(value)) == orjson.loads(path.read_bytes())


@pytest.mark.parametrize("file", KINDS)
@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        "[" * 100_000,
        '{"ops": 3, "floors": 3, "requests": 3}',
        '{"ops": [{}], "floors": [{}], "requests": [{}]}',
        '{"ops": [{"op": "a", "kernels": [{"exec_ns": [1.5]}]}], "requests": [{"ttft_ns": 0}],'
        ' "floors": [{"launch_api": "a", "definition": "d", "samples_ns": ["1"]}]}',
    ],
)
def test_what_the_collector_does_not_write_is_refused_in_one_line(
    tmp_path: Path, file: str, text: str
) -> None:
    (tmp_path / file).write_text(text)

    with pytest.raises(RunDirectoryError, match="not as the collector writes it") as refused:
        read_document(tmp_path / file, KINDS[file])
    assert file in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_document_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(RunDirectoryError, match=r"latency\.json cannot be read"):
        read_document(tmp_path / LATENCY, Latency)


def test_fields_that_a_later_program_added_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / LATENCY).write_text('{"warmup": 1, "later": {}}')

    assert read_document(tmp_path / LATENCY, Latency) == Latency(warmup=1)
