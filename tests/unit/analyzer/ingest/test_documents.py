"""A run directory's measurements reach the store, or say in one line what is wrong with them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from analyzer.attribution.decomposition import UNKNOWN
from analyzer.ingest.documents import launch_floor, read_measurements
from analyzer.ingest.sources import Source, SourceFile
from schemas.errors import HostboundError
from schemas.measurements import LaunchFloor

FLOOR = "api_start_to_kernel_start"


def source(folder: Path, **documents: object) -> Source:
    """A source with one file a role, as the role's JSON value."""
    files: list[SourceFile] = []
    for role, value in documents.items():
        path = folder / f"{role}.json"
        path.write_text(json.dumps(value))
        files.append(SourceFile(path, role, path.stat().st_size, path.name))
    return Source(folder, "run", None, tuple(files))


def test_what_was_not_measured_is_absent(tmp_path: Path) -> None:
    measured = read_measurements(source(tmp_path))
    assert (measured.floors, measured.replays, measured.latency) == ([], None, None)


def test_an_op_that_could_not_be_replayed_keeps_its_reason(tmp_path: Path) -> None:
    kernel = {"name": "void gemm<1>()", "grid": [1, 2, 3], "count": 4, "exec_ns": [5]}
    ops = [{"op": "aten::mm", "kernels": [kernel]}, {"op": "aten::nonzero", "reason": "no values"}]
    first, second = read_measurements(source(tmp_path, replay={"ops": ops})).replays or ()
    assert (first.clean_name, first.grid, first.block) == ("gemm", "[1, 2, 3]", None)
    assert (first.occurrences, first.exec_ns) == (4, [5])
    assert (second.op, second.name, second.reason) == ("aten::nonzero", None, "no values")


@pytest.mark.parametrize(
    ("role", "value"),
    [
        ("latency", {"requests": [{"ttft_ns": "soon"}]}),
        ("latency", []),
        ("floor", {"floors": [{"launch_api": "cudaLaunchKernel"}]}),
        ("replay", {"ops": [{"kernels": []}]}),
    ],
)
def test_a_document_of_another_form_is_refused(tmp_path: Path, role: str, value: object) -> None:
    with pytest.raises(HostboundError, match="not as the collector writes it") as refused:
        read_measurements(source(tmp_path, **{role: value}))
    assert str(tmp_path / f"{role}.json") in str(refused.value)
    assert "\n" not in str(refused.value)


def test_the_measured_floor_wins_over_the_trace_and_clocks_that_differ_give_none() -> None:
    gaps = [np.full(30, 9_000, np.int64)]
    measured = [LaunchFloor("cudaLaunchKernel", FLOOR, [3, 4, 5])]
    floor = launch_floor(measured, gaps)
    assert (floor.source, floor.ns, floor.by_api) == ("null_kernel", 4, {"cudaLaunchKernel": 4})
    assert launch_floor([LaunchFloor("x", FLOOR, [-2])], gaps).source == "trace"
    assert launch_floor([LaunchFloor("x", "wall", [2])], gaps).ns == 9_000
    assert launch_floor([], []).ns == UNKNOWN
