"""What is read of a report: its events by category in narrow columns, and the texts they use.

A category's rows come piece by piece and table by table; ids of texts and processes are the
report's own.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from analyzer.trace.columns import HAS_CORRELATION, HAS_DUR, HAS_TS, UNIT_SEPARATOR, ordinals
from analyzer.trace.events import DEVICE_CATEGORIES, is_call_category
from analyzer.trace.tabular.tables import MISSING, Ints, Piece

Ids = npt.NDArray[np.int32]
Column = npt.NDArray[np.integer[Any]]

NO_PROCESS = -1
OP = "op"  # the column of ids of the ops that device events name themselves


class Texts:
    """The texts of a report that its events use, by ordinal."""

    def __init__(self) -> None:
        self._ids: dict[str, int] = {}

    def id(self, text: str) -> int:
        return self._ids.setdefault(text, len(self._ids))

    def number_ids(self, values: Ints) -> Ids:
        """Ids of numbers as JSON texts; -1 where there is none."""
        if len(values) and (values == values[0]).all():  # as a rule: one device, one thread
            number = -1 if values[0] == MISSING else self.id(str(values[0]))
            return np.full(len(values), number, np.int32)
        distinct, inverse = np.unique(values, return_inverse=True)
        ids = [-1 if v == MISSING else self.id(str(v)) for v in distinct.tolist()]
        return np.array(ids, np.int32)[inverse.reshape(-1)]

    def row_ids(self, columns: Sequence[Ints], text_of: Callable[[Sequence[int]], str]) -> Ids:
        """Ids of the texts of some columns together, each made once; -1 for an empty text."""
        if not len(columns[0]):
            return np.empty(0, np.int32)
        row = np.zeros(len(columns[0]), np.int64)
        for column in columns:
            values, rank = ordinals(column)
            _, row = ordinals(row * len(values) + rank)
        first = np.empty(int(row.max()) + 1, np.int64)
        first[row[::-1]] = np.arange(len(row))[::-1]
        distinct = zip(*(column[first].tolist() for column in columns), strict=True)
        ids = [self.id(text) if (text := text_of(values)) else -1 for values in distinct]
        return np.array(ids, np.int32)[row]

    def all(self) -> list[str]:
        return list(self._ids)


def _narrow(values: Ints) -> Ints:
    """The same values, in the memory of one if all are equal, as a rule."""
    if len(values) and (values == values[0]).all():
        return np.broadcast_to(values[0], len(values))
    return values


@dataclass(frozen=True)
class Events:
    """The events of one category.

    Attributes:
        process: Key of each event's process (id above the thread's part); NO_PROCESS if unknown.
        node: CUDA graph node of each event; MISSING without one.
        columns: Further columns of `columns.ROW`, and OP.
    """

    category: str
    process: Ints
    start: Ints
    dur: Ints
    node: Ints
    columns: dict[str, Column]

    @property
    def is_device_work(self) -> bool:
        """Whether such an event shows that its process uses a device."""
        return self.category in DEVICE_CATEGORIES or is_call_category(self.category)

    def __len__(self) -> int:
        return len(self.start)

    def column(self, name: str) -> Ints:
        values = self.columns.get(name)
        return np.zeros(len(self), np.int64) if values is None else values.astype(np.int64)

    def where(self, keep: npt.NDArray[np.bool_]) -> Events:
        """The events that are kept."""
        if keep.all():
            return self
        columns = {name: values[keep] for name, values in self.columns.items()}
        return Events(
            self.category,
            self.process[keep],
            self.start[keep],
            self.dur[keep],
            self.node[keep],
            columns,
        )


class Category:
    """The rows of one category, piece by piece."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._pieces: list[dict[str, Column]] = []

    def add(self, **columns: Column) -> None:
        if len(columns["start"]):
            self._pieces.append(columns)

    def events(self, process: int) -> Events:
        """All rows; `process` stands in where it is not known."""
        if not self._pieces:
            none = np.empty(0, np.int64)
            return Events(self.name, none, none, none, none, {})
        columns: dict[str, Column] = {}
        for name in list(self._pieces[0]):  # what was joined goes at once: the pieces are large
            columns[name] = np.concatenate([piece.pop(name) for piece in self._pieces])
        self._pieces = []
        owner = columns.pop("process").astype(np.int64, copy=False)
        owner = _narrow(np.where(owner == NO_PROCESS, process, owner))
        start, dur = (columns.pop(c).astype(np.int64, copy=False) for c in ("start", "dur"))
        node = columns.pop("node", np.broadcast_to(np.int64(MISSING), len(start)))
        return Events(
            self.name, owner, start, dur, _narrow(node.astype(np.int64, copy=False)), columns
        )

    def distinct(self, *names: str) -> set[tuple[int, ...]]:
        """The distinct values of some columns."""
        found: set[tuple[int, ...]] = set()
        for piece in self._pieces:
            if all(name in piece for name in names):
                found.update(zip(*(piece[name].tolist() for name in names), strict=True))
        return found


@dataclass
class Report:
    """The events of all processes of a report.

    Attributes:
        counts: Rows of each process by (ph, category), kept or not.
        ranks: Rank of a process, where the report tells.
        without_time: Rows that were left out, since they have no start or end.
    """

    texts: Texts = field(default_factory=Texts)
    events: list[Events] = field(default_factory=list[Events])
    counts: dict[int, Counter[tuple[str, str]]] = field(
        default_factory=lambda: defaultdict[int, Counter[tuple[str, str]]](Counter)
    )
    ranks: dict[int, int] = field(default_factory=dict[int, int])
    without_time: int = 0

    def count(self, process: Ints, ph: str, category: str) -> None:
        """Count rows by their processes."""
        if len(process) and (process == process[0]).all():
            self.counts[int(process[0])][ph, category] += len(process)
            return
        keys, counts = np.unique(process, return_counts=True)
        for key, number in zip(keys.tolist(), counts.tolist(), strict=True):
            self.counts[key][ph, category] += number


def flags(n: dict[str, Ints]) -> Ids:
    """Return which of time and correlation each row has."""
    timed = np.full(len(n["start"]), HAS_TS | HAS_DUR, np.int32)
    if "correlationId" in n:
        timed[n["correlationId"] != MISSING] |= HAS_CORRELATION
    return timed


def rows_where(piece: Piece, keep: npt.NDArray[np.bool_]) -> Piece:
    """Return the rows of a piece that are kept."""
    if keep.all():
        return piece
    numbers = {name: values[keep] for name, values in piece.numbers.items()}
    return Piece(numbers, [piece.texts[i] for i in np.flatnonzero(keep).tolist()])


def decoded(text: bytes) -> str:
    """Return a text of the export; bytes that are not UTF-8 as \\xNN."""
    return text.decode("utf-8", "backslashreplace")


def config_text(
    grid: Sequence[int], block: Sequence[int], shared: Sequence[int], registers: int
) -> str:
    """Grid, block, shared memory and registers in one text, as `columns.launch_config` splits.

    Args:
        shared: Bytes of each kind of shared memory; what is MISSING is not known.
    """
    known = [part for part in shared if part != MISSING]
    parts = [
        "" if MISSING in grid else "[" + ", ".join(map(str, grid)) + "]",
        "" if MISSING in block else "[" + ", ".join(map(str, block)) + "]",
        str(sum(known)) if known else "",
        "" if registers == MISSING else str(registers),
    ]
    return UNIT_SEPARATOR.join(parts) if any(parts) else ""
