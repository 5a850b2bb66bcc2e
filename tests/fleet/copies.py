"""Copies of a trace that differ in one number, so that each is a run of its own."""

from __future__ import annotations

import gzip
from pathlib import Path


def copies(source: Path, folder: Path, count: int) -> list[Path]:
    """Write `count` copies of a trace (.json.gz) to a new folder."""
    folder.mkdir()
    text = gzip.decompress(source.read_bytes())
    at = text.index(b"{") + 1
    written: list[Path] = []
    for number in range(count):
        path = folder / f"copy{number:04}.json.gz"
        path.write_bytes(
            gzip.compress(text[:at] + b'"copy": %d,' % number + text[at:], compresslevel=1)
        )
        written.append(path)
    return written
