"""The trace formats that can be read: a new format is a module and a place in `READERS`."""

from __future__ import annotations

from pathlib import Path

from analyzer.trace import kineto
from analyzer.trace.ascend import reader as ascend
from analyzer.trace.events import Trace
from analyzer.trace.nsys import reader as nsys
from analyzer.trace.pftrace import reader as pftrace
from analyzer.trace.reader import DEFAULTS, ReadOptions, TraceReader
from analyzer.trace.rocprof import database as rocpd
from analyzer.trace.rocprof import json_file as rocprof_json
from analyzer.trace.xplane import reader as xplane

# The first that recognises a file reads it. Kineto is last and also gets what nobody recognises:
# its errors say what the file holds instead of a trace.
READERS: tuple[TraceReader, ...] = (
    *(rocpd, nsys, xplane, pftrace),
    *(rocprof_json, ascend, kineto),
)


def reader_of(path: Path) -> TraceReader:
    """Return the reader of a file, told by the file's content."""
    return next((reader for reader in READERS if reader.sniff(path)), READERS[-1])


def is_trace_folder(path: Path) -> bool:
    """Return whether a folder as a whole is one trace."""
    return path.is_dir() and any(reader.sniff(path) for reader in READERS)


def trace_folders(path: Path) -> list[Path]:
    """Return the folders that are a trace each: the folder itself, or what a profiler put in it."""
    if not path.is_dir():
        return []
    return [path] if is_trace_folder(path) else xplane.sessions(path)


def read(path: Path, options: ReadOptions = DEFAULTS) -> list[Trace]:
    """Read all traces in a file of any known format.

    Raises:
        TraceError: As of `TraceReader.read`.
    """
    return reader_of(path).read(path, options)
