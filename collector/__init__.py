"""Records a workload on a GPU host into a run directory. `collector.recording(...)` wraps own code."""

from typing import Any


def __getattr__(name: str) -> Any:
    # Importing the package must not load torch: --help answers at once, and no GPU is touched.
    if name in ("recording", "Recording"):
        from importlib import import_module

        return getattr(import_module("collector.recording"), name)
    raise AttributeError(f"module 'collector' has no attribute {name!r}")
