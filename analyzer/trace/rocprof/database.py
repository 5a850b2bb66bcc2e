"""Databases of rocprofv3 (rocpd, SQLite) to columns; this module is the only one that knows their
tables.

Versions 3.0 to 4.1. A process writes a database of its own, its tables named after it; a merged one
has the tables of several. A folder of databases is one job. Times are integer nanoseconds on the
host's clock. A database also holds the whole environment, the command line, hosts, users and paths:
only columns that are named here are read, and no error quotes the content.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from analyzer.trace.events import Trace
from analyzer.trace.reader import DEFAULTS, ReadOptions, each_file, ran_together
from analyzer.trace.rocprof.events import RocmEvents, is_marker
from analyzer.trace.rocprof.traces import RocmProcess, traces_of
from analyzer.trace.stream import TraceError, first_bytes
from analyzer.trace.tabular.report import decoded
from analyzer.trace.tabular.tables import MISSING, SQLITE_MAGIC, Ints, SqliteTables

_DISPATCHES, _REGIONS = "rocpd_kernel_dispatch", "rocpd_region"
_TABLE = re.compile(rf"(?:{_DISPATCHES}|{_REGIONS})(|_[0-9a-zA-Z_]+)")
_COPIES, _EVENTS, _STRINGS, _TRACKS = (
    "rocpd_memory_copy",
    "rocpd_event",
    "rocpd_string",
    "rocpd_track",
)
_AGENTS = "rocpd_info_agent"
_VERSION = re.compile(rb"\d+(\.\d+){1,3}")
_OWNERS = ("pid", "tid", "agent_id", "queue_id", "stream_id")
_TIMES = ("start", "end", "event_id")
_SIZES = tuple(f"{what}_size_{axis}" for what in ("workgroup", "grid") for axis in "xyz")


def sniff(path: Path) -> bool:
    """Return whether a file is such a database, or a folder a job's."""
    if path.is_dir():
        return bool(_files(path))
    if not first_bytes(path, len(SQLITE_MAGIC)).startswith(SQLITE_MAGIC):
        return False
    try:
        tables = SqliteTables(path)
    except TraceError:
        return False
    try:
        return bool(_processes(tables))
    finally:
        tables.close()


def _files(folder: Path) -> list[Path]:
    """The databases of a job: those of processes that ran at the same time on each host.

    None where they did not, or where the folder holds other traces too.
    """
    try:
        found = [
            file for pattern in ("*", "*/*") for file in folder.glob(pattern) if file.is_file()
        ]
    except OSError:
        return []
    if any(file.name.endswith((".json", ".json.gz", ".sqlite", ".pb")) for file in found):
        return []
    databases = [file for file in sorted(found) if file.name.endswith(".db") and sniff(file)]
    # Each host has a clock, and a folder, of its own.
    by_host = [[f for f in databases if f.parent == host] for host in {f.parent for f in databases}]
    is_job = all(len(own) == 1 or ran_together([_span(file) for file in own]) for own in by_host)
    return databases if is_job else []


def _span(path: Path) -> tuple[int, int] | None:
    """When the processes of a database began and ended, if it tells."""
    try:
        tables = SqliteTables(path)
    except TraceError:
        return None
    try:
        rows = [
            (start, end)
            for suffix in _processes(tables)
            for piece in tables.pieces(f"rocpd_info_process{suffix}", ("init", "fini"))
            for start, end in zip(
                *(piece.numbers[column].tolist() for column in ("init", "fini")), strict=True
            )
            if MISSING not in (start, end)
        ]
    except TraceError:
        return None
    finally:
        tables.close()
    return (min(start for start, _ in rows), max(end for _, end in rows)) if rows else None


def _processes(tables: SqliteTables) -> list[str]:
    """What the names of each process's tables end in."""
    found = (_TABLE.fullmatch(name) for name in tables.names())
    return sorted({match[1] for match in found if match})


def read(path: Path, options: ReadOptions = DEFAULTS) -> list[Trace]:
    """Read all processes of a database, or of all databases of a job.

    Raises:
        TraceError: One cannot be read, is damaged, holds no event, or more than is read. The
            message is one line.
    """
    files = _files(path) if path.is_dir() else [path]
    options.check_size(path, sum(file.stat().st_size for file in files))
    job = _Job(RocmEvents(path, options.most_events))
    each_file(path, files, options, job.read)
    return traces_of(path, job.events.finished(), job.processes, job.size)


class _Job:
    """The databases of a job, one after the other."""

    def __init__(self, events: RocmEvents) -> None:
        self.events = events
        self.processes: list[RocmProcess] = []
        self.size = 0

    def read(self, path: Path, options: ReadOptions) -> None:
        tables = SqliteTables(path, options.progress)
        try:
            for suffix in _processes(tables):
                _ProcessTables(tables, suffix, self).read()
            self.size += path.stat().st_size
        finally:
            tables.close()

    def process(self, pid: int | None, metadata: dict[str, Any]) -> int:
        """Return the number of another process."""
        self.processes.append(RocmProcess(pid, metadata))
        return len(self.processes) - 1


@dataclass(frozen=True)
class _Symbol:
    name: int
    registers: int


class _ProcessTables:
    """The tables of one process."""

    def __init__(self, tables: SqliteTables, suffix: str, job: _Job) -> None:
        self._tables = tables
        self._suffix = suffix
        self._job = job
        self._events = job.events
        self._strings = self._texts(_STRINGS, "string")
        self._pids = self._numbers("rocpd_info_process", "pid")
        self._tids = self._numbers("rocpd_info_thread", "tid")
        self._tracks = self._owners_of_tracks()
        self._agents = self._devices()
        self._made: dict[int, int] = {}

    def read(self) -> None:
        links = _Links(self._pieces)
        kinds = self._kinds()
        messages = self._messages(links.events_of([i for i, k in kinds.items() if is_marker(k)]))
        for n in self._owned(_REGIONS, ("name_id",)):
            event = links.of(n["event_id"])
            kind = [kinds.get(i, "") for i in event["category_id"].tolist()]
            texts: list[bytes | None] = [self._strings.get(i) for i in n["name_id"].tolist()]
            if any(map(is_marker, kind)):
                messages = self._messages(n["event_id"])
                for i, at in enumerate(n["event_id"].tolist()):
                    if is_marker(kind[i]):
                        texts[i] = messages.get(at, texts[i])
            self._events.add_regions(
                n | event | {"tid": _looked_up(self._tids, n["tid"])}, kind, texts
            )
        symbols = self._symbols()
        for n in self._owned(_DISPATCHES, ("kernel_id", "group_segment_size", *_SIZES)):
            found = [symbols.get(i) for i in n["kernel_id"].tolist()]
            unknown = self._events.report.texts.id("unknown") if None in found else -1
            n |= links.of(n["event_id"])
            n |= {name.replace("_size", ""): n[name] for name in _SIZES}
            n["shared"] = n["group_segment_size"]
            n["queue"] = n["queue_id"]
            n["name"] = _ints(s.name if s else unknown for s in found)
            n["registers"] = _ints(s.registers if s else MISSING for s in found)
            self._events.add_dispatches(n)
        for n in self._owned(_COPIES, ("name_id", "size", "dst_agent_id", "src_agent_id")):
            target, source = (self._device(n[f"{end}_agent_id"]) for end in ("dst", "src"))
            n |= links.of(n["event_id"])
            n |= {"queue": n["queue_id"], "stream": n["stream_id"], "bytes": n["size"]}
            n["device"] = np.where(target == MISSING, source, target)
            copied = (decoded(self._strings.get(i, b"")) for i in n["name_id"].tolist())
            n["name"] = _ints(self._events.copy_name(text) for text in copied)
            self._events.add_copies(n)

    def _pieces(self, table: str, columns: Sequence[str]) -> Iterator[dict[str, Ints]]:
        for piece in self._tables.pieces(table + self._suffix, columns):
            yield piece.numbers

    def _owned(self, table: str, columns: Sequence[str]) -> Iterator[dict[str, Ints]]:
        """The rows of a table of events, with the process, thread and device of each."""
        has_track = "track_id" in self._tables.columns(table + self._suffix)
        owners = ("track_id",) if has_track else _OWNERS
        for n in self._pieces(table, (*_TIMES, *columns, *owners)):
            if has_track:
                n |= _looked_up_rows(self._tracks, n["track_id"])
            n["process"] = self._process(n["pid"])
            n["device"] = self._device(n["agent_id"])
            yield n

    def _process(self, ids: Ints) -> Ints:
        for i in np.unique(ids).tolist():
            if i not in self._made:
                pid = self._pids.get(i, None if i == MISSING else i)
                self._made[i] = self._job.process(pid, self._metadata())
        return _looked_up(self._made, ids)

    def _device(self, agents: Ints) -> Ints:
        known = {i: device for i, (device, _) in self._agents.items()}
        others = MISSING if self._tables.columns(_AGENTS + self._suffix) else None
        return _looked_up(known, agents, others)

    def _metadata(self) -> dict[str, Any]:
        metadata: dict[str, Any] = {"format": "rocpd"}
        tags, values = (self._texts("rocpd_metadata", name) for name in ("tag", "value"))
        for i, tag in tags.items():
            if tag == b"schema_version" and _VERSION.fullmatch(values.get(i, b"")):
                metadata["schema"] = values[i].decode()
        devices = [{"id": i, "name": name} for i, name in sorted(self._agents.values()) if name]
        return metadata | ({"deviceProperties": devices} if devices else {})

    def _texts(self, table: str, column: str) -> dict[int, bytes]:
        found: dict[int, bytes] = {}
        for piece in self._tables.pieces(table + self._suffix, ("id",), column):
            ids = piece.numbers["id"].tolist()
            found |= {i: text for i, text in zip(ids, piece.texts, strict=True) if text}
        return found

    def _numbers(self, table: str, column: str) -> dict[int, int]:
        return {
            i: number
            for n in self._pieces(table, ("id", column))
            for i, number in zip(n["id"].tolist(), n[column].tolist(), strict=True)
            if number != MISSING
        }

    def _owners_of_tracks(self) -> dict[int, tuple[int, ...]]:
        return {
            row[0]: row[1:]
            for n in self._pieces(_TRACKS, ("id", *_OWNERS))
            for row in zip(*(n[c].tolist() for c in ("id", *_OWNERS)), strict=True)
        }

    def _devices(self) -> dict[int, tuple[int, str]]:
        """Number among the GPUs, and name, of each agent that is one."""
        kinds = self._texts(_AGENTS, "type")
        numbers = self._numbers(_AGENTS, "type_index")
        names = self._texts(_AGENTS, "product_name")
        shown = {i: text for i, name in names.items() if (text := decoded(name)).isprintable()}
        return {
            i: (numbers.get(i, i), shown.get(i, "")) for i, kind in kinds.items() if kind == b"GPU"
        }

    def _kinds(self) -> dict[int, str]:
        """Names of the categories of events."""
        table = self._texts("rocpd_info_category", "name")  # from 4.0 on
        return {i: decoded(text) for i, text in (table or self._strings).items()}

    def _messages(self, events: Ints) -> dict[int, bytes]:
        """Texts of the events of markers."""
        found: dict[int, bytes] = {}
        if not len(events):
            return found
        for piece in self._tables.pieces(_EVENTS + self._suffix, ("id",), "extdata"):
            here = np.flatnonzero(np.isin(piece.numbers["id"], events)).tolist()
            for i in here:
                text = piece.texts[i]
                try:
                    value: Any = orjson.loads(text or b"")
                except orjson.JSONDecodeError:  # packed, or cut off
                    continue
                message: Any = value.get("message") if isinstance(value, dict) else None  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
                if isinstance(message, str):
                    found[int(piece.numbers["id"][i])] = message.encode("utf-8", "surrogatepass")
        return found

    def _symbols(self) -> dict[int, _Symbol]:
        table = "rocpd_info_kernel_symbol"
        names = self._texts(table, "kernel_name") | self._texts(table, "display_name")
        registers = self._numbers(table, "arch_vgpr_count")
        text_id = self._events.report.texts.id
        return {
            i: _Symbol(text_id(decoded(name)), registers.get(i, MISSING))
            for i, name in names.items()
        }


class _Links:
    """What each event has in the table that all refer to."""

    def __init__(self, pieces: Callable[[str, Sequence[str]], Iterator[dict[str, Ints]]]) -> None:
        columns = ("id", "category_id", "stack_id", "parent_stack_id")
        parts = list(pieces(_EVENTS, columns))
        none = np.empty(0, np.int64)
        n = {c: np.concatenate([none, *(part[c] for part in parts)]) for c in columns}
        order = np.argsort(n["id"], kind="stable")
        self._n = {name: values[order] for name, values in n.items()}

    def events_of(self, categories: Sequence[int]) -> Ints:
        """The events of some categories."""
        return self._n["id"][np.isin(self._n["category_id"], categories)]

    def of(self, events: Ints) -> dict[str, Ints]:
        """Category, correlation id, and that of the call around, of some events."""
        ids = self._n["id"]
        at = np.minimum(np.searchsorted(ids, events), max(len(ids) - 1, 0))
        has = ids[at] == events if len(ids) else np.zeros(len(events), bool)
        names = {
            "category_id": "category_id",
            "stack_id": "correlation",
            "parent_stack_id": "parent",
        }
        found = {new: np.full(len(events), MISSING, np.int64) for new in names.values()}
        for name, new in names.items():
            found[new][has] = self._n[name][at[has]]
        # 0 stands for none.
        found["correlation"] = np.where(found["correlation"] <= 0, MISSING, found["correlation"])
        return found


def _looked_up(known: Mapping[int, int], ids: Ints, others: int | None = None) -> Ints:
    """What ids stand for; `others` for those that are not known, None: each for itself."""
    distinct, inverse = np.unique(ids, return_inverse=True)
    found = (known.get(i, i if others is None else others) for i in distinct.tolist())
    return _ints(found)[inverse.reshape(-1)]


def _looked_up_rows(known: Mapping[int, tuple[int, ...]], ids: Ints) -> dict[str, Ints]:
    distinct, inverse = np.unique(ids, return_inverse=True)
    rows = [known.get(i, (MISSING,) * len(_OWNERS)) for i in distinct.tolist()]
    table = np.array(rows, np.int64).reshape(-1, len(_OWNERS))[inverse.reshape(-1)]
    return {name: table[:, i] for i, name in enumerate(_OWNERS)}


def _ints(values: Iterable[int]) -> Ints:
    return np.array(list(values), np.int64)
