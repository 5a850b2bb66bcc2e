"""Damaged traces by the hundred: each is loaded, or refused in one line; never anything else."""

from __future__ import annotations

import gzip
import random
from pathlib import Path

import pytest

from analyzer.trace import native_scanner
from tests.support.mutations import check_loaded_or_refused, mutate

# (trace, mutations): the budget in CI. Seeded, so that a failure can be had again.
BUDGET = (
    ("a100-triton-driver-launch", 130),
    ("cpu-only", 60),
    ("mi300-torch-compile-triton", 60),
    ("h200/gpt2-prefill-bs1-s512-compile-default", 25),
    ("mi300-sglang-decode-graph-replay", 25),
)


@pytest.mark.parametrize("scanner", ["native", "pure"])
@pytest.mark.parametrize(("name", "mutations"), BUDGET)
def test_a_damaged_trace_is_loaded_or_refused_in_one_line(
    name: str,
    mutations: int,
    scanner: str,
    shared_dir: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if scanner == "pure":
        monkeypatch.setattr(native_scanner, "library", lambda: None)
        mutations //= 4
    packed = (shared_dir / "traces" / f"{name}.json.gz").read_bytes()
    plain = gzip.decompress(packed)
    dice = random.Random(f"{name} {scanner}")
    for number in range(mutations):
        path = tmp_path / "t.json"
        path.write_bytes(mutate(packed if number % 8 == 7 else plain, dice))
        check_loaded_or_refused(path, tmp_path / "s.duckdb", number)
