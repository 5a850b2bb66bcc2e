"""Damaged files of other profilers are loaded or refused in one line; never anything else."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.mutations import check_loaded_or_refused, mutate, mutate_database
from tests.support.nsys_files import SECRET, NsysBuilder, graph_run
from tests.support.rocprof_files import small_run
from tests.support.xplane_files import small_profile

# Seeded, so that a failure can be had again.
MUTATIONS = 30


def nsys_of_two_processes() -> NsysBuilder:
    """Two processes with operators, launches, copies, and what is said of the host."""
    made = graph_run("node").add_secrets()
    for i in range(60):
        made.add_range(f"aten::op{i % 4}, seq = {i}, op_id = {i}", 500_000 + 9_000 * i, 8_000)
        made.add_launch(f"kernel{i % 5}", 500_100 + 9_000 * i, i + 1, pid=4711 + i % 2)
    return made


DATABASES: dict[str, Callable[[Path], Path]] = {
    "nsys node": lambda path: graph_run("node").add_secrets().write(path),
    "nsys graph": lambda path: graph_run("graph").add_secrets().write(path),
    "nsys of two processes": lambda path: nsys_of_two_processes().write(path),
    "rocpd 3": lambda path: small_run().write(path),
    "rocpd 4": lambda path: small_run().write(path, "4.1.0"),
}
OTHERS: dict[str, Callable[[Path], Path]] = {
    "rocprofv3 JSON": lambda path: small_run().write_json(path, small_run(909)),
    "JAX": lambda path: small_profile().add_secrets().write(path),
}


@pytest.mark.parametrize("kind", [*DATABASES, *OTHERS])
def test_damaged_bytes_are_loaded_or_refused_in_one_line(kind: str, tmp_path: Path) -> None:
    data = (DATABASES | OTHERS)[kind](tmp_path / "whole").read_bytes()
    dice = random.Random(len(data))
    for number in range(MUTATIONS):
        path = tmp_path / "t"
        path.write_bytes(mutate(data, dice))
        error = check_loaded_or_refused(path, tmp_path / "s.duckdb", number)
        assert SECRET not in (error or ""), number


@pytest.mark.parametrize("kind", DATABASES)
def test_odd_values_and_missing_parts_are_loaded_or_refused_in_one_line(
    kind: str, tmp_path: Path
) -> None:
    whole = DATABASES[kind](tmp_path / "whole")
    dice = random.Random(whole.stat().st_size)
    for number in range(MUTATIONS):
        path = tmp_path / "t"
        shutil.copyfile(whole, path)
        mutate_database(path, dice)
        error = check_loaded_or_refused(path, tmp_path / "s.duckdb", number)
        assert SECRET not in (error or ""), number
