"""Who owns a store on this machine: a note beside it that a running server leaves for the command
line, with its address and a secret that only the store's owner can read.
"""

from __future__ import annotations

import json
import os
import secrets
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

_ANSWER_S = 2.0


@dataclass(frozen=True)
class Owner:
    """A server that answers for a store."""

    url: str
    pid: int
    started: float
    secret: str


def note_of(db: Path) -> Path:
    """Where the note about a store lies."""
    return db.with_name(db.name + ".server")


def leave_note(db: Path, url: str, secret: str) -> None:
    """Say that this process serves a store."""
    path = note_of(db)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.unlink(missing_ok=True)
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "w", encoding="utf-8") as stream:
        json.dump(asdict(Owner(url, os.getpid(), time.time(), secret)), stream)
    os.replace(temporary, path)


def take_note_away(db: Path) -> None:
    """Remove this process's own note."""
    found = read_note(db)
    if found is not None and found.pid == os.getpid():
        note_of(db).unlink(missing_ok=True)


def new_secret() -> str:
    """A secret for one run of a server."""
    return "hbl_" + secrets.token_urlsafe(32)


def read_note(db: Path) -> Owner | None:
    """The note about a store, whoever left it; None without a readable one."""
    try:
        value: Any = json.loads(note_of(db).read_text(encoding="utf-8"))
        fields = cast("dict[str, Any]", value)
        return Owner(
            str(fields["url"]), int(fields["pid"]), float(fields["started"]), str(fields["secret"])
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None


def find(db: Path) -> tuple[Owner | None, str | None]:
    """The server that owns a store and answers; else None, and a remark about an old note."""
    found = read_note(db)
    if found is None:
        return None, None
    if _answers(found):
        return found, None
    return None, f"{note_of(db)} names a server (pid {found.pid}) that does not answer; ignored."


def _answers(owner: Owner) -> bool:
    try:
        os.kill(owner.pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass  # it runs, as somebody else
    import urllib.request  # deferred: only where there is a note

    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(owner.url + "/healthz", timeout=_ANSWER_S) as answer:
            return answer.status == 200
    except OSError:
        return False
