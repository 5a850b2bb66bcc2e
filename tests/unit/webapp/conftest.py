"""What the pages' tests share: stores of hand-made traces, a page opened without a browser."""

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
PATIENCE_S = 240


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
    """Open a page of the app on a store, as a URL would."""

    def open_page(store: Path, page: str, **params: str) -> AppTest:
        monkeypatch.setenv("HOSTBOUND_DB", str(store))
        app = AppTest.from_file(str(APP), default_timeout=PATIENCE_S)
        for name, value in params.items():
            app.query_params[name] = value
        if page != "runs":
            app.switch_page(f"pages/{page}.py")
        app.run()
        assert not app.exception, [element.value for element in app.exception]
        return app

    return open_page
