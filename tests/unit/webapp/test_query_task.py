"""A typed statement on its way: it waits for no writer, and can be cancelled."""

from __future__ import annotations

import io
import threading

import pytest

from analyzer.errors import AnalyzerError
from tests.support.small_traces import CPU_EVENTS, written
from tests.support.statements import RUNAWAY
from webapp import data, store, uploads
from webapp.query_task import QueryTask

PATIENCE_S = 240


def test_a_typed_statement_does_not_wait_for_a_writer_that_waits_for_its_page(
    tmp_path, monkeypatch
):
    monkeypatch.setenv("HOSTBOUND_DB", str(tmp_path / "three.duckdb"))
    store.lock_in_process()
    content = written(tmp_path / "one.json", CPU_EVENTS).read_bytes()
    uploads.load([("one.json", io.BytesIO(content))])
    other = written(tmp_path / "two.json", CPU_EVENTS[:2]).read_bytes()
    uploading = threading.Thread(target=lambda: uploads.load([("two.json", io.BytesIO(other))]))
    with store.one_connection():
        assert len(data.runs()) == 1
        uploading.start()
        uploading.join(0.3)
        task = QueryTask("SELECT count(*) AS runs FROM runs", 10, PATIENCE_S)
        assert task.wait(PATIENCE_S)
        assert task.rows()["runs"].item() in (1, 2)
    uploading.join(PATIENCE_S)
    assert not uploading.is_alive()


def test_a_running_statement_can_be_cancelled_and_says_so(samples_store, monkeypatch):
    monkeypatch.setenv("HOSTBOUND_DB", str(samples_store))
    task = QueryTask(RUNAWAY, 10, 2 * PATIENCE_S)
    assert not task.wait(0.2)
    task.cancel()
    assert task.wait(PATIENCE_S)
    with pytest.raises(AnalyzerError, match="cancelled after"):
        task.rows()
