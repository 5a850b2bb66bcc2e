"""Files that a person dropped on a page, into the store: here, or as uploads of the server."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import IO

from analyzer.ingest import Ingested, ingest, sources
from analyzer.server.pages import Hosting, Principal
from schemas import packing
from schemas.errors import RunDirectoryError
from webapp import session, store

Files = Sequence[tuple[str, IO[bytes]]]

_PATIENCE_S = 60.0


def load(files: Files) -> list[Ingested]:
    """Load uploaded files: a run directory if a manifest.json is among them, else each a trace.

    Args:
        files: Name as the browser gives it (the folders of a dropped folder too), and content.

    Raises:
        AnalyzerError: The store cannot be written, or nothing among the files can be read.
    """
    store.release()
    if hosted := session.hosted():
        return _send(*hosted, files)
    with tempfile.TemporaryDirectory(prefix="hostbound-upload-") as folder:
        root = Path(folder)
        _write(root, files)
        return ingest(_sources(root), store.path(), jobs=1)


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


def _send(hosting: Hosting, visitor: Principal, files: Files) -> list[Ingested]:
    """On a server a file becomes an upload like any other, and a run directory one archive: the
    one that the collector would have sent.
    """
    if not _is_run_directory(files):
        hashes = [hosting.keep(visitor, name, None, content) for name, content in files]
        return hosting.results(visitor, hashes, _PATIENCE_S)
    failed: list[Ingested] = []
    hashes: list[str] = []
    with tempfile.TemporaryDirectory(prefix="hostbound-upload-") as folder:
        root = Path(folder)
        _write(root, files)
        for path in sources.find(sorted(root.iterdir())):
            shown = str(path.relative_to(root))
            try:
                archive = packing.open_archive(path)
                with tempfile.TemporaryFile(prefix="hostbound-upload-") as packed:
                    archive.copy_to(packed)
                    packed.seek(0)
                    name = str(archive.name) if path.is_dir() else path.name
                    hashes.append(hosting.keep(visitor, name, archive.format, packed))
            except RunDirectoryError as error:
                why = str(error).replace(str(path), shown)
                failed.append(Ingested(shown, "failed", error=why))
    return failed + hosting.results(visitor, hashes, _PATIENCE_S)
