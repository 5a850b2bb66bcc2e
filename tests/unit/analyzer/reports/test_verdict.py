"""The verdict: the GPU's waiting leads, HDBI follows, and where they point apart it is said why."""

from __future__ import annotations

import pytest

from analyzer import queries
from analyzer.ingest import ingest
from analyzer.reports.report import summary
from analyzer.reports.verdict import ACCOUNT_MEANS, sentence

EAGER, GRAPH = "gpt2-prefill-bs1-s512", "gpt2-prefill-bs1-s512-graph"


@pytest.fixture
def connection(samples_store):
    with queries.connect(samples_store) as connection:
        yield connection


def test_the_gpus_waiting_and_its_largest_account_stand_before_hdbi(connection):
    found = summary(connection, queries.find_run(connection, EAGER)).verdict
    assert found.sentence.startswith("The GPU waits for 90 % of the steps' host time (25.8 ms of ")
    assert found.sentence.index("passes in framework") < found.sentence.index("HDBI 0.173")
    assert "differ" not in found.sentence


def test_a_device_bound_run_whose_gpu_waits_says_what_the_device_did_meanwhile(connection):
    found = summary(connection, queries.find_run(connection, GRAPH)).verdict
    assert found.reading == "device-bound"
    assert found.idle_share == pytest.approx(0.367, abs=0.001)
    assert "The two differ: kernels run on for 2.76 ms after the host has ended" in found.sentence


def test_each_phase_has_a_verdict_of_its_own(samples_dir, tmp_path):
    ingest(samples_dir / "gpt2-bs1-s512", tmp_path / "s.duckdb", jobs=1)
    with queries.connect(tmp_path / "s.duckdb") as connection:
        found = summary(connection, queries.find_run(connection, "latest"))
    assert list(found.phase_verdicts) == list(found.phases) == ["prefill", "decode"]
    for phase, verdict in found.phase_verdicts.items():
        assert verdict.hdbi == found.phases[phase].hdbi
        assert verdict.sentence != found.verdict.sentence


def test_host_work_that_is_hidden_is_named_where_the_gpu_hardly_waits(store_of_orphans):
    found = summary(*store_of_orphans).verdict
    assert found.reading == "host-bound"
    assert found.idle_share < 0.3
    assert "of device work that no step launched keeps the GPU busy" in found.sentence


@pytest.fixture
def store_of_orphans(trace, tmp_path):
    """One launch a step that costs the host much, beside work queued before the trace began."""
    trace.add_kernel("gemm", 0, 1_000, 99)
    for i in range(40):
        at = i * 25
        trace.add_op("aten::relu", at, 20).add_call("cudaLaunchKernel", at + 15, 3, i + 1)
        trace.add_kernel("relu", at + 20, 1, i + 1, stream=8)
    ingest(trace.write(tmp_path / "t.json"), tmp_path / "s.duckdb", jobs=1)
    with queries.connect(tmp_path / "s.duckdb") as connection:
        yield connection, queries.find_run(connection, "latest")


def test_what_the_trace_cannot_tell_stands_in_place_of_hdbi(connection):
    found = summary(connection, queries.find_run(connection, EAGER))
    said = sentence(found.measured, found.totals, ["operators"])
    assert "HDBI an upper bound" in said
    assert "differ" not in said


def test_every_account_has_its_meaning_in_words():
    from analyzer.attribution.classification import ACCOUNTS

    assert tuple(ACCOUNT_MEANS) == ACCOUNTS
