"""Load runs into a store: find, prepare (in parallel), write each in one transaction.

A run is written whole or not at all: what it had before is deleted and its rows inserted in the
same transaction. The same content is the same run, so loading it twice changes nothing. A file has
one writer: workers prepare, this process writes. Into a lake each worker writes its runs itself.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from analyzer.errors import AnalyzerError, Unreachable
from analyzer.ingest import executors, sources
from analyzer.ingest.ingested import Ingested
from analyzer.ingest.pipeline import Prepared, prepare
from analyzer.ingest.ranks.files import Found, join
from analyzer.ingest.sources import Options, Source
from analyzer.store import DEFAULT_STORE, Store, discovery, open_store, originals
from analyzer.store.store import LOCK_PATIENCE_S
from analyzer.store.write import write_run
from schemas.errors import HostboundError


def ingest(
    paths: Sequence[Path | str] | Path | str,
    db: Store | Path | str = DEFAULT_STORE,
    *,
    name: str | None = None,
    step_annotation: Sequence[str] = (),
    capture_trace: Path | str | None = None,
    python_functions: bool = False,
    replace_runs: bool = False,
    keep_originals: bool = False,
    jobs: int | None = None,
    engine: executors.Engine | None = None,
    progress: Callable[[str, int, int], None] | None = None,
    remark: Callable[[str], object] | None = None,
) -> list[Ingested]:
    """Load run directories, trace files or folders of them; through the server that owns the store,
    if one does. The ranks of one job are one run.

    Args:
        db: The store; made if it is not there.
        name: Name of the run (one path only); default: file name up to .json, or folder name.
        step_annotation: Shell patterns of the annotations that mark steps.
        capture_trace: A trace that holds the capture of the graphs replayed in this one.
        replace_runs: Load again what is stored already.
        keep_originals: Copy the files that were read beside the store; see `originals.py`.
        jobs: Sources prepared at once; default: as many as cores, at most the number of sources.
        engine: Where they are prepared; default: `jobs` processes of this machine.
        progress: Called with (path, file bytes read, file bytes in all) if this process does it
            all, else with (path, 1, 1) when a source is done.
        remark: Called with a sentence about what was found and passed over: the note of a server
            that does not answer.

    Returns:
        One entry a source, in the order found. A source that cannot be read is "failed" and stops
        no other.

    Raises:
        AnalyzerError: A path is not there, the store cannot be written, or its server went away or
            does not take what was asked.
    """
    if isinstance(paths, (str, Path)):
        paths = [paths]
    found, not_joined = join(sources.find([Path(p) for p in paths]))
    if remark:
        for sentence in not_joined:
            remark(sentence)
    if name and len(found) > 1:
        raise AnalyzerError(
            f"--name names one run, but {len(found)} were found; load them one by one."
        )
    options = Options(
        tuple(step_annotation), Path(capture_trace) if capture_trace else None, python_functions
    )
    store = open_store(db)
    beyond = {"--keep-originals": keep_originals, "--engine ray": isinstance(engine, executors.Ray)}
    if owner := _owner(store, [option for option, asked in beyond.items() if asked], remark):
        from analyzer.ingest import remote  # deferred: HTTP, for a store that a server owns

        return remote.ingest(owner, found, name, options, replace_runs, progress)
    results: dict[int, Ingested] = {}
    todo: list[tuple[int, _Work]] = []
    works = [_Work(one, name, options, store, replace_runs, keep_originals) for one in found]
    if store.has_many_writers:
        store.make()  # once, and here: so is it said that the store does not answer
        todo = list(enumerate(works))
    else:
        if store.exists():
            store.make()
        for i, wanted in enumerate(works):
            work = _described(wanted)
            if isinstance(work, Ingested):
                results[i] = work
            else:
                todo.append((i, work))
    workers = min(jobs or os.cpu_count() or 1, len(todo))
    # A connection that PostgreSQL drops in a commit can end the process that holds it (DuckDB's
    # extension throws while it cleans up): so nobody writes into a lake without a second chance.
    if engine is None and todo and (workers > 1 or store.has_many_writers):
        engine = executors.Pool(workers)
    ready = [work for _, work in todo]
    outcomes = engine.map(_done, ready) if engine else _one_by_one(ready, progress)
    for position, outcome in outcomes:
        i, work = todo[position]
        if isinstance(outcome, executors.Lost):
            outcome = Ingested(work.shown, "failed", error=f"{work.shown}: {outcome.error}")
        results[i] = outcome if isinstance(outcome, Ingested) else write(store, outcome)
        if progress and engine:
            progress(work.shown, 1, 1)
    return [results[i] for i in sorted(results)]


def _owner(
    store: Store, beyond: Sequence[str], remark: Callable[[str], object] | None
) -> discovery.Owner | None:
    """The server to load through; None to write directly. `beyond` is asked and not in its API."""
    owner, about = discovery.find(store.path)
    if about and remark:
        remark(about)
    if owner is None or not beyond:
        return owner
    if store.has_many_writers:
        return None  # which any number of processes may write to
    raise AnalyzerError(
        f"{store.path} belongs to the server at {owner.url}, which does not take "
        f"{' and '.join(beyond)}: stop it first, or load into another store with --db."
    )


@dataclass(frozen=True)
class _Work:
    """What was found and what to do with it. `source` is there once it has been described."""

    found: Found
    name: str | None
    options: Options
    store: Store
    replace_runs: bool
    keep_originals: bool
    source: Source | None = None

    @property
    def shown(self) -> str:
        """The path that messages name."""
        return str(self.found.path)


def _described(work: _Work) -> _Work | Ingested:
    """The work with its source; what has become of it, if there is nothing left to do."""
    try:
        source = sources.describe(work.found, work.name, work.options)
    except HostboundError as error:
        return Ingested(work.shown, "failed", error=str(error))
    stored = None if work.replace_runs else already_stored(work.store, source)
    if stored and stored.state != "failed" and work.keep_originals:
        _keep_originals(work.store, source)
    return stored or replace(work, source=source)


def _done(work: _Work, progress: Callable[[int], None] | None = None) -> Prepared | Ingested:
    """What a worker does for one path: into a lake all, for a file up to the writing."""
    name = work.name
    try:
        described = work if work.source else _described(work)
        if isinstance(described, Ingested):
            return described
        source = described.source
        assert source is not None  # `_described` has found it
        name = source.name
        prepared = prepare(source, progress)
        if work.keep_originals:
            _keep_originals(work.store, source)
        return write(work.store, prepared) if work.store.has_many_writers else prepared
    except HostboundError as error:
        return Ingested(work.shown, "failed", name=name, error=str(error))


def _keep_originals(store: Store, source: Source) -> None:
    originals.keep(store.originals, ((file.path, file.sha256) for file in source.files))


def _one_by_one(
    works: Sequence[_Work], progress: Callable[[str, int, int], None] | None
) -> Iterator[tuple[int, Prepared | Ingested]]:
    """In this process, with progress by bytes."""
    for i, work in enumerate(works):
        files = work.source.files if work.source else ()
        total = sum(f.bytes for f in files if f.role in ("trace", "capture"))

        def report(done: int, path: str = work.shown, total: int = total) -> None:
            if progress and total:
                progress(path, done, total)

        yield i, _done(work, report)


def already_stored(store: Store, source: Source) -> Ingested | None:
    """What the store already has of this content; None if it is new."""
    if not store.path.exists():
        return None
    with store.reading(LOCK_PATIENCE_S) as connection:
        # A file of a size that the store has not seen is new: no need to hash it before reading.
        seen = connection.execute("SELECT DISTINCT bytes FROM files").fetchall()
        if any((file.bytes,) not in seen for file in source.files):
            return None
        rows = connection.execute(
            "SELECT name, step_annotation FROM runs WHERE run_id = ?", [source.run_id()]
        ).fetchall()
    if not rows:
        return None
    row = rows[0]
    asked = ",".join(source.options.step_annotation)
    if asked and asked != row[1]:
        return Ingested(
            str(source.path),
            "failed",
            source.run_id(),
            row[0],
            error=f"{source.path} is stored already as {row[0]!r} with steps marked by "
            f"{row[1] or 'nothing'!r}; use --replace to load it again with {asked!r}.",
        )
    return Ingested(str(source.path), "already stored", source.run_id(), row[0])


def write(store: Store, prepared: Prepared) -> Ingested:
    """Write a prepared run in one transaction, in place of what the store had of it.

    Raises:
        AnalyzerError: The store cannot be written; it is as it was.
    """
    began = time.perf_counter()
    state = _in_transaction(store, prepared)
    return Ingested(
        path=prepared.path,
        state=state,
        run_id=prepared.run_id,
        name=prepared.name,
        kernels=prepared.kernels,
        steps=prepared.steps,
        events=prepared.events,
        json_bytes=prepared.json_bytes,
        read_seconds=round(prepared.read_seconds, 4),
        analyse_seconds=round(prepared.analyse_seconds, 4),
        write_seconds=round(time.perf_counter() - began, 4),
        findings=tuple(prepared.findings),
    )


def _in_transaction(store: Store, prepared: Prepared) -> str:
    """Write a run; into a lake that went away again and again, until it is back or too long."""
    deadline = time.monotonic() + LOCK_PATIENCE_S
    pause = 0.2
    while True:
        try:
            if store.has_many_writers:
                _add_hosts(store, prepared)
            with store.writing(claim=f"run {prepared.run_id}") as connection:
                return write_run(connection, prepared.run_id, prepared.tables)
        except Unreachable:
            if time.monotonic() > deadline:
                raise
            time.sleep(pause)
            pause = min(2 * pause, 5.0)


def _add_hosts(store: Store, prepared: Prepared) -> None:
    """Add hosts that a lake lacks, each by one process: two that add it at once both would."""
    hosts = prepared.tables.get("hosts")
    for row in hosts.to_pylist() if hosts else ():
        claim = f"host {row['host_id']}"
        known = "SELECT 1 FROM hosts WHERE host_id = ?"
        if store.exists():
            with store.reading() as connection:
                if connection.execute(known, [row["host_id"]]).fetchall():
                    continue
        with store.writing(claim) as connection:
            if not connection.execute(known, [row["host_id"]]).fetchall():
                columns, marks = ", ".join(row), ", ".join("?" for _ in row)
                connection.execute(
                    f"INSERT INTO hosts ({columns}) VALUES ({marks})", list(row.values())
                )
