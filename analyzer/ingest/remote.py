"""`ingest` into a store that a server owns: the same loads, through its API on loopback.

What comes back is what loading directly would have given, so a command prints the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from analyzer.errors import AnalyzerError
from analyzer.ingest import sources
from analyzer.ingest.ingested import Ingested
from analyzer.ingest.ranks.files import Found
from analyzer.store.discovery import Owner
from analyzer.trace.events import Finding
from schemas import packing
from schemas.endpoint import parse_endpoint
from schemas.errors import HostboundError
from schemas.upload_client import Conversion, GaveUp, Uploader

Progress = Callable[[str, int, int], None]

_PATIENCE_S = 10.0


def ingest(
    owner: Owner,
    found: Sequence[Found],
    name: str | None,
    options: sources.Options,
    replace_runs: bool,
    progress: Progress | None,
) -> list[Ingested]:
    """Load what was found and joined, one entry each; parameters as of `load.ingest`.

    Raises:
        AnalyzerError: The server went away.
    """
    endpoint = parse_endpoint(owner.url, owner.secret)
    results: dict[int, Ingested] = {}
    sent: dict[str, int] = {}  # the place in `found` of each content that is not waited for yet

    def wait(sha256: str) -> None:
        place = sent.pop(sha256)
        try:
            conversion = Uploader(endpoint, _PATIENCE_S).wait(sha256)
        except GaveUp as error:
            raise AnalyzerError(
                f"{owner.url} does not answer: {error}; is the server up?"
            ) from error
        results[place] = _ingested(found[place].path, conversion)

    for i, one in enumerate(found):
        path = one.path
        try:
            # Said here as it would be without a server, before anything is sent.
            sources.describe(one, name, options)
            archive = replace(_packed(one, options.capture_trace), format=None, name=name)
            sha256 = archive.sha256()
            if sha256 in sent:
                wait(sha256)  # the server tells of a content's last conversion only
            report = _reporter(path, progress)
            uploader = Uploader(endpoint, _PATIENCE_S, progress=report)
            # Again also what is stored: the server says so, and whether options differ.
            once = {"replace": replace_runs, "again": True}
            uploader.send(archive, sha256, _metadata(one, options), once)
            sent[sha256] = i
        except GaveUp as error:
            why = f"{owner.url} did not take {path}: {error}; try again."
            results[i] = Ingested(str(path), "failed", error=why)
        except HostboundError as error:
            results[i] = Ingested(str(path), "failed", error=str(error))
    for sha256 in list(sent):
        wait(sha256)
    return [results[i] for i in sorted(results)]


def _packed(found: Found, capture: Path | None) -> packing.Archive:
    path = found.path
    if len(found.paths) > 1:
        return packing.together(found.folder, found.paths, capture)
    if capture is not None:
        return packing.with_capture(path, capture)
    return packing.open_archive(path) if path.is_dir() else packing.single_file(path)


def _metadata(found: Found, options: sources.Options) -> dict[str, Any]:
    capture, path = options.capture_trace, found.path
    origin = found.folder if len(found.paths) > 1 else path
    return {
        "step_annotation": list(options.step_annotation),
        "python_functions": options.python_functions,
        "file": path.name,
        "origin": str(origin.resolve()),
        **({"capture_trace": f"{packing.CAPTURE_FOLDER}/{capture.name}"} if capture else {}),
    }


def _reporter(path: Path, progress: Progress | None) -> Callable[[int, int], None] | None:
    return None if progress is None else lambda done, size: progress(str(path), done, size)


def _ingested(path: Path, conversion: Conversion) -> Ingested:
    if not conversion.results:
        return Ingested(str(path), "failed", error=_as_given(path, str(conversion.error)))
    result: dict[str, Any] = dict(conversion.results[0])
    findings = tuple(Finding(**finding) for finding in result.pop("findings", None) or ())
    result["path"] = str(path)
    if result["error"]:
        result["error"] = _as_given(path, result["error"])
    return Ingested(**result, findings=findings)


def _as_given(path: Path, error: str) -> str:
    """The server names the file alone; the command line as it was given."""
    known = next((n for n in (path.name, "the archive") if error.startswith(n)), None)
    return error if known is None else str(path) + error[len(known) :]
