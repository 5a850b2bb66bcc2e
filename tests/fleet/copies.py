"""Copies of a trace that differ in one number, so that each is a run of its own."""

from __future__ import annotations

import gzip
from pathlib import Path


def copies(source: Path, folder: Path, count: int) -> list[Path]:
    """Write `count` copies of a trace (.json.gz, or .json) to a new folder, as .json.gz.

    A copy is two gzip members, of which the large one is compressed once for all.
    """
    folder.mkdir(parents=True)
    data = source.read_bytes()
    text = gzip.decompress(data) if source.suffix == ".gz" else data
    at = text.index(b"{") + 1
    rest = gzip.compress(text[at:], compresslevel=6, mtime=0)
    written: list[Path] = []
    for number in range(count):
        path = folder / f"copy{number:04}.json.gz"
        head = gzip.compress(text[:at] + b'"copy":%d,' % number, mtime=0)
        path.write_bytes(head + rest)
        written.append(path)
    return written
