"""Copies of what runs were loaded from, beside the store, each under its SHA-256.

`hostbound.duckdb.blobs/<sha256>`; a lake's are beside the lake file. A file of several runs is kept
once. Loading keeps them if asked to, `export` gives them back, `verify` hashes them again.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from pathlib import Path

from analyzer.errors import AnalyzerError
from schemas.run_directory import file_sha256


def keep(folder: Path, files: Iterable[tuple[Path, str]]) -> None:
    """Copy files, each whole or not at all. What is there already stays.

    Copies, not hard links: a trace that is edited later must not change its original with it.

    Args:
        folder: Where the store keeps originals; made if it is not there.
        files: Path and SHA-256 of each.

    Raises:
        AnalyzerError: A file changed since it was hashed, or the disk refuses.
    """
    for path, sha256 in files:
        target = folder / sha256
        temporary = folder / f".{sha256}.{os.getpid()}"
        try:
            if target.exists():
                continue
            folder.mkdir(exist_ok=True)
            shutil.copyfile(path, temporary)
            if file_sha256(temporary) != sha256:
                raise AnalyzerError(f"{path} changed while it was loaded; load it again.")
            os.replace(temporary, target)
        except OSError as error:
            raise AnalyzerError(
                f"{path} cannot be kept in {folder}: {error.strerror}; free some space, or "
                "load without --keep-originals."
            ) from error
        finally:
            temporary.unlink(missing_ok=True)


def give_back(folder: Path, files: Iterable[tuple[str, str, str]], out: Path) -> list[Path]:
    """Copy originals to a folder that is there, under the names that they had.

    Args:
        folder: Where the store keeps originals.
        files: (name, role, SHA-256) of each; a name that two share gets its role in front.

    Raises:
        AnalyzerError: One was not kept, or is damaged.
        OSError: The disk refuses.
    """
    written: list[Path] = []
    for name, role, sha256 in files:
        kept = folder / sha256
        if not kept.is_file():
            raise AnalyzerError(
                f"{name} was not kept: {kept} is not there. Originals are kept by `analyzer ingest "
                "--keep-originals`."
            )
        target = out / name
        if target in written:
            target = out / f"{role}-{name}"
        shutil.copyfile(kept, target)
        if file_sha256(target) != sha256:
            raise AnalyzerError(f"{kept} is damaged: its SHA-256 is not its name.")
        written.append(target)
    return written
