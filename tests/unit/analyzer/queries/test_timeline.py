"""The down-sampled timeline agrees with the ledger, to the nanosecond, and stays small."""

from __future__ import annotations

import pytest

from analyzer import queries
from analyzer.errors import AnalyzerError
from analyzer.queries import timeline


@pytest.fixture(scope="module")
def connection(samples_store):
    with queries.connect(samples_store) as connection:
        yield connection


@pytest.mark.parametrize("columns", [1, 37, 100_000])
def test_accounts_along_time_add_up_to_each_steps_ledger(connection, columns):
    for run_id in queries.runs(connection)["run_id"]:
        for step in queries.steps(connection, run_id):
            found = timeline.stretches(connection, run_id, step.trace_id)
            assert found is not None
            profile = found.profile(step.start_ns, step.end_ns, columns)
            sums = {
                account: {"ns": ns, "exposed_ns": exposed}
                for account, ns, exposed in profile.group_by("account")
                .sum()
                .select("account", "ns", "exposed_ns")
                .iter_rows()
            }
            assert sums == {a: vars(time) for a, time in step.ledger.items() if time.ns}


@pytest.mark.parametrize("columns", [10, 200])
def test_slices_are_bounded_and_lose_no_time(connection, columns):
    run_id = queries.find_run(connection, "gpt2-prefill-bs1-s512")
    (trace,) = queries.traces(connection, run_id)
    rows = timeline.slices(connection, run_id, 0, trace.start_ns, trace.end_ns, columns)
    lanes = rows.select("lane_kind", "lane").unique()
    assert len(rows) <= 2 * (columns + 1) * len(lanes)
    device = rows.filter(rows["lane_kind"] == "stream")["busy_ns"].sum()
    assert device == queries.totals(connection, run_id).device_event_sum_ns


def test_an_empty_window_is_refused(connection):
    with pytest.raises(AnalyzerError, match="window"):
        timeline.slices(connection, "x", 0, 5, 5)


def test_a_distribution_is_ordered_and_an_unmeasured_one_empty(connection):
    run_id = queries.find_run(connection, "gpt2-prefill-bs1-s512")
    assert timeline.distribution(connection, run_id, "duration")["ns"].is_sorted()
    assert timeline.distribution(connection, run_id, "ttft").is_empty()


def test_an_event_that_is_not_there_is_said_so(connection):
    with pytest.raises(AnalyzerError, match="no device event"):
        timeline.device_event(connection, "x", 1)
    with pytest.raises(AnalyzerError, match="no op"):
        timeline.host_event(connection, "x", "op", 1)
