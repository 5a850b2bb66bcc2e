"""What the server says: one JSON object a line on stderr. Never a token, a cookie or a body."""

from __future__ import annotations

import logging
import sys
import threading
from datetime import datetime, timezone
from typing import Any, Protocol

import orjson


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


class _AsLines(logging.Handler):
    """Warnings of the libraries, as lines of the same kind."""

    def emit(self, record: logging.LogRecord) -> None:
        fields = {"logger": record.name, "level": record.levelname.lower()}
        text = record.getMessage()
        if record.exc_info:
            text += "\n" + logging.Formatter().formatException(record.exc_info)
        to_stderr("library", message=text, **fields)


def take_over() -> None:
    """Let libraries write through here too: warnings and worse, whatever they had set up."""
    handler = _AsLines(logging.WARNING)
    logging.root.handlers = [handler]
    logging.root.setLevel(logging.WARNING)
    for name in list(logging.root.manager.loggerDict):
        logger = logging.getLogger(name)
        if logger.handlers:
            logger.handlers = [handler]
            logger.propagate = False
        if name.startswith(("streamlit", "uvicorn")):
            logger.setLevel(logging.WARNING)
