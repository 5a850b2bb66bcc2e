"""The run directory, version 1: the contract between a GPU host and the analysis.

    manifest.json            `manifest.Manifest`, written last: without it the recording did not
                             finish
    trace.json.gz            Kineto trace of the first trace run; trace-2.json.gz, ... of further
                             ones
    capture_trace.json.gz    optional: the pass in which CUDA graphs were captured
    execution_trace.json.gz  optional: PyTorch execution trace (op schemas, scalars, strides)
    kernel_replay.json       optional: `measurements.KernelReplay`
    null_kernel.json         optional: `measurements.LaunchFloors`
    latency.json             optional: `measurements.Latency`

The ranks of a distributed job have a folder each, `rank-0`, `rank-1`, ..., beside one `job.json`.
A file that was not measured is absent; nothing stands in for it. After the manifest is written the
folder is read-only.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any, TypeVar, cast

import msgspec

from schemas.errors import RunDirectoryError
from schemas.manifest import MODES, RUN_SCHEMA_VERSION, Manifest
from schemas.measurements import Measurement

MANIFEST = "manifest.json"
TRACE = "trace.json.gz"
CAPTURE_TRACE = "capture_trace.json.gz"
EXECUTION_TRACE = "execution_trace.json.gz"
KERNEL_REPLAY = "kernel_replay.json"
NULL_KERNEL = "null_kernel.json"
LATENCY = "latency.json"
# Beside the run directories of a job's ranks, written last.
JOB = "job.json"

# The collector marks each pass with `user_annotation`s of these names; `#N` counts them in a trace.
PREFILL_ANNOTATION = "hostbound.prefill"
DECODE_ANNOTATION = "hostbound.decode"
CAPTURE_ANNOTATION = "hostbound.capture"
STEP_ANNOTATION_PREFIX = "hostbound."

Document = TypeVar("Document", bound=Measurement)


def file_sha256(path: Path) -> str:
    """Return the SHA-256 of a file's bytes as hex text, read in pieces."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while piece := stream.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest()


def read_manifest(run_dir: Path) -> Manifest:
    """Read and check `manifest.json`.

    Raises:
        RunDirectoryError: It is missing, no JSON, of a newer version, or lacks a field.
    """
    path = run_dir / MANIFEST
    if not path.is_file():
        raise RunDirectoryError(
            f"{run_dir} is not a run directory: {MANIFEST} is missing. "
            "`collector record` writes it last, so the recording did not finish; record it again."
        )
    return manifest_from_json(path.read_bytes(), path)


def manifest_from_json(text: str | bytes, path: Path) -> Manifest:
    """Read a manifest from its JSON text; `path` only names the file in errors.

    Raises:
        RunDirectoryError: It is no JSON, of a newer version, or lacks a field.
    """
    try:
        value: Any = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError) as error:
        raise RunDirectoryError(
            f"{path} is no JSON ({error}); copy the run directory again or record it again."
        ) from error
    if not isinstance(value, dict):
        raise RunDirectoryError(f"{path} holds no JSON object; it is not a Hostbound manifest.")
    return manifest_from_dict(cast("dict[str, Any]", value), path)


def manifest_from_dict(value: dict[str, Any], path: Path) -> Manifest:
    """Build a `Manifest` from parsed JSON; `path` only names the file in errors."""
    version = value.get("schema_version")
    if not isinstance(version, int) or version < 1:
        raise RunDirectoryError(f"{path} has no schema_version; it is not a Hostbound manifest.")
    if version > RUN_SCHEMA_VERSION:
        raise RunDirectoryError(
            f"{path} is of run-directory version {version}, this program knows "
            f"{RUN_SCHEMA_VERSION}: upgrade hostbound."
        )
    try:
        manifest = msgspec.convert(value, Manifest)
    except msgspec.ValidationError as error:
        if "missing" in str(error):
            text = f"{path} is incomplete: {error}; record the run again."
        else:
            text = (
                f"{path} is not as the collector writes it ({error}; times are whole nanoseconds "
                "above 0); copy the run directory again or record it again."
            )
        raise RunDirectoryError(text) from error
    if manifest.mode not in MODES:
        raise RunDirectoryError(f"{path} has mode {manifest.mode!r}; known are {', '.join(MODES)}.")
    for name in [trace.file for trace in manifest.traces] + list(manifest.files):
        if Path(name).name != name:
            raise RunDirectoryError(f"{path} names {name!r}, which is not a file of that folder.")
    return manifest


def read_document(path: Path, kind: type[Document]) -> Document:
    """Read one of the JSON documents beside the manifest.

    Raises:
        RunDirectoryError: It cannot be read, or is not what the collector writes.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except OSError as error:
        raise RunDirectoryError(f"{path} cannot be read: {error.strerror}.") from error
    except (msgspec.DecodeError, RecursionError) as error:
        raise RunDirectoryError(
            f"{path} is not as the collector writes it ({error}); record the run again."
        ) from error
