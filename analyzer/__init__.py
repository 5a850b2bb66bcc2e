"""From a trace to an answer: what notebooks and other programs use.

    load(paths, db)                  loads runs into a store; load("trace.json.gz").report()
    open_store(db)                   the store: a DuckDB file, or a lake of many writers
    queries.connect(db)              a connection; `queries` has every question
    report, compare, predict         answers about runs, as records (`analyzer.reports.records`)

All are imported on first use: the command line answers --help without DuckDB and Arrow.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from analyzer import ingest, queries
    from analyzer.notebook import load
    from analyzer.reports.comparison import compare
    from analyzer.reports.prediction import predict
    from analyzer.reports.report import report
    from analyzer.store import open_store

__all__ = ["compare", "ingest", "load", "open_store", "predict", "queries", "report"]

_ON_FIRST_USE = {
    "compare": "analyzer.reports.comparison:compare",
    "ingest": "analyzer.ingest",
    "load": "analyzer.notebook:load",
    "open_store": "analyzer.store:open_store",
    "predict": "analyzer.reports.prediction:predict",
    "queries": "analyzer.queries",
    "report": "analyzer.reports.report:report",
}


def __getattr__(name: str) -> Any:  # a module or a function of ours, as above
    if name not in _ON_FIRST_USE:
        raise AttributeError(f"module 'analyzer' has no attribute {name!r}")
    module, _, function = _ON_FIRST_USE[name].partition(":")
    found = import_module(module)
    return getattr(found, function) if function else found
