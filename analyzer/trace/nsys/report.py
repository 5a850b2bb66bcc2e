"""The tables of events of an Nsight Systems export, counted and limited as they are read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from analyzer.trace.stream import TraceError
from analyzer.trace.tabular.report import NO_PROCESS, Column, Report
from analyzer.trace.tabular.tables import MISSING, Ints, Piece, Tables

# Columns of ids of strings that stay in the report: its files and output, names of processes and
# threads.
PRIVATE = {
    "ProcessStreams": ("filenameId", "contentId"),
    "ANALYSIS_FILE": ("filenameId", "contentId"),
    "TARGET_INFO_PROCESS": ("nameId",),
    "ThreadNames": ("nameId",),
}
_ALWAYS_PRIVATE = ("ProcessStreams", "ANALYSIS_FILE", "TARGET_INFO_PROCESS")
_PID_SHIFT, _LOW_24 = 24, 0xFFFFFF


@dataclass
class NsysReport(Report):
    """The events of a report.

    Attributes:
        doubled_calls, open_ranges: Rows that were left out, and why.
    """

    doubled_calls: int = 0
    open_ranges: int = 0


class EventTables:
    """The tables of events of an export, their rows counted and limited."""

    def __init__(self, tables: Tables, path: Path, most_events: int | None) -> None:
        self._tables = tables
        self._path = path
        self._most_events = most_events
        self._rows_read = 0
        self.report = NsysReport()

    def has(self, table: str, column: str) -> bool:
        return column in self._tables.columns(table)

    def pieces(self, table: str, columns: Iterable[str], text: str = "") -> Iterator[Piece]:
        """Read a table with its times.

        Raises:
            TraceError: There are more events than are read.
        """
        for piece in self._tables.pieces(table, ("start", "end", *columns), text):
            self._rows_read += len(piece)
            if self._most_events is not None and self._rows_read > self._most_events:
                raise TraceError(
                    f"{self._path} holds more than {self._most_events} events, the most that are "
                    "read here; record a shorter time."
                )
            yield piece

    def strings(self, ids: Ints, *, not_of: Sequence[str] = ()) -> dict[int, bytes]:
        """Read the texts of some ids from the report's table of strings; no other is kept.

        Texts that the report has as the files, output or names of processes are left out, whoever
        else refers to them: an id may be damaged.

        Args:
            not_of: Further tables, of `PRIVATE`, whose texts are left out.
        """
        private = [self._refer(table) for table in (*_ALWAYS_PRIVATE, *not_of)]
        wanted = np.setdiff1d(ids, np.concatenate(private))
        found: dict[int, bytes] = {}
        for piece in self._tables.pieces("StringIds", ("id",), "value"):
            here = piece.numbers["id"]
            for i in np.flatnonzero(np.isin(here, wanted)).tolist():
                found[int(here[i])] = piece.texts[i] or b""
        return found

    def _refer(self, table: str) -> Ints:
        """The ids of strings that a table refers to."""
        columns = [column for column in PRIVATE[table] if self.has(table, column)]
        pieces = self._tables.pieces(table, columns) if columns else ()
        parts = [values for piece in pieces for values in piece.numbers.values()]
        return np.unique(np.concatenate([np.empty(0, np.int64), *parts]))

    def timed(self, piece: Piece, category: str, owner: str) -> dict[str, Ints]:
        """Return the rows that have a start and an end, with `process` and `dur`; count all.

        Args:
            owner: The column that names process or thread.
        """
        numbers = piece.numbers
        process = process_of(numbers[owner])
        self.report.count(process, "X", category)
        has = (numbers["start"] != MISSING) & (numbers["end"] != MISSING)
        self.report.without_time += int(len(has) - has.sum())
        n = {name: values[has] for name, values in numbers.items()}
        return n | {"process": process[has], "dur": n["end"] - n["start"]}

    def thread_columns(self, n: dict[str, Ints]) -> dict[str, Column]:
        """Return the columns of events on a host thread."""
        thread = np.where(n["globalTid"] == MISSING, MISSING, n["globalTid"] & _LOW_24)
        return {
            "process": n["process"],
            "start": n["start"],
            "dur": n["dur"],
            "tid": self.report.texts.number_ids(thread),
        }


def process_of(ids: Ints) -> Ints:
    """Return the key of each id's process: what stands above the thread."""
    return np.where(ids == MISSING, NO_PROCESS, ids >> _PID_SHIFT)
