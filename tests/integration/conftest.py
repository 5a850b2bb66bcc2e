"""Fixtures of the core's integration tests: cases, and a store to ask."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.tracebuilder import TraceBuilder


@pytest.fixture(scope="session")
def cases_dir(shared_dir: Path) -> Path:
    return shared_dir / "cases"


@pytest.fixture(scope="session")
def cases(cases_dir: Path) -> dict[str, dict[str, Any]]:
    """Expected outcomes by file name."""
    value = json.loads((cases_dir / "cases.json").read_text(encoding="utf-8"))
    return {case["file"]: case for case in value["cases"]}


@pytest.fixture
def trace() -> TraceBuilder:
    return TraceBuilder()
