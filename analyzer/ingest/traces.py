"""The first two stages of a run: read the traces of its files, link them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from threading import Thread

from analyzer.attribution import graph_replay
from analyzer.attribution.events import LinkedTrace
from analyzer.attribution.links import link_trace
from analyzer.errors import AnalyzerError
from analyzer.ingest.sources import Source, SourceFile
from analyzer.trace import formats
from analyzer.trace.events import Trace
from analyzer.trace.processes import split_processes
from analyzer.trace.reader import ReadOptions


@dataclass(frozen=True)
class SourceTrace:
    """One trace of a source, and the file that it is in."""

    file: SourceFile
    trace: Trace

    @property
    def is_timed(self) -> bool:
        """Whether it counts in figures; else it only has the capture of others' graphs."""
        return self.file.role == "trace"


def read_traces(source: Source, progress: Callable[[int], None] | None) -> list[SourceTrace]:
    """Read all traces of a source, one a process, the timed ones first.

    Raises:
        TraceError: One cannot be read, or the processes in it cannot be told apart.
    """
    options = ReadOptions(
        keep_python=source.options.python_functions,
        most_bytes=source.options.most_json_bytes,
        most_events=source.options.most_events,
        progress=progress,
    )
    # A file is hashed by one core while the other reads it.
    hasher = Thread(target=_hash_all, args=(source,), name="hash")
    hasher.start()
    read = [
        SourceTrace(file, trace)
        for file in source.files
        if file.role in ("trace", "capture")
        for merged in formats.read(file.path, options)
        for trace in split_processes(merged)
    ]
    hasher.join()
    return sorted(read, key=lambda one: not one.is_timed)


def _hash_all(source: Source) -> None:
    # An error is met again, and raised, where the hash is asked for.
    with suppress(AnalyzerError):
        for file in source.files:
            _ = file.sha256


def link_traces(read: Sequence[SourceTrace], step_globs: Sequence[str]) -> list[LinkedTrace]:
    """Link the timed traces; graph replays take their ops from captures in any trace."""
    captures = [
        capture
        for one in read
        if not one.is_timed
        for capture in graph_replay.captures(link_trace(one.trace))
    ]
    linked: list[LinkedTrace] = []
    for one in read:
        if one.is_timed:
            trace = link_trace(one.trace, step_globs)
            graph_replay.resolve_replay_ops(trace, graph_replay.captures(trace) + captures)
            linked.append(trace)
    return linked
