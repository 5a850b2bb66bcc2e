"""Whatever came in goes out as a trace of either format, and comes in again with the same counts,
links and times.
"""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pytest

from analyzer.ingest import ingest
from analyzer.render.export import Format, export
from analyzer.store import open_store
from analyzer.store.verify import verify
from tests.support import ascend_files, nsys_files, pftrace_files
from tests.support.nsys_files import NsysBuilder
from tests.support.rank_traces import three_ranks, write_ranks
from tests.support.tracebuilder import worked_example

FORMATS: tuple[Format, ...] = ("chrome", "perfetto")
SAMES = (
    "SELECT trace_id, kind, kernel, device, stream, start_ns, dur_ns, call, call_start_ns, op, "
    "graph_index FROM links ORDER BY ALL",
    "SELECT trace_id, account, is_launch, start_ns, dur_ns, device_events, names.name "
    "FROM calls JOIN names USING (run_id, name_id) ORDER BY ALL",
    "SELECT trace_id, start_ns, dur_ns, is_region, names.name, input_dims FROM ops "
    "JOIN names USING (run_id, name_id) LEFT JOIN shapes USING (run_id, shape_id) ORDER BY ALL",
    "SELECT * EXCLUDE (run_id) FROM totals WHERE step_id IS NULL ORDER BY trace_id",
)


def two_processes() -> NsysBuilder:
    """Two processes on one clock, with the same correlations, devices and streams."""
    made = nsys_files.graph_run("node").add_secrets()
    for pid in (nsys_files.PID, nsys_files.PID + 1):
        for i in range(9):
            made.add_range(f"aten::op{i % 4}, seq = {i}, op_id = {i}", 500_000 + 9_000 * i, 8_000,
                           pid=pid)  # fmt: skip
            made.add_launch(f"kernel{i % 5}", 500_100 + 9_000 * i, i + 1, pid=pid)
    return made


INPUTS: dict[str, Callable[[Path], Path]] = {
    "kineto": worked_example().write,
    "pftrace": pftrace_files.small_run().write,
    "pftrace of slices": pftrace_files.small_run("slices").write,
    "ascend": ascend_files.small_run().write,
    "two processes": two_processes().write,
}


def ask(store: Path, sql: str) -> list[tuple[Any, ...]]:
    with duckdb.connect(str(store), read_only=True) as connection:
        return connection.execute(sql).fetchall()


def load(path: Path, store: Path) -> str:
    (result,) = ingest(path, store, jobs=1)
    assert result.state == "stored", result.error
    assert result.run_id
    return result.run_id


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("name", INPUTS)
def test_an_export_comes_in_again_as_it_went_out(name: str, form: Format, tmp_path: Path) -> None:
    first, again = tmp_path / "first.duckdb", tmp_path / "again.duckdb"
    run_id = load(INPUTS[name](tmp_path / "input"), first)
    (written,) = export(first, run_id, form, tmp_path / "out.gz")
    load(written, again)
    for sql in SAMES:
        assert ask(again, sql) == ask(first, sql)
    assert not verify(open_store(again))


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("name", [name for name in INPUTS if name != "kineto"])
def test_nothing_secret_of_an_input_is_in_its_export_or_store(
    name: str, form: Format, tmp_path: Path
) -> None:
    store = tmp_path / "s.duckdb"
    source = INPUTS[name](tmp_path / "input")
    assert b"HB_SECRET" in source.read_bytes()
    (written,) = export(store, load(source, store), form, tmp_path / "out.gz")
    assert b"HB_SECRET" not in gzip.decompress(written.read_bytes())
    assert b"HB_SECRET" not in store.read_bytes()


def test_traces_of_files_with_clocks_of_their_own_stay_apart(tmp_path: Path) -> None:
    text = worked_example().text()
    source = tmp_path / "two.json"
    source.write_text(f"{text}\n{text}", encoding="utf-8")
    run_id = load(source, tmp_path / "s.duckdb")
    written = export(tmp_path / "s.duckdb", run_id, "perfetto", tmp_path / "out.pftrace.gz")
    assert [path.name for path in written] == ["out.pftrace.gz", "out-2.pftrace.gz"]


@pytest.mark.parametrize("form", FORMATS)
def test_ranks_stand_in_one_file_on_the_clock_that_their_collectives_tell(
    form: Format, tmp_path: Path
) -> None:
    first, again = tmp_path / "first.duckdb", tmp_path / "again.duckdb"
    (result,) = ingest(write_ranks(three_ranks(), tmp_path / "job"), first, jobs=1)
    assert result.run_id
    (written,) = export(first, result.run_id, form, tmp_path / "out.gz")
    load(written, again)
    moved = "SELECT trace_id, start_ns - {}, dur_ns FROM device_events {} ORDER BY ALL"
    shifted = moved.format("clock_offset_ns", "JOIN ranks USING (run_id, trace_id)")
    assert ask(again, moved.format(0, "")) == ask(first, shifted)
    same = "SELECT * EXCLUDE (run_id, device_event_id, step_id) FROM collectives ORDER BY ALL"
    assert ask(again, same) == ask(first, same)
    assert ask(again, "SELECT DISTINCT clock_offset_ns, clock_error_ns FROM ranks") == [(0, 0)]
