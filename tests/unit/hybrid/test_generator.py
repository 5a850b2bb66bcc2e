"""The Graph Generator alone, with a capture that is no capture."""

from __future__ import annotations

import threading

import pytest

pytest.importorskip("torch")

from hybrid.config import Options
from hybrid.generator import Activity, GraphGenerator
from hybrid.graphs import Entry, GraphStore, host_graph


def test_a_generator_whose_preparation_fails_still_captures():
    def fails():
        raise RuntimeError("no room for the scratch state")

    store = GraphStore()
    generator = GraphGenerator(
        store,
        Options(graph_budget_bytes=1 << 20, max_graphs=4),
        Activity(),
        capture=lambda key: Entry(key, host_graph(lambda cut: None), 0, 1.0),
        drain=lambda: None,
        is_pinned=lambda key: False,
        prepare=fails,
    )
    generator.start()
    assert "no room" in generator.failed()["prepare:0"]
    generator.missed(("prefill", 16))
    assert generator.wait_idle(10)
    generator.close()
    assert store.get(("prefill", 16)) is not None


def test_a_capture_waits_while_a_request_waits_for_its_first_token():
    activity = Activity(first_token_due=True)
    capture = threading.Thread(target=activity.wait_for_first_token)
    capture.start()
    capture.join(0.05)
    assert capture.is_alive()
    activity.first_token_due = False
    capture.join(10)
    assert not capture.is_alive()


def test_a_generator_that_was_not_started_notes_no_misses():
    generator = GraphGenerator(
        GraphStore(),
        Options(),
        Activity(),
        capture=lambda key: Entry(key, host_graph(lambda cut: None), 0, 1.0),
        drain=lambda: None,
        is_pinned=lambda key: False,
        prepare=lambda: None,
    )
    generator.missed(("prefill", 16))
    assert generator.wait_idle(1)
    generator.close()
