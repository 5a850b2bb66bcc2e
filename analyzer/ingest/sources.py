"""What `ingest` was given: run directories, trace files, or folders of them; found, hashed,
checked.

Reads no trace. A source's hash covers its content alone: the same content is the same run.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from analyzer.errors import AnalyzerError
from analyzer.ingest.ranks.files import FRONT_END, Found
from analyzer.trace import formats
from schemas import run_directory
from schemas.manifest import Manifest
from schemas.packing import TRACE_SUFFIXES
from schemas.run_directory import file_sha256


@dataclass(frozen=True)
class Options:
    """What changes the result of an ingest beside the content, and what is refused as too large."""

    step_annotation: tuple[str, ...] = ()
    capture_trace: Path | None = None
    python_functions: bool = False
    most_json_bytes: int | None = None
    most_events: int | None = None


@dataclass(frozen=True)
class SourceFile:
    """One file of a source; `role` as in the table `files`.

    Attributes:
        name: Of the file, within the folder that a run of ranks was read from.
    """

    path: Path
    role: str
    bytes: int
    name: str

    @cached_property
    def sha256(self) -> str:
        """Hash of the file's bytes, read when first asked for: large files are hashed while they
        are read. A folder's is that of its files' names and hashes.
        """
        try:
            if self.path.is_dir():
                files = _files_in(self.path)
                lines = [f"{file.relative_to(self.path)} {file_sha256(file)}" for file in files]
                return hashlib.sha256("\n".join(lines).encode()).hexdigest()
            return file_sha256(self.path)
        except OSError as error:
            raise AnalyzerError(f"{self.path} cannot be read: {error.strerror}.") from error


@dataclass(frozen=True)
class Source:
    """One run to load.

    Attributes:
        path: Of a run of ranks the folder that all are in.
        manifest: Of ranks the first one's; None for traces alone.
        is_joined: Whether it was put together from the files of several ranks.
    """

    path: Path
    name: str
    manifest: Manifest | None
    files: tuple[SourceFile, ...]
    options: Options = field(default_factory=Options)
    is_joined: bool = False

    def content_sha256(self) -> str:
        """Hash of the files' roles and hashes."""
        text = "\n".join(f"{f.role} {f.sha256}" for f in self.files)
        return hashlib.sha256(text.encode()).hexdigest()

    def run_id(self) -> str:
        """The content's hash, shortened."""
        return self.content_sha256()[:32]


def trace_name(path: Path) -> str:
    """A run's default name: the file name up to what a trace's name ends in, or the folder's."""
    name = path.name
    for suffix in TRACE_SUFFIXES:
        if name.endswith(suffix):
            name = name[: -len(suffix)]
            break
    return name.removesuffix(".pt.trace") or path.name


def find(paths: Sequence[Path]) -> list[Path]:
    """Expand folders to the run directories and trace files in them.

    Raises:
        AnalyzerError: A path is not there, or a folder holds nothing to load.
    """
    found: list[Path] = []
    for path in paths:
        if not path.exists():
            raise AnalyzerError(
                f"{path} does not exist; give a trace file, a run directory or a folder of them."
            )
        if path.is_file() or (path / run_directory.MANIFEST).is_file():
            found.append(path)
            continue
        if folders := formats.trace_folders(path):
            found += folders
            continue
        if not path.is_dir():
            raise AnalyzerError(f"{path} is neither a file nor a folder.")
        inside: list[Path] = []
        try:
            for entry in sorted(path.iterdir()):
                if entry.is_dir():
                    is_run = (entry / run_directory.MANIFEST).is_file()
                    inside += [entry] if is_run else formats.trace_folders(entry)
                elif entry.name == run_directory.JOB:
                    continue
                elif entry.name.endswith(TRACE_SUFFIXES) and not entry.name.startswith("."):
                    inside.append(entry)
        except OSError as error:
            raise AnalyzerError(f"{path} cannot be read: {error.strerror}.") from error
        if not inside and (path / run_directory.TRACE).is_file():
            run_directory.read_manifest(path)  # says what is missing
        if not inside:
            raise AnalyzerError(
                f"{path} holds no run directory and no trace "
                f"(*{', *'.join(TRACE_SUFFIXES)}); give one of them."
            )
        found += inside
    return list(dict.fromkeys(found))


def describe(found: Path | Found, name: str | None, options: Options) -> Source:
    """Find the files of one run directory or trace file, or of all ranks of a job; a run directory
    is checked by its manifest.

    Raises:
        AnalyzerError, RunDirectoryError: It cannot be read, or is not what its manifest says.
    """
    if isinstance(found, Found) and len(found.paths) > 1:
        return _joined(found, name, options)
    path = found if isinstance(found, Path) else found.path
    if path.is_dir() and not formats.is_trace_folder(path):
        return _run_directory(path, name, options)
    files = [_file(path, "trace")]
    if options.capture_trace:
        files.append(_file(options.capture_trace, "capture"))
    return Source(path, name or trace_name(path), None, tuple(files), options)


def _joined(found: Found, name: str | None, options: Options) -> Source:
    own = [describe(path, None, replace(options, capture_trace=None)) for path in found.paths]
    files = [
        replace(
            file,
            role="front_end" if FRONT_END.search(file.name) else file.role,
            name=file.path.relative_to(found.folder).as_posix(),
        )
        for source in own
        for file in source.files
    ]
    if options.capture_trace:
        files.append(_file(options.capture_trace, "capture"))
    manifest = own[0].manifest
    name = name or (manifest.name if manifest else found.name)
    return Source(found.folder, name, manifest, tuple(files), options, is_joined=True)


def _run_directory(path: Path, name: str | None, options: Options) -> Source:
    manifest = run_directory.read_manifest(path)
    roles = {
        run_directory.KERNEL_REPLAY: "replay",
        run_directory.NULL_KERNEL: "floor",
        run_directory.LATENCY: "latency",
        run_directory.EXECUTION_TRACE: "execution_trace",
    }
    files = [_file(path / run_directory.MANIFEST, "manifest")]
    for trace in manifest.traces:
        files.append(_file(path / trace.file, "capture" if trace.role == "capture" else "trace"))
    listed = {file.path.name for file in files}
    capture = path / run_directory.CAPTURE_TRACE
    if capture.is_file() and capture.name not in listed:
        files.append(_file(capture, "capture"))
    files += [_file(path / file, role) for file, role in roles.items() if (path / file).is_file()]
    if options.capture_trace:
        files.append(_file(options.capture_trace, "capture"))
    for file, expected in manifest.files.items():
        actual = next((f.sha256 for f in files if f.path.name == file), None)
        if actual is None:
            target = path / file
            actual = file_sha256(target) if target.is_file() else None
        if actual is None:
            raise AnalyzerError(
                f"{path} lacks {file}, which its manifest lists; copy the folder again."
            )
        if actual != expected:
            raise AnalyzerError(
                f"{path / file} is not the file that was recorded (its SHA-256 is "
                f"{actual[:12]}..., the manifest says {expected[:12]}...); copy the folder again."
            )
    if not any(file.role == "trace" for file in files):
        raise AnalyzerError(f"{path} lists no trace in its manifest; record the run again.")
    return Source(path, name or manifest.name or path.name, manifest, tuple(files), options)


def _files_in(folder: Path) -> list[Path]:
    return sorted(file for file in folder.rglob("*") if file.is_file())


def _file(path: Path, role: str) -> SourceFile:
    try:
        if path.is_dir():
            size = sum(file.stat().st_size for file in _files_in(path))
        else:
            size = path.stat().st_size
        return SourceFile(path, role, size, path.name)
    except OSError as error:
        raise AnalyzerError(f"{path} cannot be read: {error.strerror}.") from error
