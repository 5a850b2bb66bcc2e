"""Damaged exports of Nsight Systems are loaded or refused in one line; never anything else."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from tests.support.mutations import check_loaded_or_refused, mutate, mutate_database
from tests.support.nsys_files import SECRET, NsysBuilder, graph_run

# Seeded, so that a failure can be had again.
MUTATIONS = 30


def small_run() -> NsysBuilder:
    """Two processes with operators, launches, copies, and what is said of the host."""
    made = graph_run("node").add_secrets()
    for i in range(60):
        made.add_range(f"aten::op{i % 4}, seq = {i}, op_id = {i}", 500_000 + 9_000 * i, 8_000)
        made.add_launch(f"kernel{i % 5}", 500_100 + 9_000 * i, i + 1, pid=4711 + i % 2)
    return made


@pytest.fixture(params=["node", "graph", "two processes"])
def export(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    kind = str(request.param)
    made = small_run() if kind == "two processes" else graph_run(kind).add_secrets()
    return made.write(tmp_path / "whole.sqlite")


def test_damaged_bytes_are_loaded_or_refused_in_one_line(export: Path, tmp_path: Path) -> None:
    data, dice = export.read_bytes(), random.Random(export.stat().st_size)
    for number in range(MUTATIONS):
        path = tmp_path / "t.sqlite"
        path.write_bytes(mutate(data, dice))
        error = check_loaded_or_refused(path, tmp_path / "s.duckdb", number)
        assert SECRET not in (error or ""), number


def test_odd_values_and_missing_parts_are_loaded_or_refused_in_one_line(
    export: Path, tmp_path: Path
) -> None:
    dice = random.Random(export.stat().st_size)
    for number in range(MUTATIONS):
        path = tmp_path / "t.sqlite"
        shutil.copyfile(export, path)
        mutate_database(path, dice)
        error = check_loaded_or_refused(path, tmp_path / "s.duckdb", number)
        assert SECRET not in (error or ""), number
