"""Fixtures of the core's unit tests: an empty trace, either scanner, a stored trace to ask."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import duckdb
import pytest
from hypothesis import HealthCheck, settings

from analyzer.attribution.events import LinkedTrace
from analyzer.attribution.links import link_trace
from analyzer.ingest import ingest
from analyzer.trace import kineto, native_scanner
from tests.support.tracebuilder import TraceBuilder

# In CI the same examples each time; elsewhere new ones may find something.
settings.register_profile(
    "core",
    deadline=None,
    derandomize=os.environ.get("CI", "").lower() in ("1", "true"),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
settings.load_profile("core")

Ask = Callable[[str], list[tuple]]


@pytest.fixture
def trace() -> TraceBuilder:
    return TraceBuilder()


@pytest.fixture(params=["native", "pure"])
def scanner(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Each test that asks for it runs with the C scanner and with the Python one."""
    if request.param == "pure":
        monkeypatch.setattr(native_scanner, "library", lambda: None)
    elif native_scanner.library() is None:
        pytest.skip("the C scanner is not built here")
    return request.param


@pytest.fixture
def linked(tmp_path: Path) -> Callable[..., LinkedTrace]:
    """Read and link a built trace."""

    def link(built: TraceBuilder, *globs: str) -> LinkedTrace:
        (one,) = kineto.read(built.write(tmp_path / "linked.json"))
        return link_trace(one, globs)

    return link


@pytest.fixture
def stored(tmp_path: Path) -> Callable[..., Ask]:
    """Ingest a built trace; returns a function that answers SQL on the store."""

    def load(built: TraceBuilder | Path, **options: object) -> Ask:
        path = built.write(tmp_path / "t.json") if isinstance(built, TraceBuilder) else built
        (result,) = ingest(path, tmp_path / "s.duckdb", jobs=1, **options)  # type: ignore[arg-type]
        assert result.state != "failed", result.error

        def ask(sql: str) -> list[tuple]:
            with duckdb.connect(str(tmp_path / "s.duckdb"), read_only=True) as connection:
                return connection.execute(sql).fetchall()

        return ask

    return load
