"""Writes a run directory whole or not at all: built beside its place, the manifest last, then
moved.

An interrupted recording leaves nothing that looks like a run.
"""

from __future__ import annotations

import gzip
import os
import shutil
import tempfile
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

import orjson

from collector.errors import CollectorError
from schemas.manifest import Manifest
from schemas.run_directory import MANIFEST, file_sha256

_COPY_BYTES = 1 << 20


class RunDirectoryWriter:
    """A run directory in the making; use as a context manager.

    Raises:
        CollectorError: The target exists, or its folder cannot be written.
    """

    def __init__(self, target: Path) -> None:
        self.target = target
        if target.exists():
            raise CollectorError(f"{target} exists already; choose another --out or --name.")
        self._made_parent = not target.parent.exists()
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            self.path = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
        except OSError as error:
            raise CollectorError(f"{target.parent} cannot be written: {error.strerror}.") from error
        self._done = False

    def __enter__(self) -> RunDirectoryWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if not self._done:
            shutil.rmtree(self.path, ignore_errors=True)
            if self._made_parent:
                with suppress(OSError):  # somebody else has put something there
                    self.target.parent.rmdir()

    def add_json(self, name: str, value: Any) -> None:
        """Write one JSON file."""
        (self.path / name).write_bytes(orjson.dumps(value) + b"\n")

    def add_gzip(self, name: str, source: Path) -> None:
        """Compress a file into the run, in pieces; the source is removed."""
        with source.open("rb") as plain, gzip.open(self.path / name, "wb", 6) as packed:
            shutil.copyfileobj(plain, packed, _COPY_BYTES)
        source.unlink()

    def finish(self, manifest: Manifest) -> Path:
        """Write the manifest and move the folder to its place; returns it."""
        self.seal(manifest)
        return self.publish()

    def seal(self, manifest: Manifest) -> None:
        """Hash the files and write the manifest, last of all."""
        hashes = {path.name: file_sha256(path) for path in sorted(self.path.iterdir())}
        text = replace(manifest, files=hashes).to_json()
        (self.path / MANIFEST).write_text(text, encoding="utf-8")
        self.path.chmod(0o755)

    def publish(self) -> Path:
        """Move the sealed folder to its place; returns it."""
        os.rename(self.path, self.target)
        self._done = True
        return self.target
