"""`analyzer ingest` where a server owns the store: the same loads, through its API on loopback.

What comes back is what loading directly would have given, so the command prints the same.
"""

from __future__ import annotations

import tarfile
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from analyzer.errors import AnalyzerError
from analyzer.ingest import sources
from analyzer.ingest.load import Ingested
from analyzer.server.client import Client
from analyzer.server.discovery import Owner
from analyzer.server.uploads.archives import CAPTURE_FOLDER
from analyzer.trace.events import Finding
from schemas.errors import HostboundError

Progress = Callable[[str, int, int], None]


def ingest(
    owner: Owner,
    paths: Sequence[Path],
    *,
    name: str | None = None,
    step_annotation: Sequence[str] = (),
    capture_trace: Path | None = None,
    python_functions: bool = False,
    replace_runs: bool = False,
    progress: Progress | None = None,
) -> list[Ingested]:
    """Load paths as `analyzer.ingest.ingest` does.

    Raises:
        AnalyzerError: A path is not there, or the server went away.
    """
    found = sources.find(paths)
    if name and len(found) > 1:
        raise AnalyzerError(
            f"--name names one run, but {len(found)} were found; load them one by one."
        )
    client = Client(owner.url, owner.secret)
    options = {
        "step_annotation": list(step_annotation),
        "python_functions": python_functions,
        "replace": replace_runs,
        "again": True,  # also of what is stored: the worker says so, and whether options differ
    }
    waiting: list[tuple[Path, dict[str, Any] | str]] = []
    for path in found:
        metadata = {**options, "file": path.name, "origin": str(path.resolve())}
        try:
            # Said here as it would be without a server, before anything is sent.
            sources.describe(path, name, sources.Options(capture_trace=capture_trace))
            waiting.append((path, _send(client, path, capture_trace, name, metadata, progress)))
        except HostboundError as error:
            waiting.append((path, str(error)))
    return [
        Ingested(str(path), "failed", error=sent)
        if isinstance(sent, str)
        else _result(path, client.wait(sent["id"]))
        for path, sent in waiting
    ]


def _send(
    client: Client,
    path: Path,
    capture: Path | None,
    name: str | None,
    metadata: dict[str, Any],
    progress: Progress | None,
) -> dict[str, Any]:
    def report(done: int) -> None:
        if progress:
            progress(str(path), done, size)

    if path.is_file() and capture is None:
        size = path.stat().st_size
        answer = client.upload(path, form=None, name=name, metadata=metadata, progress=report)
    else:
        with tempfile.NamedTemporaryFile(prefix="hostbound-", suffix=".tar") as packed:
            files = sorted(path.iterdir()) if path.is_dir() else [path]
            members = [(file.name, file) for file in files if file.is_file()]
            if capture is not None:
                # In a folder of its own: it may have the trace's name.
                members.append((f"{CAPTURE_FOLDER}/{capture.name}", capture))
                metadata = {**metadata, "capture_trace": members[-1][0]}
            _pack(members, packed)
            packed.flush()
            size = Path(packed.name).stat().st_size
            answer = client.upload(
                Path(packed.name),
                form="run-directory.tar",
                name=name,
                metadata=metadata,
                progress=report,
            )
    return answer["job"]


def _pack(members: Sequence[tuple[str, Path]], out: Any) -> None:
    """Files as a tar that depends on their names there and their content alone."""
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, file in members:
            info = tarfile.TarInfo(name)
            info.size = file.stat().st_size
            with file.open("rb") as stream:
                archive.addfile(info, stream)


def _result(path: Path, job: dict[str, Any]) -> Ingested:
    if not job["results"]:
        return Ingested(str(path), "failed", error=_as_given(path, job["error"]))
    result: dict[str, Any] = dict(job["results"][0])
    findings = tuple(Finding(**finding) for finding in result.pop("findings", None) or ())
    result["path"] = str(path)
    if result["error"]:
        result["error"] = _as_given(path, result["error"])
    return Ingested(**result, findings=findings)


def _as_given(path: Path, error: str) -> str:
    """The server names the file alone; the command line as it was given."""
    known = next((n for n in (path.name, "the archive") if error.startswith(n)), None)
    return error if known is None else str(path) + error[len(known) :]
