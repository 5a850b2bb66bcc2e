"""Files that a person dropped on a page, into the store: here, or as uploads of the server."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import IO

import analyzer
from analyzer.errors import AnalyzerError
from analyzer.ingest import Ingested, ingest, sources
from analyzer.server.pages import Hosting, Principal
from schemas import packing
from schemas.errors import RunDirectoryError
from webapp import session, store

Files = Sequence[tuple[str, IO[bytes]]]

SAMPLES = Path(analyzer.__file__).parent / "samples"
_PATIENCE_S = 60.0


def load(files: Files) -> list[Ingested]:
    """Load uploaded files: a run directory if a manifest.json is among them, else each a trace.

    Args:
        files: Name as the browser gives it (the folders of a dropped folder too), and content.

    Raises:
        AnalyzerError: The store cannot be written, or nothing among the files can be read.
    """
    store.release()
    with tempfile.TemporaryDirectory(prefix="hostbound-upload-") as folder:
        root = Path(folder)
        if not (hosted := session.hosted()):
            _write(root, files)
            return [_named(found, root) for found in _ingest(_sources(root), root)]
        if _is_run_directory(files):
            _write(root, files)
            return _send(*hosted, sources.find(sorted(root.iterdir())), root)
    hosting, visitor = hosted
    hashes = [hosting.keep(visitor, name, None, content) for name, content in files]
    return hosting.results(visitor, hashes, _PATIENCE_S)


def load_samples() -> list[Ingested]:
    """Load the recorded runs that come with the package.

    Raises:
        AnalyzerError: The store cannot be written, or the package came without them.
    """
    store.release()
    paths = sorted(path.parent for path in SAMPLES.glob("*/manifest.json"))
    if hosted := session.hosted():
        return _send(*hosted, paths, SAMPLES)
    return ingest(paths, store.path(), jobs=1)


def _ingest(paths: Sequence[Path], root: Path) -> list[Ingested]:
    try:
        return ingest(paths, store.path(), jobs=1)
    except AnalyzerError as error:
        raise AnalyzerError(_without(root, str(error))) from error


def _named(found: Ingested, root: Path) -> Ingested:
    """Without the folder of this server that the files lay in for a moment."""
    return replace(found, error=_without(root, found.error)) if found.error else found


def _without(root: Path, text: str) -> str:
    """A message that names files as they were dropped."""
    return re.sub(rf"\S*{re.escape(root.name)}/(?:\d+|run)?/?", "", text)


def _is_run_directory(files: Files) -> bool:
    return any(PurePosixPath(name).name == "manifest.json" for name, _ in files)


def _write(root: Path, files: Files) -> None:
    """Write the files below `root`, wherever their names point.

    A dropped folder keeps its folders; single files stay apart, whatever their names.
    """
    is_run_directory = _is_run_directory(files)
    for i, (name, content) in enumerate(files):
        parts = PurePosixPath(name.replace("\\", "/")).parts
        safe = [part for part in parts if part not in ("..", ".", "/", "")]
        if not safe:
            continue
        if len(safe) == 1:
            place = root / ("run" if is_run_directory else str(i))
        else:
            place = root.joinpath(*safe[:-1])
        place.mkdir(parents=True, exist_ok=True)
        with (place / safe[-1]).open("wb") as out:
            out.write(content.read())


def _sources(root: Path) -> list[Path]:
    """What was dropped: a file that is alone in its folder as a file, whatever its name."""
    folders = [(path, list(path.iterdir())) for path in sorted(root.iterdir())]
    return [
        inside[0] if len(inside) == 1 and inside[0].is_file() else path for path, inside in folders
    ]


def _send(
    hosting: Hosting, visitor: Principal, paths: Sequence[Path], root: Path
) -> list[Ingested]:
    """On a server a run directory becomes an upload like any other: the archive that the collector
    would have sent.
    """
    failed: list[Ingested] = []
    hashes: list[str] = []
    for path in paths:
        try:
            archive = packing.open_archive(path)
            with tempfile.TemporaryFile(prefix="hostbound-upload-") as packed:
                archive.copy_to(packed)
                packed.seek(0)
                name = str(archive.name) if path.is_dir() else path.name
                hashes.append(hosting.keep(visitor, name, archive.format, packed))
        except RunDirectoryError as error:
            why = _without(root, str(error))
            failed.append(Ingested(str(path.relative_to(root)), "failed", error=why))
    return failed + hosting.results(visitor, hashes, _PATIENCE_S)
