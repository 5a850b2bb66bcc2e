"""Events of rocprofv3 by category: what its kinds of records mean, whichever file they come from.

Categories and names are spelled as Kineto spells them. A device event belongs to the call of its
process with its correlation id; where HSA calls were recorded too, to the HIP call around them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from analyzer.trace.columns import HAS_BYTES, HAS_CORRELATION, HAS_DUR, HAS_TS
from analyzer.trace.events import DEVICE_CATEGORIES
from analyzer.trace.stream import TraceError
from analyzer.trace.tabular.ranges import RangeTexts
from analyzer.trace.tabular.report import Category, Column, Report, config_text, decoded
from analyzer.trace.tabular.tables import MISSING, Ints

CALLS, HSA_CALLS = "cuda_runtime", "hsa_runtime"
_RANGES, _OPS = "range", "cpu_op"
# What a kind of region is, by how its name begins; without a kind by how its own name does.
_KINDS = {"HIP_": CALLS, "HSA_": HSA_CALLS, "MARKER_": _RANGES, "RCCL_": _OPS}
_NAMES = {"hip": CALLS, "__hip": CALLS, "hsa_": HSA_CALLS, "roctx": _RANGES, "nccl": _OPS}
_COPIES = {
    "HOST_TO_DEVICE": "HtoD",
    "DEVICE_TO_HOST": "DtoH",
    "DEVICE_TO_DEVICE": "DtoD",
    "HOST_TO_HOST": "HtoH",
}
_DEEPEST = 8  # an HSA call is one or two calls below its HIP call


def category_of(kind: str, name: str) -> str:
    """Return the category of a region."""
    table, text = (_KINDS, kind) if kind else (_NAMES, name)
    known = (category for prefix, category in table.items() if text.startswith(prefix))
    return next(known, kind.lower() or "unknown")


def is_marker(kind: str) -> bool:
    """Whether a region's text stands apart from its name."""
    return kind.startswith("MARKER_")


class RocmEvents:
    """The events of a job's processes, piece by piece.

    Columns of a piece are integers, MISSING where there is none: `process` (the caller's number),
    `start`, `end`, `correlation`, and what each method names.
    """

    def __init__(self, path: Path, most_events: int | None) -> None:
        self.report = Report()
        self._path = path
        self._most_events = most_events
        self._read = 0
        self._ranges = RangeTexts(self.report.texts)
        self._categories: dict[str, Category] = {}
        self._calls: defaultdict[int, list[Ints]] = defaultdict(list[Ints])
        self._hsa: defaultdict[int, list[tuple[Ints, Ints]]] = defaultdict(list[tuple[Ints, Ints]])

    def add_regions(
        self, n: dict[str, Ints], kinds: Sequence[str], texts: Sequence[bytes | None]
    ) -> None:
        """Add calls and ranges; further columns: `tid`, `parent` (correlation id of the call
        around it).

        Raises:
            TraceError: There are more events than are read.
        """
        of_text = {
            key: category_of(key[0], decoded(key[1] or b""))
            for key in set(zip(kinds, texts, strict=True))
        }
        category = np.array([of_text[key] for key in zip(kinds, texts, strict=True)], object)
        for name in dict.fromkeys(category.tolist()):
            at = np.flatnonzero(category == name)
            here = {column: values[at] for column, values in n.items()}
            some = [texts[i] or b"" for i in at.tolist()]
            if name == _RANGES:
                self._add_ranges(here, some)
                continue
            has, here = self._timed(here, name)
            if name not in (CALLS, HSA_CALLS, _OPS):
                continue
            ids = {text: self.report.texts.id(decoded(text) or "unknown") for text in set(some)}
            found = np.array([ids[text] for text in some], np.int64)[has]
            columns = {**self._host_columns(here), "name": found}
            if name == _OPS:
                self._add(name, columns)
                continue
            correlation = here["correlation"]
            self._add(name, columns | {"correlation": correlation, "flags": _flags(correlation)})
            for process in np.unique(here["process"]).tolist():
                own = here["process"] == process
                if name == CALLS:
                    self._calls[process].append(correlation[own])
                else:
                    self._hsa[process].append((correlation[own], here["parent"][own]))

    def add_dispatches(self, n: dict[str, Ints]) -> None:
        """Add kernels; further columns: `name` (text id), `device`, `queue`, `grid_x` to `_z` in
        work-items, `workgroup_x` to `_z`, `shared`, `registers`.

        Raises:
            TraceError: There are more events than are read.
        """
        _, n = self._timed(n, "kernel")
        block = [n[f"workgroup_{axis}"] for axis in "xyz"]
        items = [n[f"grid_{axis}"] for axis in "xyz"]
        grid = [
            np.where((size > 0) & (all_ > 0), -(-all_ // np.maximum(size, 1)), MISSING)
            for all_, size in zip(items, block, strict=True)
        ]
        config = [*grid, *block, n["shared"], n["registers"]]
        self._add_device("kernel", n, n["queue"], config=self.report.texts.row_ids(config, _config))

    def add_copies(self, n: dict[str, Ints]) -> None:
        """Add copies; further columns: `name` (text id), `device`, `queue`, `stream`, `bytes`.

        Raises:
            TraceError: There are more events than are read.
        """
        _, n = self._timed(n, "gpu_memcpy")
        self._add_device("gpu_memcpy", n, n["queue"], bytes=n["bytes"])

    def copy_name(self, text: str) -> int:
        """Return the text id of a copy's name."""
        kind = text.upper().removeprefix("MEMORY_COPY_")
        return self.report.texts.id(f"Memcpy {_COPIES.get(kind, 'Unknown')}")

    def finished(self) -> Report:
        """Return all events, device events under the calls that are in the trace."""
        for name, category in self._categories.items():
            events = category.events(0)
            if name in DEVICE_CATEGORIES and len(events):
                correlation = events.columns["correlation"].astype(np.int64)
                for process in np.unique(events.process).tolist():
                    own = events.process == process
                    correlation[own] = self._resolved(process, correlation[own])
                events.columns["correlation"] = correlation
            if len(events):
                self.report.events.append(events)
        return self.report

    def _resolved(self, process: int, correlation: Ints) -> Ints:
        """Correlation ids of HIP calls in place of those of HSA calls within them."""
        if process not in self._calls or process not in self._hsa:
            return correlation
        calls = np.unique(np.concatenate(self._calls[process]))
        hsa = np.concatenate([own for own, _ in self._hsa[process]])
        around = np.concatenate([parent for _, parent in self._hsa[process]])
        order = np.argsort(hsa, kind="stable")
        hsa, around = hsa[order], around[order]
        current = np.array(correlation)
        for _ in range(_DEEPEST):
            at = np.minimum(np.searchsorted(hsa, current), len(hsa) - 1)
            inner = ~np.isin(current, calls) & (hsa[at] == current)
            if not inner.any():
                break
            current = np.where(inner, around[at], current)
        return np.where(np.isin(current, calls), current, correlation)

    def _timed(
        self, n: dict[str, Ints], category: str
    ) -> tuple[np.ndarray[tuple[int, ...], np.dtype[np.bool_]], dict[str, Ints]]:
        """Which rows have a start and an end, and these with `dur`; all are counted."""
        self._read += len(n["start"])
        if self._most_events is not None and self._read > self._most_events:
            raise TraceError(
                f"{self._path} holds more than {self._most_events} events, the most that are read "
                "here; record a shorter time."
            )
        self.report.count(n["process"], "X", category)
        has = (n["start"] != MISSING) & (n["end"] != MISSING)
        self.report.without_time += int(len(has) - has.sum())
        timed = {name: values[has] for name, values in n.items()}
        return has, timed | {"dur": timed["end"] - timed["start"]}

    def _add_ranges(self, n: dict[str, Ints], texts: list[bytes]) -> None:
        name, shape, is_op = np.array(self._ranges.parsed(texts), np.int64).T
        for category, at in ((_OPS, is_op != 0), ("user_annotation", is_op == 0)):
            has, here = self._timed({c: values[at] for c, values in n.items()}, category)
            here_names = {"name": name[at][has], "shape": shape[at][has]}
            self._add(category, self._host_columns(here) | here_names)

    def _host_columns(self, n: dict[str, Ints]) -> dict[str, Column]:
        return {
            "process": n["process"],
            "start": n["start"],
            "dur": n["dur"],
            "tid": self.report.texts.number_ids(n["tid"]),
            "flags": np.full(len(n["start"]), HAS_TS | HAS_DUR, np.int64),
            "shape": np.full(len(n["start"]), -1, np.int64),
        }

    def _add_device(self, category: str, n: dict[str, Ints], queue: Ints, **more: Column) -> None:
        texts = self.report.texts
        device, on = texts.number_ids(n["device"]), texts.number_ids(queue)
        if "stream" in n:  # no queue of the device: a copy has its own engine
            named = texts.row_ids([n["stream"]], _stream)
            on = np.where(queue == MISSING, named, on)
        size = HAS_BYTES if "bytes" in more else 0
        columns: dict[str, Column] = {
            "process": n["process"],
            "start": n["start"],
            "dur": n["dur"],
            "name": n["name"],
            "correlation": n["correlation"],
            "flags": _flags(n["correlation"]) | size,
            "device": device,
            "stream": on,
            "pid": device,
            "tid": on,
        }
        self._add(category, columns | more)

    def _add(self, category: str, columns: dict[str, Column]) -> None:
        if category not in self._categories:
            self._categories[category] = Category(category)
        self._categories[category].add(**columns)


def _flags(correlation: Ints) -> Ints:
    return np.where(correlation == MISSING, 0, HAS_CORRELATION) | HAS_TS | HAS_DUR


def _config(row: Sequence[int]) -> str:
    return config_text(row[:3], row[3:6], row[6:7], row[7])


def _stream(row: Sequence[int]) -> str:
    return "" if row[0] == MISSING else f"stream {row[0]}"
