"""Samples are taken in warm blocks and read to the nanosecond."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from collector.errors import CollectorError
from collector.replay import kernel_replay, kineto_samples


def test_every_call_gets_its_samples_in_blocks_of_mixed_order() -> None:
    blocks = kernel_replay._order(3, 12, ["cuLaunchKernel"], 20)  # pyright: ignore[reportPrivateUsage]

    taken: Counter[Any] = Counter()
    for index, api, size in blocks:
        assert 1 <= size <= kernel_replay.BLOCK
        taken[index, api] += size
    assert taken == {(0, None): 12, (1, None): 12, (2, None): 12, (-1, "cuLaunchKernel"): 20}
    assert [b[0] for b in blocks] != sorted(b[0] for b in blocks)


def test_a_budget_lowers_the_samples_but_not_below_a_block() -> None:
    affordable = kernel_replay._affordable  # pyright: ignore[reportPrivateUsage]

    assert affordable(150, 1000, None) == 150
    assert affordable(150, 10, 60.0) == 150
    assert kernel_replay.FEWEST_SAMPLES < affordable(150, 10_000, 60.0) < 150
    assert affordable(150, 100_000, 1.0) == kernel_replay.FEWEST_SAMPLES


def test_replay_without_a_gpu_is_refused() -> None:
    with pytest.raises(CollectorError, match="needs a CUDA device"):
        kernel_replay.replay([], "cpu", 10, None)


def test_nanoseconds_come_from_the_decimal_text() -> None:
    assert kineto_samples.ns("1700000000000000.001") == 1_700_000_000_000_000_001
    assert kineto_samples.ns("0.0015") == 2


def event(category: str, name: str, ts: str, dur: str, **args: Any) -> str:
    fields = json.dumps({"ph": "X", "cat": category, "name": name, "args": args})
    return fields[:-1] + f', "ts": {ts}, "dur": {dur}}}'


def test_a_sample_owns_the_launches_in_it_with_their_ops(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    big = "1700000000000{:03d}.{:03d}"
    events = [
        event("user_annotation", "hostbound.sample.0", big.format(0, 1), "90.000"),
        event("cpu_op", "aten::linear", big.format(1, 0), "50.000"),
        event("cpu_op", "aten::addmm", big.format(2, 0), "40.000"),
        event("cuda_driver", "cuLaunchKernel", big.format(10, 5), "3.001", correlation=7),
        event("kernel", "gemm", big.format(20, 6), "4.002", correlation=7, grid=[1, 2, 3]),
        event("cuda_runtime", "cudaLaunchKernel", big.format(200, 0), "1", correlation=8),
        event("kernel", "outside", big.format(210, 0), "1", correlation=8),
    ]
    path.write_text('{"traceEvents": [' + ",".join(events) + "]}")

    (sample,) = kineto_samples.read(path, "hostbound.sample.")

    (launch,) = sample.launches
    assert (launch.api, launch.kernel, launch.grid) == ("cuLaunchKernel", "gemm", [1, 2, 3])
    assert launch.kernel_start - launch.start == 10_001
    assert launch.kernel_end - launch.kernel_start == 4_002
    assert launch.op is not None
    assert launch.op["name"] == "aten::addmm"
    assert launch.start - (launch.outermost_start or 0) == 9_005
