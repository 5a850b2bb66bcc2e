"""Nodes of CUDA graphs: where the node that a kernel ran as was captured.

A node is created when a graph is captured, and cloned when the graph is instantiated; each clone
names its original. The creation's time and thread tell which operator captured it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from analyzer.trace.nsys.report import EventTables
from analyzer.trace.tabular.report import Category, flags
from analyzer.trace.tabular.tables import MISSING, Ints

_TABLES = ("CUDA_GRAPH_NODE_EVENTS", "CUDA_GRAPH_EVENTS")  # schema 3, schema 2


@dataclass(frozen=True, order=True)
class _Made:
    """A creation or clone of a node."""

    start: int
    dur: int
    thread: int
    name: int
    origin: int


def captured_nodes(source: EventTables, device: Sequence[Category]) -> Category:
    """Return for each node that ran the event in which it was captured, with the node that ran.

    Args:
        device: The categories of device events.
    """
    wanted = {
        (process, node)
        for category in device
        for process, node in category.distinct("process", "node")
        if node != MISSING
    }
    made = _made(source) if wanted else {}
    found = [(*key, made[origin]) for key in sorted(wanted) if (origin := _origin(key, made))]
    nodes = Category("graph_node")
    if found:
        process, node = np.array([key for *key, _ in found], np.int64).T
        rows = [(event.start, event.dur, event.thread, event.name) for *_, event in found]
        start, dur, thread, name = np.array(rows, np.int64).T
        n: dict[str, Ints] = {"process": process, "start": start, "dur": dur, "globalTid": thread}
        nodes.add(**source.thread_columns(n), node=node, name=name, flags=flags(n))
    return nodes


def _made(source: EventTables) -> dict[tuple[int, int], _Made]:
    """The first creation or clone of each (process, node)."""
    made: dict[tuple[int, int], _Made] = {}
    columns = ("globalTid", "nameId", "graphNodeId", "originalGraphNodeId")
    for table in _TABLES:
        if not source.has(table, "graphNodeId"):
            continue
        for piece in source.pieces(table, columns):
            n = source.timed(piece, "graph_node", "globalTid")
            keys = zip(n["process"].tolist(), n["graphNodeId"].tolist(), strict=True)
            names = ("start", "dur", "globalTid", "nameId", "originalGraphNodeId")
            events = zip(*(n[name].tolist() for name in names), strict=True)
            for key, event in zip(keys, events, strict=True):
                made[key] = min(made.get(key, _Made(*event)), _Made(*event))
    return made


def _origin(key: tuple[int, int], made: dict[tuple[int, int], _Made]) -> tuple[int, int] | None:
    """The node that was captured, from clone to clone; None if it is not known."""
    if key not in made:
        return None
    seen = {key}
    while True:
        origin = (key[0], made[key].origin)
        if origin in seen or origin not in made:
            return key
        seen.add(origin)
        key = origin
