"""The row that a scanner makes of one event, and the flags that say which fields it had.

The layout is the C struct `Row` of `_scan.c`. Times are integer nanoseconds; every `int32` text
column is an index into the scanner's strings, -1 for absent. Pid, tid, device and stream keep the
JSON text (`7` and `"7"` are two ids), a stream that of the stream or queue that an event ran on,
whatever lane shows it; `shape` joins the texts of Input Dims, Input type, Input
Strides and Concrete Inputs, `config` those of grid, block, shared memory and registers, by a unit
separator; `kernel` is the kernel that a call names, of a device event its context. Of an event
without inputs, a collective's kernel, `shape` joins Collective name, Process Group Name and Ranks,
elements sent and received, and dtype.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

Rows = npt.NDArray[np.void]
Ints = npt.NDArray[np.int64]

HAS_TS, HAS_DUR, HAS_CORRELATION, HAS_EXTERNAL, HAS_BYTES = 1, 2, 4, 8, 16
IS_BEGIN, IS_END = 128, 256  # half a span each: `spans` makes one row of two
HALVES = {"B": IS_BEGIN, "E": IS_END}
UNIT_SEPARATOR = "\x1f"

ROW = np.dtype(
    [(name, np.int64) for name in ("ts", "dur", "index", "correlation", "external", "bytes")]
    + [
        (name, np.int32)
        for name in (
            "category",
            "name",
            "pid",
            "tid",
            "device",
            "stream",
            "shape",
            "config",
            "kernel",
            "flags",
        )
    ]
)


class OpShape(NamedTuple):
    """What an operator was called with, each as its JSON text; None where the trace has none."""

    dims: str | None
    types: str | None
    strides: str | None
    concrete: str | None


class LaunchConfig(NamedTuple):
    """How a kernel was launched: grid and block as JSON texts, shared memory in bytes."""

    grid: str | None
    block: str | None
    shared_memory: int | None
    registers: int | None


class CollectiveText(NamedTuple):
    """What a trace says of a collective; None where it does not."""

    name: str | None  # e.g. allreduce
    group: str | None  # name of the process group
    ranks: str | None  # of the group, as text
    sent: int | None  # elements of the input
    received: int | None  # elements of the output
    dtype: str | None  # e.g. BFloat16


def op_shape(text: str) -> OpShape:
    """Split a text of the column `shape`; an empty one has nothing."""
    parts = [*text.split(UNIT_SEPARATOR), "", "", "", ""][:4]
    return OpShape(*(part or None for part in parts))


def launch_config(text: str) -> LaunchConfig:
    """Split a text of the column `config`; an empty one has nothing."""
    if not text:
        return LaunchConfig(None, None, None, None)
    grid, block, shared, registers = text.split(UNIT_SEPARATOR)
    return LaunchConfig(grid or None, block or None, _int(shared), _int(registers))


def ordinals(values: npt.NDArray[np.integer[Any]]) -> tuple[Ints, Ints]:
    """The distinct values, sorted, and for each value its place among them."""
    if not len(values):
        return values.astype(np.int64), np.empty(0, np.int64)
    least, most = int(values.min()), int(values.max())
    if most - least >= 4 * len(values) + 1024:
        distinct = np.unique(values)
        return distinct.astype(np.int64), np.searchsorted(distinct, values)
    # A table of all values between least and greatest is small: look up instead of searching.
    from_least = values - least
    seen = np.zeros(most - least + 1, bool)
    seen[from_least] = True
    return np.flatnonzero(seen) + least, (np.cumsum(seen) - 1)[from_least]


def used_ids(ids: npt.NDArray[np.int32], number: int) -> list[int]:
    """Which of `number` strings a column uses, sorted; -1 first if some row has none."""
    seen = np.zeros(number + 1, bool)
    seen[ids] = True  # -1 is the last
    found: list[int] = np.flatnonzero(seen[:-1]).tolist()
    return [-1, *found] if seen[-1] else found


def collective(text: str) -> CollectiveText:
    """Split the column `shape` of a collective's kernel; that of another event has nothing."""
    parts = text.split(UNIT_SEPARATOR)
    name, group, ranks, sent, received, dtype = parts if len(parts) == 6 else [""] * 6
    elements = _int(sent), _int(received)
    return CollectiveText(_bare(name), _bare(group), _bare(ranks), *elements, _bare(dtype))


def _bare(text: str) -> str | None:
    return text.strip('"') or None


def _int(text: str) -> int | None:
    try:
        return int(text)
    except ValueError:
        return None


NEED_MORE, END, ODD, BAD, NO_MEMORY = range(5)


class Scanner(Protocol):
    """What `native_scanner` and `pure_scanner` both are. One scanner reads one document."""

    @property
    def events(self) -> int: ...

    @events.setter
    def events(self, value: int) -> None: ...

    @property
    def trailing_commas(self) -> int: ...

    @property
    def odd_start(self) -> int: ...

    @property
    def bad_at(self) -> int: ...

    def scan(self, text: bytes, start: int) -> tuple[int, int]:
        """Read the whole events of text[start:]; return (place to go on from, status)."""
        ...

    def intern(self, text: bytes) -> int:
        """Return the id of a string."""
        ...

    def count(self, ph: int, category: int) -> None:
        """Count one event by the ids of its `ph` and `cat`."""
        ...

    def name_thread(self, pid: str, tid: str, name: str) -> None:
        """Note what the metadata calls a thread, by the JSON texts of its ids."""
        ...

    def counts(self) -> dict[tuple[str, str], int]:
        """Events by (ph, cat)."""
        ...

    def rows(self) -> Rows:
        """All rows, in the order of the file; once, before the next three."""
        ...

    def strings(self) -> list[str]:
        """All strings, by id."""
        ...

    def thread_names(self) -> dict[tuple[str, str], str]:
        """The last names of threads by the JSON texts of pid and tid, at least of those in rows."""
        ...

    def add(self, row: tuple[Any, ...]) -> None:
        """Append one row that the repair path made, in the order of ROW."""
        ...
