"""Records a workload on a GPU host into a run directory; `recording(...)` wraps your own code."""

from typing import Any

__all__ = ["Recording", "recording"]  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    # Importing the package must not load torch: --help answers at once, and no GPU is touched.
    if name in __all__:
        from collector.record import annotate

        return getattr(annotate, name)
    raise AttributeError(f"module 'collector' has no attribute {name!r}")
