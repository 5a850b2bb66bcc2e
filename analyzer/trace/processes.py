"""A file into which several processes were merged: one trace for each.

Ids are of one process: two ranks may use the same correlations, devices, streams and step names. So
what each process did is told apart before anything is linked, or the file is refused.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from analyzer.trace.columns import HAS_CORRELATION, used_ids
from analyzer.trace.events import (
    DEVICE_CATEGORIES,
    OP_CATEGORIES,
    FindingKind,
    Trace,
    finding,
    is_call_category,
)
from analyzer.trace.stream import TraceError

Ints = npt.NDArray[np.int64]

FINDINGS = {
    "merged_processes": FindingKind(
        "note",
        "the file holds events of {count} processes ({named}); each is loaded as a trace of its "
        "own, this is {own}",
    ),
    "shared_device": FindingKind(
        "note",
        "{count} device events of other processes of the file are on a device of the same id: one "
        "GPU that they share, or one for each",
    ),
}
# What mergers of ranks write before a process or device id: "[TP00] 80".
_MARK = re.compile(r'^"\[([^\]]+)\] ?')


def split_processes(trace: Trace) -> list[Trace]:
    """Return a trace for each process whose ops or calls are in a trace; mostly the trace itself.

    Raises:
        TraceError: Which process a device event belongs to cannot be told.
    """
    names = _processes(trace)
    if len(names) < 2:
        return [trace]
    owner = _owners(trace, names)
    parts: list[Trace] = []
    rest = Counter(trace.counts)
    for number, name in enumerate(names):
        rows = trace.rows[owner == number]
        counts = _counts(trace, rows["category"], rest)
        rest -= counts
        told = finding(FINDINGS, "merged_processes", len(names), named=", ".join(names), own=name)
        shared = _on_devices_of(trace, owner, number)
        both = [told, *([finding(FINDINGS, "shared_device", shared)] if shared else [])]
        parts.append(replace(trace, rows=rows, counts=dict(counts), findings=both))
    # Whatever has no row, metadata and flows, is counted with the first.
    parts[0].counts = dict(Counter(parts[0].counts) + rest)
    parts[0].findings = [*trace.findings, *parts[0].findings]
    for part in parts:
        part.events = sum(part.counts.values())
        part.json_bytes = trace.json_bytes if part is parts[0] else 0
    return parts


def _on_devices_of(trace: Trace, owner: Ints, number: int) -> int:
    """How many device events of other processes are on the devices of one.

    Ranks that a merger marked have a device each, whatever its id.
    """
    device = trace.places(lambda category: category in DEVICE_CATEGORIES)
    rows = trace.rows[device]
    ids = np.where(rows["device"] >= 0, rows["device"], rows["pid"])
    pids: list[int] = np.unique(rows["pid"]).tolist()
    if any(_MARK.match(trace.strings[pid]) for pid in pids if pid >= 0):
        return 0
    mine = owner[device] == number
    return int((~mine & np.isin(ids, ids[mine])).sum())


def _processes(trace: Trace) -> list[str]:
    """Names of the processes with ops or calls: marks of ranks, where there are some, else pids."""
    with_ops = _pids(trace, lambda category: category in OP_CATEGORIES)
    with_calls = _pids(trace, is_call_category)
    # Some runtimes write calls under the device's number.
    of_device = _pids(trace, lambda category: category in DEVICE_CATEGORIES)
    found = sorted(with_ops | (with_calls - of_device))
    return list(dict.fromkeys(_name(trace, pid) for pid in found))


def _pids(trace: Trace, wanted: Callable[[str], bool]) -> set[int]:
    return set(used_ids(trace.rows["pid"][trace.places(wanted)], len(trace.strings)))


def _name(trace: Trace, pid: int) -> str:
    text = trace.strings[pid] if pid >= 0 else ""
    mark = _MARK.match(text)
    return mark[1] if mark else text


def _owners(trace: Trace, names: list[str]) -> Ints:
    """The number of the process of each row; rows of no process are the first one's."""
    numbers = {name: number for number, name in enumerate(names)}
    pids: list[int] = np.unique(trace.rows["pid"]).tolist()
    by_pid = {pid: numbers.get(_name(trace, pid), -1) for pid in pids}
    owner = np.array([by_pid[pid] for pid in trace.rows["pid"].tolist()], np.int64)
    device = trace.places(lambda category: category in DEVICE_CATEGORIES)
    unmarked = device[owner[device] < 0]
    if len(unmarked):
        owner[unmarked] = _owners_of_device_events(trace, names, owner, unmarked)
    return np.maximum(owner, 0)


def _owners_of_device_events(trace: Trace, names: list[str], owner: Ints, device: Ints) -> Ints:
    """The process of each device event: the one that used its device alone, or its correlation."""
    rows = trace.rows
    calls = trace.places(is_call_category)
    calls = calls[((rows["flags"][calls] & HAS_CORRELATION) != 0) & (owner[calls] >= 0)]
    of_correlation = _single_owners(rows["correlation"][calls], owner[calls])
    own: list[int] = [of_correlation.get(c, -1) for c in rows["correlation"][device].tolist()]
    devices: list[tuple[int, int]] = list(
        zip(rows["device"][device].tolist(), rows["pid"][device].tolist(), strict=True)
    )
    users: dict[tuple[int, int], set[int]] = {}
    for one, process in zip(devices, own, strict=True):
        if process >= 0:
            users.setdefault(one, set()).add(process)
    alone = {one: min(found) for one, found in users.items() if len(found) == 1}
    result = np.array(
        [alone.get(one, process) for one, process in zip(devices, own, strict=True)], np.int64
    )
    unknown = int((result < 0).sum())
    if unknown:
        raise TraceError(
            f"{trace.path} holds events of {len(names)} processes ({', '.join(names)}), and of "
            f"{unknown} device events it does not tell whose they are: correlation ids are of one "
            "process. Give each process's own file."
        )
    return result


def _single_owners(correlation: Ints, owner: Ints) -> Mapping[int, int]:
    """The process of each correlation id that only one uses."""
    found: dict[int, int] = {}
    for one, process in zip(correlation.tolist(), owner.tolist(), strict=True):
        found[one] = process if found.get(one, process) == process else -1
    return found


def _counts(
    trace: Trace, category: Ints, rest: Counter[tuple[str, str]]
) -> Counter[tuple[str, str]]:
    """Rows by (ph, cat); those that are no whole events of `rest` were begun and ended."""
    found: Counter[tuple[str, str]] = Counter()
    rows: Counter[int] = Counter(category.tolist())
    for i, count in rows.items():
        whole = min(count, rest["X", trace.strings[i]])
        found += Counter({("X", trace.strings[i]): whole, ("B", trace.strings[i]): count - whole})
    return found
