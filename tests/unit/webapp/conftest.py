"""Stores for the pages' tests: the samples, and made ones without GPU or floor."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("streamlit")

from streamlit.testing.v1 import AppTest

from analyzer.ingest import ingest
from tests.support.small_traces import written

APP = Path(__file__).resolve().parents[3] / "webapp" / "app.py"
SAMPLES = (
    "gpt2-prefill-bs1-s512",
    "gpt2-prefill-bs1-s512-compile",
    "gpt2-prefill-bs1-s512-graph",
    "gpt2-prefill-bs2-s512",
    "gpt2-prefill-bs8-s512",
)


@pytest.fixture(scope="session")
def samples_store(tmp_path_factory: pytest.TempPathFactory, samples_dir: Path) -> Path:
    """Five sample runs."""
    store = tmp_path_factory.mktemp("store") / "samples.duckdb"
    runs = [samples_dir / name for name in SAMPLES]
    assert {result.state for result in ingest(runs, store, jobs=1)} == {"stored"}
    return store


@pytest.fixture
def store_of(tmp_path: Path) -> Callable[..., Path]:
    """Make a store of hand-made traces."""

    def make(**traces: list[dict[str, Any]]) -> Path:
        store = tmp_path / "made.duckdb"
        for name, events in traces.items():
            (result,) = ingest(written(tmp_path / f"{name}.json", events), store)
            assert result.state == "stored", result.error
        return store

    return make


@pytest.fixture
def show(monkeypatch: pytest.MonkeyPatch) -> Callable[..., AppTest]:
    """Open a page of the app on a store, as an address would."""

    def open_page(store: Path, page: str, **params: str) -> AppTest:
        monkeypatch.setenv("HOSTBOUND_DB", str(store))
        app = AppTest.from_file(str(APP), default_timeout=60)
        for name, value in params.items():
            app.query_params[name] = value
        if page != "runs":
            app.switch_page(f"pages/{page}.py")
        app.run()
        assert not app.exception, [element.value for element in app.exception]
        return app

    return open_page
