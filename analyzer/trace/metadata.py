"""What a Kineto document says beside its events, as it is kept: of threads, and of itself."""

from __future__ import annotations

import json
import re
from typing import Any, cast

import numpy as np

from analyzer.trace import repair
from analyzer.trace.columns import Rows

_SKIPPED = {"traceEvents", "INFO", "ERROR", "WARNING"}
# Kineto's words for what it could not keep: "Exceeded max GPU buffer count ... terminating".
_LOSSES = re.compile(r"(?i)max gpu buffer|buffer count|\bdropp?(ed|ing)\b|\blost\b.*record")


def names_of_threads(
    names: dict[tuple[str, str], str], rows: Rows, strings: list[str]
) -> dict[tuple[str, str], str]:
    """The names of threads that have rows: a trace may name any number of others."""
    if not names:
        return {}

    def texts(column: str) -> set[str]:
        ids: list[int] = np.unique(rows[column]).tolist()
        return {strings[i] if i >= 0 else "" for i in ids}

    pids, tids = texts("pid"), texts("tid")
    return {
        (pid, tid): name.strip()
        for (pid, tid), name in names.items()
        if pid in pids and tid in tids
    }


def quoted(text: bytes) -> str:
    """A text as an error may quote it; bytes of another format may be anybody's secret."""
    shown = text.decode("utf-8", "backslashreplace")
    return json.dumps(shown) if shown.isprintable() else "binary data"


def kept(metadata: dict[str, Any]) -> dict[str, Any]:
    """The fields beside the events without logs; the trace's name without the folders it lay in."""
    fields = {key: value for key, value in metadata.items() if key not in _SKIPPED}
    name = fields.get("traceName")
    if isinstance(name, str):
        fields["traceName"] = re.split(r"[/\\]", name)[-1]
    return fields


def losses(metadata: dict[str, Any]) -> int:
    """How many messages of the profiler speak of events or buffers that it lost."""
    logs = [metadata.get(key) for key in ("WARNING", "ERROR")]
    messages = [text for log in logs if isinstance(log, list) for text in cast("list[Any]", log)]
    return sum(isinstance(text, str) and bool(_LOSSES.search(text)) for text in messages)


def plain(value: Any) -> Any:
    """Numbers as Python numbers: metadata is not measured."""
    if isinstance(value, repair.Number):
        try:
            return int(value)
        except ValueError:
            return float(value)
    if isinstance(value, list):
        return [plain(item) for item in cast("list[Any]", value)]
    if isinstance(value, dict):
        return {key: plain(item) for key, item in cast("dict[str, Any]", value).items()}
    return value
