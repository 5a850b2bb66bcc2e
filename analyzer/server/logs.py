"""What the server says: one JSON object a line on stderr. Never a token, a cookie or a body."""

from __future__ import annotations

import logging
import sys
import threading
import time
import traceback
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Protocol

import orjson

_QUIET_S = 10.0  # a cause that was told is told again
_MOST_CAUSES = 1000
_MOST_STEPS = 12
_LONGEST = 500


class Log(Protocol):
    """Something that takes an event and its fields."""

    def __call__(self, event: str, **fields: Any) -> None: ...


_lock = threading.Lock()


def to_stderr(event: str, **fields: Any) -> None:
    """Write one line; a reader that has gone away is no reason to fail."""
    now = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
    line = orjson.dumps({"at": now, "event": event, **fields}, default=str).decode()
    try:
        with _lock:
            sys.stderr.write(line + "\n")
            sys.stderr.flush()
    except (OSError, ValueError):
        pass


def fault(error: BaseException) -> dict[str, Any]:
    """What a line says of an error that is the server's own: its type, its text in one line, and
    the places that it passed, the innermost last.
    """
    steps = traceback.extract_tb(error.__traceback__)[-_MOST_STEPS:]
    return {
        "error": f"{type(error).__name__}: {' '.join(str(error).split())[:_LONGEST]}",
        "where": [f"{Path(s.filename).name}:{s.lineno} {s.name}" for s in steps],
    }


class _AsLines(logging.Handler):
    """Warnings of the libraries, as lines of the same kind; one that comes again and again is
    counted meanwhile.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(logging.WARNING)
        self._clock = clock
        self._seen: dict[tuple[str, str], tuple[float, int]] = {}

    def emit(self, record: logging.LogRecord) -> None:
        cause = (record.name, str(record.msg)[:_LONGEST])
        now = self._clock()
        said, repeated = self._seen.get(cause, (-_QUIET_S, 0))
        if now - said < _QUIET_S:
            self._seen[cause] = (said, repeated + 1)
            return
        if len(self._seen) >= _MOST_CAUSES:
            self._seen.clear()
        self._seen[cause] = (now, 0)
        fields: dict[str, Any] = {"logger": record.name, "level": record.levelname.lower()}
        if record.exc_info and record.exc_info[1]:
            fields |= fault(record.exc_info[1])
        if repeated:
            fields["repeated"] = repeated
        message = " ".join(record.getMessage().split())[:_LONGEST]
        to_stderr("library", message=message, **fields)


def take_over() -> None:
    """Let libraries write through here too: warnings and worse, whatever they had set up."""
    handler = _AsLines()
    logging.root.handlers = [handler]
    logging.root.setLevel(logging.WARNING)
    for name in list(logging.root.manager.loggerDict):
        logger = logging.getLogger(name)
        if logger.handlers:
            logger.handlers = [handler]
            logger.propagate = False
        if name.startswith(("streamlit", "uvicorn")):
            logger.setLevel(logging.WARNING)
