"""A worker process: converts one original after the other, and commits each run in its turn.

Speaks with the thread in `workers.py` that supervises it: a Task comes in; before each commit the
worker asks for its turn and waits until it may go, so that the server's readers step aside, and
says when it has written; a Done ends the task. When the socket breaks the server is gone, and so is
the worker, at once: a run is then whole or absent.
"""

from __future__ import annotations

import dataclasses
import importlib
import os
import queue
import shutil
import signal
import threading
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from analyzer.errors import AnalyzerError, Unreachable
from analyzer.server import supervise
from analyzer.server.limits import Limits
from analyzer.server.uploads import archives
from schemas.errors import HostboundError

if TYPE_CHECKING:
    from analyzer.ingest.ranks.files import Found

Turn = Callable[[], AbstractContextManager[None]]


@dataclass(frozen=True)
class Task:
    """One original to convert.

    Attributes:
        metadata: As announced; `step_annotation`, `python_functions` and `replace` mean what the
            options of `analyzer ingest` do, `capture_trace` names a file of the archive.
        origin: Shown as the run's path.
        work: An empty folder of this task's own; the server deletes it.
    """

    blob: Path
    store: Path
    work: Path
    name: str | None
    file_name: str
    origin: str
    metadata: dict[str, Any]
    limits: Limits


@dataclass(frozen=True)
class Done:
    """How a task ended: `analyzer.ingest.Ingested` of each run as a dict; why, if it failed.

    Attributes:
        unreachable: It failed because the lake did not answer, and may do so again.
    """

    results: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    error: str | None = None
    unreachable: bool = False


# The first byte of what a worker says; a Done follows DONE. GO is what a server answers to TURN.
TURN, GO, WRITTEN, DONE = b"T", b"G", b"W", b"D"


def encode(message: Task | Done) -> bytes:
    """A message as bytes."""
    return msgspec.msgpack.encode(message, enc_hook=_as_text)


def decode_task(message: bytes) -> Task:
    """What a server has sent."""
    return msgspec.msgpack.decode(message, type=Task, dec_hook=_as_path)


def decode_done(message: bytes) -> Done:
    """What a worker has answered.

    Raises:
        msgspec.DecodeError: It is no answer.
    """
    return msgspec.msgpack.decode(message, type=Done)


def _as_text(value: Any) -> str:
    if isinstance(value, Path):
        return str(value)
    raise NotImplementedError(f"{type(value)} is not sent")


def _as_path(kind: type, value: Any) -> Any:
    return kind(value)


def main() -> None:
    """The process: until the socket ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's ^C goes to the server alone
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    server = supervise.channel()
    inbox: queue.SimpleQueue[bytes] = queue.SimpleQueue()

    def listen() -> None:
        while True:
            try:
                inbox.put(server.receive())
            except (EOFError, OSError):
                os._exit(1)

    threading.Thread(target=listen, daemon=True).start()
    importlib.import_module("analyzer.ingest")  # heavy: before the first task waits for it

    @contextmanager
    def turn() -> Generator[None, None, None]:
        server.send(TURN)
        inbox.get()
        try:
            yield
        finally:
            server.send(WRITTEN)

    while True:
        done = convert(decode_task(inbox.get()), turn)
        server.send(DONE, encode(done))


def convert(task: Task, turn: Turn) -> Done:
    """Convert an original; each commit happens in a `turn`."""
    from analyzer.ingest import sources
    from analyzer.ingest.ranks.files import join

    try:
        options = _options(task)
        if archives.kind(task.blob) == "trace":
            path = task.work / task.file_name
            _link(task.blob, path)
            found = [path]
        else:
            content = task.work / "content"
            content.mkdir()
            archives.unpack(task.blob, content, task.limits)
            if capture := task.metadata.get("capture_trace"):
                options = dataclasses.replace(
                    options, capture_trace=archives.member(content, str(capture))
                )
            is_run = (content / "manifest.json").is_file()
            found = sources.find([content]) if is_run else _inside(content)
        runs, _ = join(found)
        name = task.name if len(runs) == 1 else None
        results = [_one(task, one, name, options, turn) for one in runs]
    except Unreachable as error:
        return Done(error=_line(error, task), unreachable=True)
    except (HostboundError, OSError) as error:
        return Done(error=_line(error, task))
    except MemoryError:
        return Done(error="the conversion needs more memory than the server has.")
    failed = [result["error"] for result in results if result["error"]]
    return Done(results, _several(failed, len(results)) if failed else None)


def _several(failed: list[str], count: int) -> str:
    return failed[0] if count == 1 else f"{len(failed)} of {count} runs: {failed[0]}"


def _inside(content: Path) -> list[Path]:
    """Run directories and traces in an archive, one folder deep or directly."""
    from analyzer.ingest import sources

    try:
        return sources.find([content])
    except AnalyzerError:
        folders = [entry for entry in sorted(content.iterdir()) if entry.is_dir()]
        if not folders:
            raise
        return sources.find(folders)


def _options(task: Task) -> Any:
    from analyzer.ingest.sources import Options

    given = task.metadata.get("step_annotation") or ()
    globs = (given,) if isinstance(given, str) else tuple(str(glob) for glob in given)
    return Options(
        step_annotation=globs,
        python_functions=bool(task.metadata.get("python_functions")),
        most_json_bytes=task.limits.decompressed_bytes,
        most_events=task.limits.events,
    )


def _one(task: Task, found: Found, name: str | None, options: Any, turn: Turn) -> dict[str, Any]:
    from analyzer import ingest
    from analyzer.ingest import pipeline, sources
    from analyzer.store import open_store

    store = open_store(task.store)
    try:
        source = sources.describe(found, name, options)
        stored = None if task.metadata.get("replace") else ingest.already_stored(store, source)
        if stored is None:
            prepared = pipeline.prepare(source)
            prepared.tables["runs"] = _with_origin(prepared.tables["runs"], task.origin)
            with turn():
                stored = ingest.write(store, prepared)
        result = dataclasses.asdict(stored)
    except Unreachable:
        raise
    except HostboundError as error:
        result = dataclasses.asdict(ingest.Ingested(str(found.path), "failed", error=str(error)))
    result["path"] = task.origin
    if result["error"]:
        result["error"] = _clean(result["error"], task)
    return result


def _with_origin(runs: Any, origin: str) -> Any:
    """The rows of the table `runs`, read from where the client had it and not from here."""
    place = runs.column_names.index("path")
    return runs.set_column(place, runs.schema.field("path"), [[origin] * len(runs)])


def _line(error: BaseException, task: Task) -> str:
    if isinstance(error, OSError):
        return f"the server could not convert it: {error.strerror or error}; try again later."
    return _clean(str(error), task)


def _clean(text: str, task: Task) -> str:
    """Messages name files as the client knows them, not where this server keeps them."""
    text = text.replace(f"{task.work}/content/", "").replace(f"{task.work}/content", "the archive")
    text = text.replace(f"{task.work}/", "").replace(str(task.store), "the store")
    return text.replace(str(task.blob), "the upload")


def _link(blob: Path, path: Path) -> None:
    try:
        os.link(blob, path)
    except OSError:  # a file system without hard links
        shutil.copyfile(blob, path)


if __name__ == "__main__":
    main()
