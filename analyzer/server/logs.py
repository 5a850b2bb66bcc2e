"""What the server says: one JSON object a line on stderr. Never a token, a cookie or a body."""

from __future__ import annotations

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
