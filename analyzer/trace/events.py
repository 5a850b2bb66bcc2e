"""What every reader of a trace returns: events as columns, and findings about them.

A reader of another format spells its events in the categories below, which are Kineto's. Times are
integer nanoseconds on the trace's clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from analyzer.trace.columns import Rows

OP_CATEGORIES = ("cpu_op", "operator")
CALL_CATEGORIES = (
    "cuda_runtime",
    "cuda_driver",
    "runtime",
    "driver",
    "hip_runtime",
    "hip_driver",
    "mtia_runtime",
    "xpu_runtime",
    "privateuse1_runtime",
    "privateuse1_driver",
)
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
ANNOTATION_CATEGORIES = ("user_annotation",)
PYTHON_CATEGORIES = ("python_function",)


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
    """Return the finding of a code, with its sentence filled from `count` and `values`."""
    kind = kinds[code]
    message = kind.sentence.format(count=count, **values)
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
            captured, -1 for none. None: the format does not tell.
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

    def categories(self) -> dict[int, str]:
        """String id of each category that occurs, with its lower-case text."""
        ids: list[int] = np.unique(self.rows["category"]).tolist() if len(self.rows) else []
        return {i: self.strings[i].lower() for i in ids}
