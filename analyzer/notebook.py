"""Runs in a notebook: loaded in one call, answers that show themselves, a frame for each table.

run = load("trace.json.gz")
run.report()                  # a `RunReport` that a notebook shows as tables
run.report().measured.hdbi    # and whose figures are the record's
run.frame("launches")         # the table's rows of this run, as a polars frame
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import polars as pl
from rich.console import Console

from analyzer import queries
from analyzer.errors import AnalyzerError
from analyzer.ingest import ingest
from analyzer.ingest.ingested import Ingested
from analyzer.queries.rows import frame
from analyzer.render.comparison import print_comparison
from analyzer.render.document import Document
from analyzer.render.prediction import print_predictions
from analyzer.render.report import print_report
from analyzer.reports.comparison import compare
from analyzer.reports.prediction import DEFAULT, predict
from analyzer.reports.records import Comparison, Predictions, RunReport
from analyzer.reports.report import report
from analyzer.store import DEFAULT_STORE, Connection, Store

_Record = TypeVar("_Record")


def _shown(value: _Record, printer: Callable[[_Record, Console], None]) -> str:
    document = Document()
    printer(value, document)
    return document.fragment()


class ShownReport(RunReport):
    """A report that a notebook shows."""

    def _repr_html_(self) -> str:
        return _shown(self, print_report)


class ShownComparison(Comparison):
    """A comparison that a notebook shows."""

    def _repr_html_(self) -> str:
        return _shown(self, print_comparison)


class ShownPredictions(Predictions):
    """Predictions that a notebook shows."""

    def _repr_html_(self) -> str:
        return _shown(self, print_predictions)


class Loaded(list[Ingested]):
    """What `load` loaded, an entry a source; a single run answers by itself.

    Args:
        db: The store that it went to.
    """

    def __init__(self, entries: Sequence[Ingested], db: Store | Path | str) -> None:
        super().__init__(entries)
        self.db = db

    def report(self) -> ShownReport:
        """Where the run's time went, and how host-bound it is.

        Raises:
            AnalyzerError: There is not one run, or it could not be loaded.
        """
        return ShownReport(**vars(self._asked(report)))

    def predict(self, *what: str) -> ShownPredictions:
        """What changes would win; without arguments the usual ones.

        Raises:
            AnalyzerError: As `report`, or the run does not support a prediction.
        """
        return ShownPredictions(
            **vars(self._asked(lambda c, run: predict(c, run, what or DEFAULT)))
        )

    def compare(self, other: Loaded | str) -> ShownComparison:
        """Another run of the same store against this one.

        Args:
            other: What `load` gave, or a run's id, prefix or name.

        Raises:
            AnalyzerError: As `report`, or the store has no such run.
        """
        wanted = other if isinstance(other, str) else other.run_id
        return ShownComparison(
            **vars(self._asked(lambda c, run: compare(c, [run, queries.find_run(c, wanted)])))
        )

    def frame(self, table: str) -> pl.DataFrame:
        """The rows of a table or view that belong to the run; docs/schema.md has their columns.

        Raises:
            AnalyzerError: As `report`, or there is no such table.
        """

        def rows(connection: Connection, run: str) -> pl.DataFrame:
            columns = queries.tables(connection).get(table)
            if columns is None or not any(column.startswith("run_id  ") for column in columns):
                names = sorted(queries.tables(connection))
                raise AnalyzerError(f"there is no table {table!r}; there are {', '.join(names)}.")
            return frame(connection, f'SELECT * FROM "{table}" WHERE run_id = $run', {"run": run})

        return self._asked(rows)

    @property
    def run_id(self) -> str:
        """The run's id.

        Raises:
            AnalyzerError: There is not one run, or it could not be loaded.
        """
        if len(self) != 1:
            raise AnalyzerError(f"{len(self)} runs were loaded; load one, or name it to `report`.")
        (entry,) = self
        if entry.run_id is None:
            raise AnalyzerError(entry.error or f"{entry.path} could not be loaded.")
        return entry.run_id

    def _asked(self, question: Callable[[Connection, str], _Record]) -> _Record:
        run = self.run_id
        with queries.connect(self.db) as connection:
            return question(connection, run)


def load(
    paths: Sequence[Path | str] | Path | str, db: Store | Path | str = DEFAULT_STORE, **options: Any
) -> Loaded:
    """Load runs into a store; `ingest` has the options.

    Raises:
        AnalyzerError: As `ingest`.
    """
    return Loaded(ingest(paths, db, **options), db)
