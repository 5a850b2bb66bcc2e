"""What every reader of a trace returns: events as columns, and findings about them.

A reader of another format spells its events in the categories below, which are Kineto's. Times are
integer nanoseconds on the trace's clock.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from analyzer.trace.columns import Rows, used_ids

OLD_OP_CATEGORIES = ("operator",)  # PyTorch before 1.12
OP_CATEGORIES = ("cpu_op", *OLD_OP_CATEGORIES)
CALL_CATEGORIES = ("runtime", "driver")  # and all that end so: cuda_runtime, xpu_driver, ...
# Category of a device event to its kind.
DEVICE_CATEGORIES = {
    "kernel": "kernel",
    "gpu_memcpy": "memcpy",
    "memcpy": "memcpy",
    "gpu_memset": "memset",
    "memset": "memset",
    "mtia_ccp_events": "mtia",
    "gpu_graph": "graph",
}
STEP_CATEGORIES = ("step_annotation",)  # ranges that the format itself calls steps
ANNOTATION_CATEGORIES = ("user_annotation", *STEP_CATEGORIES)
PYTHON_CATEGORIES = ("python_function",)
# Known, and in no figure: what a profiler says of itself, of ranges on the device, of flows.
IGNORED_CATEGORIES = (
    "trace",
    "overhead",
    "gpu_user_annotation",
    "cuda_sync",
    "xpu_sync",
    "cuda_event",
    "cuda_profiler_range",
    "cpu_instant_event",
    "external_correlation",
    "collective_comm",
    "ac2g",
    "fwdbwd",
    "async_cpu_to_gpu",
    "glow_runtime",
    "mtia_insight",
    "mtia_counters",
    "hpu_op",
    "graph_node",
    "graph_event_node",
    "graph_host_node",
    "cuda_backtrace",
    "nvtx",
    "npu_sync",
    "npu_communication",
    "npu_overlap",
    "npu_dequeue",
    "gc",
)
# Top-level fields of a Kineto trace that its readers use; the rest may name people and machines.
KEPT_METADATA = (
    "schemaVersion",
    "deviceProperties",
    "distributedInfo",
    "displayTimeUnit",
    "baseTimeNanoseconds",
    "cuda_runtime_version",
    "cuda_driver_version",
    "cupti_version",
    "hip_runtime_version",
    "hip_driver_version",
    "record_shapes",
    "with_stack",
)


def is_call_category(category: str) -> bool:
    """Whether events of a category (in lower case) are calls of a device's API."""
    if category in IGNORED_CATEGORIES:
        return False
    return category in CALL_CATEGORIES or category.endswith(("_runtime", "_driver"))


def is_known_category(category: str) -> bool:
    """Whether it is known what events of a category (in lower case) are."""
    return is_call_category(category) or category in {
        *OP_CATEGORIES,
        *DEVICE_CATEGORIES,
        *ANNOTATION_CATEGORIES,
        *PYTHON_CATEGORIES,
        *IGNORED_CATEGORIES,
    }


@dataclass
class Finding:
    """Something about a trace that its reader should know.

    Attributes:
        code: Stable short name.
        severity: "warning" (figures may suffer) or "note".
        place: First place seen, in words, or None.
    """

    code: str
    severity: str
    count: int
    place: str | None
    message: str


@dataclass(frozen=True)
class FindingKind:
    """One row of a table of findings.

    Attributes:
        severity: As of the finding.
        sentence: The message, a `str.format` text; it may name `count` and any other value.
    """

    severity: str
    sentence: str


def finding(
    kinds: Mapping[str, FindingKind],
    code: str,
    count: int = 1,
    place: str | None = None,
    **values: object,
) -> Finding:
    """Return the finding of a code, with its sentence filled from `count` and `values`.

    Texts of a trace may hold line breaks; what is said is one line.
    """
    kind = kinds[code]
    message = " ".join(kind.sentence.format(count=count, **values).splitlines())
    return Finding(code, kind.severity, count, place, message)


@dataclass
class Trace:
    """One document's events as columns, and what was found on the way.

    Attributes:
        document: Place of the document in its file, from 0 on.
        rows: Kept events (`columns.ROW`), in file order, each with a time.
        strings: Texts by id.
        counts: Events by (ph, cat), of all phases.
        events: Events of the document, kept or not.
        json_bytes: Length of the document.
        metadata: The document's fields beside its events.
        thread_names: thread_name metadata by (pid, tid) JSON texts.
        captured_in: For each row the place in `rows` of the event in which its graph node was
            captured, or of the operator that launched it from another thread; -1 for none. None:
            the format does not tell.
        named_ops: For each row the id in `strings` of the op that a device event names itself, -1
            for none. None: the format names none.
    """

    path: Path
    document: int
    rows: Rows
    strings: list[str]
    counts: dict[tuple[str, str], int]
    events: int
    json_bytes: int
    metadata: dict[str, Any]
    thread_names: dict[tuple[str, str], str]
    findings: list[Finding] = field(default_factory=list[Finding])
    captured_in: npt.NDArray[np.int64] | None = None
    named_ops: npt.NDArray[np.int64] | None = None

    def keep(self, kept: npt.NDArray[np.bool_]) -> None:
        """Leave out the other rows; what was captured in one of them has no capture."""
        self.rows = self.rows[kept]
        if self.named_ops is not None:
            self.named_ops = self.named_ops[kept]
        if self.captured_in is not None:
            places = np.where(kept, np.cumsum(kept) - 1, -1)
            captured = self.captured_in[kept]
            self.captured_in = np.where(captured >= 0, places[captured], -1)

    def categories(self) -> dict[int, str]:
        """String id of each category that occurs, with its lower-case text."""
        ids = used_ids(self.rows["category"], len(self.strings))
        return {i: self.strings[i].lower() for i in ids}

    def places(self, wanted: Callable[[str], bool]) -> npt.NDArray[np.intp]:
        """Which rows are of categories, in lower case, that are wanted."""
        chosen = np.zeros(len(self.strings) + 1, bool)
        for i, name in self.categories().items():
            chosen[i] = wanted(name)
        return np.flatnonzero(chosen[self.rows["category"]])


@dataclass(frozen=True)
class Unread:
    """What was not read as it stands.

    Attributes:
        twice: Events that repeat another one, left out.
        unknown_calls: Events by category, of unknown ones, that were taken for calls.
        not_read: Events with a duration by category, of unknown ones, that are in no figure.
        overhead_ns: What the profiler says that it took itself.
        other_contexts: Device events in other contexts than the main one of their device.
        window: When the recording began and ended, as the profiler says; None if it does not.
    """

    twice: int
    unknown_calls: Mapping[str, int]
    not_read: Mapping[str, int]
    overhead_ns: int
    other_contexts: int
    window: tuple[int, int] | None


def unread(trace: Trace, unknown_calls: Counter[str], twice: int) -> Unread:
    """Count what of a trace is in no figure, or only by its looks."""
    overhead, spans = _durations(trace, "overhead"), _durations(trace, "trace")
    window = (int(spans[0].min()), int((spans[0] + spans[1]).max())) if len(spans[0]) else None
    unknown: Counter[str] = Counter()
    for (ph, category), count in trace.counts.items():
        if ph in ("X", "B") and not is_known_category(category.lower()):
            unknown[category.lower()] += count
    return Unread(
        twice,
        unknown_calls,
        unknown - unknown_calls,
        int(np.maximum(overhead[1], 0).sum()),
        _other_contexts(trace),
        window,
    )


def _other_contexts(trace: Trace) -> int:
    """How many device events are in another context than most of their device."""
    at = trace.places(lambda name: name in DEVICE_CATEGORIES)
    at = at[trace.rows["kernel"][at] >= 0]
    device = trace.rows["device"][at]
    device = np.where(device >= 0, device, trace.rows["pid"][at])
    pairs, counts = np.unique(
        device.astype(np.int64) << 32 | trace.rows["kernel"][at], return_counts=True
    )
    devices: list[int] = (pairs >> 32).tolist()
    found = list(zip(devices, counts.tolist(), strict=True))
    main: dict[int, int] = {}
    for one, count in found:
        main[one] = max(main.get(one, 0), count)
    return int(counts.sum()) - sum(main.values())


def _durations(trace: Trace, category: str) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Starts and durations of the events of a category."""
    rows = trace.rows[trace.places(lambda name: name == category)]
    return rows["ts"].astype(np.int64), rows["dur"].astype(np.int64)
