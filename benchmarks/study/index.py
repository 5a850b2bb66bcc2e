"""The index of a recording: a line a job that is over, and how it went.

A job whose last line says "done" is not done again.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.study import jobs

INDEX = "index.jsonl"


def read(out: Path) -> list[dict[str, Any]]:
    """What was done, and how it went."""
    path = out / INDEX
    return [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []


def note(out: Path, name: str, state: str, seconds: float, reason: str | None = None) -> None:
    job = next((asdict(job) for job in jobs.planned() if job.name == name), {"name": name})
    line = {**job, "state": state, "seconds": round(seconds, 2), "reason": reason}
    line["commit"] = os.environ.get("HOSTBOUND_COMMIT")
    with (out / INDEX).open("a", encoding="utf-8") as stream:
        stream.write(json.dumps(line) + "\n")


def say(text: str) -> None:
    sys.stderr.write(f"study: {text}\n")
    sys.stderr.flush()
