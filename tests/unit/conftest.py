"""What the unit tests of several packages share."""

from __future__ import annotations

from pathlib import Path

import pytest

SAMPLES = (
    "gpt2-prefill-bs1-s512",
    "gpt2-prefill-bs1-s512-compile",
    "gpt2-prefill-bs1-s512-graph",
    "gpt2-prefill-bs2-s512",
    "gpt2-prefill-bs8-s512",
)


@pytest.fixture(scope="session")
def samples_store(tmp_path_factory: pytest.TempPathFactory, samples_dir: Path) -> Path:
    """A store of five sample runs."""
    from analyzer.ingest import ingest  # deferred: a GPU host has no DuckDB

    store = tmp_path_factory.mktemp("store") / "samples.duckdb"
    runs = [samples_dir / name for name in SAMPLES]
    assert {result.state for result in ingest(runs, store, jobs=1)} == {"stored"}
    return store
