"""The events of one process of a report as a trace."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from analyzer.trace.columns import ROW, Rows
from analyzer.trace.events import Trace
from analyzer.trace.tabular.report import OP, Report
from analyzer.trace.tabular.tables import MISSING, Ints


def processes(report: Report) -> list[Process]:
    """Return the processes of all events, by their first event."""
    first: dict[int, int] = {}
    for events in report.events:
        for key in np.unique(events.process).tolist():
            start = int(events.start[events.process == key].min())
            first[key] = min(first.get(key, start), start)
    return [Process(report, key) for key in sorted(first, key=lambda key: (first[key], key))]


class Process:
    """The events of one process, to be put in order of time."""

    def __init__(self, report: Report, key: int) -> None:
        self._report = report
        self.key = key
        self.events = [part for e in report.events if len(part := e.where(e.process == key))]

    @property
    def has_device_work(self) -> bool:
        return any(events.is_device_work for events in self.events)

    @property
    def rank(self) -> int | None:
        return self._report.ranks.get(self.key)

    def trace(
        self, path: Path, number: int, size: int, metadata: dict[str, Any], pid: str
    ) -> Trace:
        """Return the trace of the process.

        Args:
            number: Place of the process in its file.
            size: Bytes of the file that count as its.
            pid: Its id as text; empty if it is not known.
        """
        rows, places = self._rows(pid)
        counts = dict(self._report.counts.get(self.key, {}))
        return Trace(
            path=path,
            document=number,
            rows=rows,
            strings=self._report.texts.all(),
            counts=counts,
            events=sum(counts.values()),
            json_bytes=size,
            metadata=metadata,
            thread_names={},
            captured_in=self._captured_in(len(rows), places),
            named_ops=self._named_ops(len(rows), places),
        )

    def _rows(self, pid: str) -> tuple[Rows, list[Ints]]:
        """All rows in order of time, the longer first, and the places of those of each table."""
        order = self._order()
        place = np.empty(len(order), np.int64)
        place[order] = np.arange(len(order))
        del order
        places = np.split(place, np.cumsum([len(e) for e in self.events])[:-1])
        rows = np.zeros(len(place), ROW)
        texts = self._report.texts
        for column in ("device", "stream", "shape", "config", "kernel"):
            rows[column] = -1
        rows["index"] = np.arange(len(place))
        rows["pid"] = texts.id(pid) if pid else -1
        rows["tid"] = -1
        for events, at in zip(self.events, places, strict=True):
            rows["ts"][at], rows["dur"][at] = events.start, events.dur
            rows["category"][at] = texts.id(events.category)
            for column, values in events.columns.items():
                if column != OP:
                    rows[column][at] = values
        return rows, places

    def _order(self) -> Ints:
        """All events in order of time, the longer first."""
        start = np.concatenate([e.start for e in self.events])
        order = np.argsort(start, kind="stable")
        equal = start[order][1:] == start[order][:-1]
        at = np.flatnonzero(np.append(equal, False) | np.append(False, equal))
        tied = order[at]
        if len(tied):
            dur = np.concatenate([e.dur for e in self.events])[tied]
            kind = np.repeat(np.arange(len(self.events)), [len(e) for e in self.events])[tied]
            correlation = np.concatenate([e.column("correlation") for e in self.events])[tied]
            name = np.concatenate([e.column("name") for e in self.events])[tied]
            order[at] = tied[np.lexsort((name, correlation, kind, -dur, start[tied]))]
        return order

    def _captured_in(self, n: int, places: list[Ints]) -> Ints | None:
        """For each row the row that made its graph node; None without graph nodes."""
        made = next((i for i, e in enumerate(self.events) if e.category == "graph_node"), None)
        if made is None:
            return None
        result = np.full(n, -1, np.int64)
        creations = self.events[made]
        order = np.argsort(creations.node, kind="stable")
        known = creations.node[order]
        for events, at in zip(self.events, places, strict=True):
            if events is creations:
                continue
            found = np.minimum(np.searchsorted(known, events.node), len(known) - 1)
            has = (events.node != MISSING) & (known[found] == events.node)
            result[at[has]] = places[made][order[found[has]]]
        return result

    def _named_ops(self, n: int, places: list[Ints]) -> Ints | None:
        """For each row the text id of the op that it names itself; None if none does."""
        if not any(OP in events.columns for events in self.events):
            return None
        result = np.full(n, -1, np.int64)
        for events, at in zip(self.events, places, strict=True):
            if OP in events.columns:
                result[at] = events.columns[OP]
        return result
