"""From a trace to an answer.

`analyzer.ingest.ingest(paths, db)` loads runs into a store; `analyzer.queries` asks it. Both are
imported on first use: the command line answers --help without DuckDB and Arrow.
"""

from importlib import import_module
from types import ModuleType

_ON_FIRST_USE = ("ingest", "queries")


def __getattr__(name: str) -> ModuleType:
    if name in _ON_FIRST_USE:
        return import_module(f"analyzer.{name}")
    raise AttributeError(f"module 'analyzer' has no attribute {name!r}")
