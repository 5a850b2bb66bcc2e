"""Hybrid: a batch-1 decoder runtime of CUDA graphs and Triton kernels.

Importing this loads no torch and touches no GPU; names are fetched when first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .config import Options
    from .engine import Engine, TokenStream
    from .errors import (
        Cancelled,
        ContextOverflow,
        HybridError,
        OutOfMemory,
        UnsupportedDevice,
        UnsupportedModel,
    )
    from .model.spec import Spec, spec_of
    from .state.sampling import Sampling

_HOME = {
    "Engine": "engine",
    "TokenStream": "engine",
    "Options": "config",
    "Spec": "model.spec",
    "spec_of": "model.spec",
    "Sampling": "state.sampling",
    "HybridError": "errors",
    "UnsupportedModel": "errors",
    "UnsupportedDevice": "errors",
    "ContextOverflow": "errors",
    "OutOfMemory": "errors",
    "Cancelled": "errors",
}

__all__ = [
    "Cancelled",
    "ContextOverflow",
    "Engine",
    "HybridError",
    "Options",
    "OutOfMemory",
    "Sampling",
    "Spec",
    "TokenStream",
    "UnsupportedDevice",
    "UnsupportedModel",
    "spec_of",
]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(f".{_HOME[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
