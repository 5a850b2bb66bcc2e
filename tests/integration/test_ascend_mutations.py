"""Damaged traces of Ascend NPUs are loaded or refused in one line; never anything else."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.support.ascend_files import small_run
from tests.support.mutations import check_loaded_or_refused, mutate

# Seeded, so that a failure can be had again.
MUTATIONS = 60


@pytest.mark.parametrize("queue", [True, False])
def test_a_damaged_trace_is_loaded_or_refused_in_one_line(queue: bool, tmp_path: Path) -> None:
    data = small_run(queue).text().encode()
    dice = random.Random(f"ascend {queue}")
    for number in range(MUTATIONS):
        path = tmp_path / "t.json"
        path.write_bytes(mutate(data, dice))
        error = check_loaded_or_refused(path, tmp_path / "s.duckdb", number)
        assert "HB_SECRET" not in (error or ""), number
