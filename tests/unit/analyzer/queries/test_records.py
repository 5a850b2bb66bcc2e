"""Records say what they hold: types, order of fields, what is parsed once."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import msgspec
import pytest

from analyzer import queries
from analyzer.ingest import ingest
from analyzer.queries.costs import AccountTime, Costs, Step, StepTotals, Totals, added
from analyzer.queries.records import Kernel, ListedRun, Op, Run
from analyzer.render.json_text import builtins_of
from analyzer.reports.comparison import compare
from analyzer.reports.records import Comparison, RunReport
from analyzer.reports.report import report
from analyzer.store import Connection
from tests.support.records import record, run_with


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory, samples_dir: Path):
    db = tmp_path_factory.mktemp("records") / "store.duckdb"
    ingest([samples_dir / name for name in ("gpt2-bs1-s512", "gpt2-bs8-s512")], db, jobs=1)
    with queries.connect(db) as connection:
        yield connection


def step(**known: object) -> Step:
    return record(Step, **{"phase": "decode", "ledger": {}} | known)


def test_fields_hold_what_they_are_typed_to_hold(store: Connection) -> None:
    """A wrong type or a None where none is said fails to convert."""
    runs = queries.listed_runs(store)
    ids = [run.run_id for run in runs]

    for value, kind in (
        (runs, list[ListedRun]),
        (report(store, ids[0]), RunReport),
        (compare(store, ids), Comparison),
        (queries.kernel_records(store, ids[0]), list[Kernel]),
        (queries.op_records(store, ids[0]), list[Op]),
    ):
        assert msgspec.convert(builtins_of(value), kind) == value


def test_records_and_frames_of_kernels_hold_the_same(store: Connection) -> None:
    run_id = queries.find_run(store, "gpt2-bs1-s512")
    found = queries.kernel_records(store, run_id, limit=20)

    assert builtins_of(found) == queries.kernels(store, run_id, limit=20).to_dicts()


def test_fields_of_several_bases_stand_in_the_order_of_json() -> None:
    def names(kind: type[Totals] | type[Costs] | type[StepTotals]) -> list[str]:
        return [field.name for field in fields(kind)]

    assert names(Totals)[:2] == ["kernels", "memcpys"]
    assert names(Totals)[-2:] == ["launch_floor_ns", "floor_source"]
    assert names(Totals).index("t_base_ns") == names(Totals).index("ft_ns") - 1
    assert names(StepTotals) == ["steps", *names(Costs), "hdbi", "hdbi_busy", "ledger"]


def test_a_sum_with_an_unknown_is_unknown_and_ledgers_add_up() -> None:
    one = step(kernels=2, ct_ns=5, ledger={"launch": AccountTime(3, 1)})
    two = step(
        kernels=3, ct_ns=None, ledger={"launch": AccountTime(4, 0), "python": AccountTime(1, 1)}
    )

    total = added([one, two])

    assert (total.steps, total.kernels, total.ct_ns) == (2, 5, None)
    assert total.ledger == {"python": AccountTime(1, 1), "launch": AccountTime(7, 1)}


def test_a_manifest_is_parsed_once_and_is_no_field() -> None:
    manifest = {
        "run_id": "i", "name": "n", "created_at": "", "mode": "eager", "schema_version": 1,
        "traces": [],
    }  # fmt: skip
    run = run_with(manifest)

    assert run.recorded is run.recorded
    assert run.recorded is not None
    assert list(builtins_of(run)) == [field.name for field in fields(Run)]
