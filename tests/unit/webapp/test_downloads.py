"""What is taken away holds exactly what was shown."""

from __future__ import annotations

import polars as pl

from webapp import data, downloads


def test_csv_holds_lists_as_text_and_exact_numbers():
    rows = pl.DataFrame({"ns": [9_007_199_254_740_993], "many": [[1, 2]]})
    assert downloads.csv(rows).decode() == 'ns,many\n9007199254740993,"[1, 2]"\n'


def test_a_report_and_a_comparison_are_what_the_command_line_prints(samples_store, monkeypatch):
    monkeypatch.setenv("HOSTBOUND_DB", str(samples_store))
    ids = {run.name: run_id for run_id, run in data.listed_runs().items()}
    eager, graph = ids["gpt2-prefill-bs1-s512"], ids["gpt2-prefill-bs1-s512-graph"]
    report = data.paper(eager).write("md").decode()
    assert "The GPU waits for 90 % of the steps' host time" in report
    page = data.paper(eager, graph).write("html").decode()
    assert page.startswith("<!doctype html>")
    assert "5.67 times faster" in page
