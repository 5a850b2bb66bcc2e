"""Damaged Perfetto traces are loaded or refused in one line; never anything else."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.support.mutations import check_loaded_or_refused, mutate
from tests.support.pftrace_files import DIALECTS, SECRET, small_run

# Seeded, so that a failure can be had again.
MUTATIONS = 60


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_damaged_trace_is_loaded_or_refused_in_one_line(
    dialect: str, compressed: bool, tmp_path: Path
) -> None:
    data = small_run(dialect).write(tmp_path / "whole", compressed).read_bytes()
    dice = random.Random(f"{dialect} {compressed}")
    for number in range(MUTATIONS // 4 if compressed else MUTATIONS):
        path = tmp_path / "t.pftrace"
        path.write_bytes(mutate(data, dice))
        error = check_loaded_or_refused(path, tmp_path / "s.duckdb", number)
        assert SECRET not in (error or ""), number
