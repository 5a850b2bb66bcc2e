"""NVTX ranges of an export: operators where PyTorch wrote them, annotations else."""

from __future__ import annotations

import re

import numpy as np
import numpy.typing as npt

from analyzer.trace.nsys.report import EventTables, process_of
from analyzer.trace.tabular.ranges import RangeTexts
from analyzer.trace.tabular.report import Category, flags, rows_where
from analyzer.trace.tabular.tables import MISSING, Ints, Piece

_PUSH_POP, _START_END, _THREAD_NAME = 59, 60, 39  # types of events
_MPI_RANK = re.compile(rb"MPI Rank (\d{1,6})")


class Ranges:
    """The ranges of an export, as the categories `cpu_op` and `user_annotation`."""

    def __init__(self, tables: EventTables) -> None:
        self._tables = tables
        self._texts = RangeTexts(tables.report.texts)
        self.ops, self.annotations = Category("cpu_op"), Category("user_annotation")

    def read(self) -> list[Category]:
        """Read all ranges; those without an end are counted and left out."""
        late: list[dict[str, Ints]] = []
        for piece in self._tables.pieces(
            "NVTX_EVENTS", ("eventType", "globalTid", "textId"), "text"
        ):
            n, kind = piece.numbers, piece.numbers["eventType"]
            is_range = (kind == _PUSH_POP) | (kind == _START_END)
            self._tables.report.count(process_of(n["globalTid"][~is_range]), "i", "nvtx")
            self._find_ranks(piece, kind == _THREAD_NAME)
            is_whole = is_range & (n["start"] != MISSING) & (n["end"] != MISSING)
            self._leave_out(n["globalTid"][is_range & ~is_whole])
            ranges = rows_where(piece, is_whole)
            has_text = np.array([text is not None for text in ranges.texts], bool)
            here = rows_where(ranges, has_text)
            self._add(here.numbers, [text or b"" for text in here.texts])
            if not has_text.all():
                late.append(rows_where(ranges, ~has_text).numbers)
        if late:
            registered = self._tables.strings(np.concatenate([n["textId"] for n in late]))
            for n in late:
                self._add(n, [registered.get(i, b"") for i in n["textId"].tolist()])
        return [self.ops, self.annotations]

    def _leave_out(self, thread: Ints) -> None:
        self._tables.report.open_ranges += len(thread)
        self._tables.report.count(process_of(thread), "X", self.annotations.name)

    def _find_ranks(self, piece: Piece, is_name: npt.NDArray[np.bool_]) -> None:
        """Nsight Systems names the main thread of an MPI process by its rank."""
        for i in np.flatnonzero(is_name).tolist():
            match = _MPI_RANK.fullmatch(piece.texts[i] or b"")
            if match:
                (process,) = process_of(piece.numbers["globalTid"][i : i + 1]).tolist()
                self._tables.report.ranks.setdefault(process, int(match[1]))

    def _add(self, numbers: dict[str, Ints], texts: list[bytes]) -> None:
        if not texts:
            return
        name, shape, is_op = np.array(self._texts.parsed(texts), np.int64).T
        # Ranges of the other type need not nest.
        at = (is_op != 0) & (numbers["eventType"] == _PUSH_POP)
        for category, here in ((self.ops, at), (self.annotations, ~at)):
            n = {column: values[here] for column, values in numbers.items()}
            n |= {"process": process_of(n["globalTid"]), "dur": n["end"] - n["start"]}
            self._tables.report.count(n["process"], "X", category.name)
            category.add(
                **self._tables.thread_columns(n),
                name=name[here].astype(np.int32),
                shape=shape[here].astype(np.int32),
                flags=flags(n),
            )
