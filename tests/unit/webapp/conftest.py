"""Stores for the pages' tests: the samples, and made ones without GPU or floor."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("streamlit")

from streamlit.testing.v1 import AppTest

from analyzer.ingest import ingest

APP = Path(__file__).resolve().parents[3] / "webapp" / "app.py"
SAMPLES = (
    "gpt2-prefill-bs1-s512",
    "gpt2-prefill-bs1-s512-compile",
    "gpt2-prefill-bs1-s512-graph",
    "gpt2-prefill-bs2-s512",
    "gpt2-prefill-bs8-s512",
)
PAGES = ("runs", "run", "timeline", "kernels", "compare", "sweep", "sql")


def event(name: str, category: str, start_us: float, dur_us: float, **args: Any) -> dict[str, Any]:
    """One Kineto event; on a stream if it is a kernel's."""
    device = category == "kernel"
    return {
        "ph": "X", "cat": category, "name": name, "ts": start_us, "dur": dur_us,
        "pid": 0 if device else 1, "tid": 7 if device else 1, "args": args,
    }  # fmt: skip


CPU_EVENTS = [
    event("aten::linear", "cpu_op", 100, 300),
    event("aten::addmm", "cpu_op", 120, 260),
    event("aten::relu", "cpu_op", 500, 100),
]
HOSTILE = (
    "<script>alert(1)</script> **bold** [x](http://example.invalid) $a$ :red[x] `q` \"'" + "é" * 400
)
GPU_EVENTS = [
    *CPU_EVENTS,
    event("cuLaunchKernelEx", "cuda_driver", 300, 40, correlation=1),
    event(HOSTILE, "kernel", 350, 300, correlation=1, device=0, stream=7),
    event("cudaLaunchKernel", "cuda_runtime", 540, 20, correlation=2),
    event("elementwise_x", "kernel", 660, 40, correlation=2, device=0, stream=7),
]


def written(path: Path, events: list[dict[str, Any]]) -> Path:
    """A trace file."""
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}), encoding="utf-8")
    return path


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


def texts(app: AppTest) -> str:
    """Everything that the page says in words."""
    kinds = (
        app.title,
        app.subheader,
        app.markdown,
        app.caption,
        app.info,
        app.warning,
        app.error,
        app.text,
    )
    return "\n".join(str(element.value) for kind in kinds for element in kind)


def charts(app: AppTest) -> int:
    """How many charts the page draws."""
    return len(app.get("arrow_vega_lite_chart")) + len(app.get("vega_lite_chart"))
