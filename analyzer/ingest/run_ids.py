"""The ordinals of a run: its names, shapes and threads, and where each trace's ids begin.

Ids go on from trace to trace.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from analyzer.attribution.events import LinkedTrace
from analyzer.attribution.intervals import Ints


class Texts:
    """Texts of one run by ordinal."""

    def __init__(self) -> None:
        self.ids: dict[str, int] = {}

    def id(self, text: str) -> int:
        """Return the ordinal of a text; a new one if the run has not seen it."""
        return self.ids.setdefault(text, len(self.ids))

    def add(self, strings: Sequence[str], used: Ints) -> Ints:
        """Return the run's ordinal of each of a trace's strings; -1 for one that is not used.

        Args:
            used: String ids, -1 among them; only these get an ordinal.

        The result has one more entry, so that string id -1 stays -1.
        """
        result = np.full(len(strings) + 1, -1, np.int64)
        string_ids: list[int] = np.unique(used).tolist()
        for i in string_ids:
            if i >= 0:
                result[i] = self.id(strings[i])
        return result


class Threads:
    """Threads of one run by ordinal.

    Attributes:
        ids: By (pid, tid) JSON texts.
        names: What traces call them.
    """

    def __init__(self) -> None:
        self.ids: dict[tuple[str, str], int] = {}
        self.names: dict[tuple[str, str], str] = {}

    def add(self, linked: LinkedTrace) -> Ints:
        """Return the run's ordinal of each thread of a trace, and -1 for -1."""
        names = linked.trace.thread_names
        self.names |= {pair: names[pair] for pair in linked.threads if pair in names}
        known = [self.ids.setdefault(pair, len(self.ids)) for pair in linked.threads]
        return np.array([*known, -1], np.int64)


@dataclass(frozen=True)
class FirstIds:
    """The first id of a trace in each table, and its own number."""

    trace: int = 0
    op: int = 0
    call: int = 0
    device_event: int = 0
    step: int = 0

    def after(self, linked: LinkedTrace) -> FirstIds:
        """Return the first ids of the next trace."""
        return FirstIds(
            self.trace + 1,
            self.op + len(linked.ops.start),
            self.call + len(linked.calls.start),
            self.device_event + len(linked.device.start),
            self.step + len(linked.steps),
        )


@dataclass
class RunIds:
    """What the traces of a run number together."""

    names: Texts = field(default_factory=Texts)
    shapes: Texts = field(default_factory=Texts)
    threads: Threads = field(default_factory=Threads)
    first: FirstIds = field(default_factory=FirstIds)
