"""Everything the pages read: one short read-only connection a page, answers kept until the store
changes.

The only `st.cache_*` of the app. A key holds the store's path, time of change and size, so a load
by the command line shows at the next look. Writing (an upload) goes through `analyzer.ingest`.
"""

from __future__ import annotations

import io
import os
import tarfile
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import ExitStack, contextmanager
from pathlib import Path, PurePosixPath
from typing import Any, cast

import polars as pl
import streamlit as st

from analyzer import ingest as ingest_module
from analyzer import queries
from analyzer.errors import AnalyzerError
from analyzer.queries import timeline
from analyzer.reports import comparison as compare_module
from analyzer.reports import prediction, report
from analyzer.store import database, rwlock, sandbox
from webapp import visitor

STORE_VARIABLE = "HOSTBOUND_DB"
PATIENCE_S = 5.0
UPLOAD_PATIENCE_S = 60.0
KEEP_S = 3600

Stamp = tuple[tuple[int, int], ...]


def store() -> Path:
    """The store that the app was started with; on a server, that of the visitor's team."""
    if hosted := visitor.hosted():
        hosting, who = hosted
        return hosting.store(who)
    return Path(os.environ.get(STORE_VARIABLE, "hostbound.duckdb"))


def stamp(path: Path) -> Stamp:
    """What changes when the store does."""
    return database.stamp(path)


def take_turns() -> None:
    """Let readers and an upload of this process wait for each other, which DuckDB does not."""
    rwlock.arrange(store())


def exists() -> bool:
    """Is there a store yet?"""
    return database.exists(store())


def _runs_with_latency(connection: Any) -> pl.DataFrame:
    """`queries.runs` with un-profiled latency, kernels per token and TKLQT."""
    return queries.runs(connection).join(
        timeline.latency_by_run(connection), on="run_id", how="left", maintain_order="left"
    )


def _schema(connection: Any) -> list[dict[str, Any]]:
    rows = connection.execute(
        "SELECT table_name, column_name, data_type FROM information_schema.columns "
        "WHERE table_catalog = current_database() ORDER BY table_name, ordinal_position"
    ).fetchall()
    tables: dict[str, list[str]] = {}
    for table, column, kind in rows:
        tables.setdefault(table, []).append(f"{column}  {kind}")
    return [{"table": table, "columns": columns} for table, columns in tables.items()]


def _predictions(connection: Any, run_id: str) -> dict[str, Any] | None:
    return prediction.for_report(connection, run_id, queries.steps(connection, run_id))


def _distribution(
    connection: Any, run_id: str, quantity: str, kernel_id: int | None
) -> pl.DataFrame:
    return timeline.distribution(connection, run_id, quantity, kernel_id=kernel_id)


QUESTIONS: dict[str, Callable[..., Any]] = {
    "runs": queries.runs,
    "runs_with_latency": _runs_with_latency,
    "summary": report.summary,
    "predictions": _predictions,
    "kernels": queries.kernels,
    "ops": queries.ops,
    "families": queries.families,
    "match_tiers": queries.match_tiers,
    "step_times": timeline.step_times,
    "traces": queries.traces,
    "totals": queries.totals,
    "floors": queries.floors,
    "compare": compare_module.compare,
    "slices": timeline.slices,
    "threads": timeline.threads,
    "device_event": timeline.device_event,
    "host_event": timeline.host_event,
    "distribution": _distribution,
    "launches_of": timeline.launches_of,
    "schema": _schema,
}


class _Page(threading.local):
    """What the run of a page in this thread has open."""

    stack: ExitStack | None = None
    path: str = ""
    connection: Any = None

    def close(self) -> None:
        if self.stack:
            self.stack.close()
        self.connection = None


_page = _Page()


@contextmanager
def one_connection() -> Iterator[None]:
    """Within, all answers come over one connection, made when the first is not in memory."""
    with ExitStack() as stack:
        _page.stack, _page.connection = stack, None
        try:
            yield
        finally:
            _page.stack, _page.connection = None, None


@contextmanager
def _connected(path: str) -> Iterator[Any]:
    if _page.stack is None:
        with queries.connect(Path(path), patience_s=PATIENCE_S) as connection:
            yield connection
        return
    if _page.connection is None or _page.path != path:
        connected = queries.connect(Path(path), patience_s=PATIENCE_S)
        _page.connection, _page.path = _page.stack.enter_context(connected), path
    yield _page.connection


@st.cache_data(ttl=KEEP_S, max_entries=200, show_spinner=False)
def _answer(path: str, stamp: Stamp, question: str, arguments: tuple[Any, ...]) -> Any:
    with _connected(path) as connection:
        return QUESTIONS[question](connection, *arguments)


def ask(question: str, *arguments: Any) -> Any:
    """The answer to one of QUESTIONS, from memory if the store is as it was.

    Raises:
        AnalyzerError: The store is not there, damaged, locked or of another version; one line.
    """
    path = store()
    return _answer(str(path), stamp(path), question, arguments)


def runs() -> pl.DataFrame:
    """All runs; none if there is no store yet."""
    return ask("runs") if exists() else pl.DataFrame()


def distribution(run_id: str, quantity: str, kernel_id: int | None = None) -> pl.DataFrame:
    """Quantiles of a quantity of a run, or of one of its kernels; see `timeline.distribution`."""
    return ask("distribution", run_id, quantity, kernel_id)


@st.cache_resource(ttl=KEEP_S, max_entries=4, show_spinner=False)
def _stretches(path: str, stamp: Stamp, run_id: str, trace_id: int) -> timeline.Stretches | None:
    with _connected(path) as connection:
        return timeline.stretches(connection, run_id, trace_id)


def profile(
    run_id: str, trace_id: int, start_ns: int, end_ns: int, columns: int
) -> pl.DataFrame | None:
    """Accounts of the main thread along a window; None without such a thread."""
    path = store()
    found = _stretches(str(path), stamp(path), run_id, trace_id)
    return None if found is None else found.profile(start_ns, end_ns, columns)


class Statement:
    """A statement that a person typed, being answered in a thread; see `analyzer.store.sandbox`.

    Outside the caches: what a person cancels must not be waited for by another.
    """

    def __init__(self, sql: str, limit: int, time_limit_s: float) -> None:
        path, hosted = store(), visitor.hosted()
        self._answer: Future[pl.DataFrame] = Future()
        self._cancel = threading.Event()
        _page.close()  # who reads keeps a writer waiting, and this may take long

        def answer() -> None:
            try:
                if hosted:  # a stranger's statement must not take the server down
                    hosting, who = hosted
                    table = hosting.run_sql(who, sql, limit, time_limit_s, self._cancel)
                else:
                    table = sandbox.run_sql(
                        path, sql, limit=limit, time_limit_s=time_limit_s, cancel=self._cancel
                    )
                self._answer.set_result(cast("pl.DataFrame", pl.from_arrow(table)))
            except BaseException as error:
                self._answer.set_exception(error)

        threading.Thread(target=answer, daemon=True).start()

    def wait(self, seconds: float) -> bool:
        """Whether it has ended, waiting for at most so long."""
        return bool(wait([self._answer], seconds).done)

    def cancel(self) -> None:
        """Stop it; nothing happens to one that has ended."""
        self._cancel.set()

    def rows(self) -> pl.DataFrame:
        """Its answer, once it has ended.

        Raises:
            AnalyzerError: The statement is refused, wrong, too slow, or was cancelled; one line.
        """
        return self._answer.result()


def sql_key(sql: str, limit: int, time_limit_s: float) -> tuple[Any, ...]:
    """Equal as long as a statement would be answered the same."""
    path = store()
    return (str(path), stamp(path), sql, limit, time_limit_s)


@st.cache_data(ttl=600, max_entries=20, show_spinner=False)
def picture(chart_json: str, kind: str) -> bytes:
    """A chart as PNG or SVG, made on this machine."""
    import vl_convert  # deferred: only a download needs it

    if kind == "svg":
        return vl_convert.vegalite_to_svg(chart_json).encode()
    return vl_convert.vegalite_to_png(chart_json, scale=2)


def load(files: Sequence[tuple[str, io.BytesIO | Any]]) -> list[ingest_module.Ingested]:
    """Load uploaded files: a run directory if a manifest.json is among them, else each a trace.

    Args:
        files: Name as the browser gives it (the folders of a dropped folder too), and content.

    Raises:
        AnalyzerError: The store cannot be written, or nothing among the files can be read.
    """
    _page.close()  # who reads keeps the writer waiting
    if hosted := visitor.hosted():
        return _upload(*hosted, files)
    with tempfile.TemporaryDirectory(prefix="hostbound-upload-") as folder:
        root = Path(folder)
        directory = [name for name, _ in files if PurePosixPath(name).name == "manifest.json"]
        for i, (name, content) in enumerate(files):
            parts = [part for part in PurePosixPath(name.replace("\\", "/")).parts]
            safe = [part for part in parts if part not in ("..", ".", "/", "")]
            if not safe:
                continue
            # A dropped folder keeps its folders; single files stay apart, whatever their names.
            if len(safe) == 1:
                place = root / "run" if directory else root / str(i)
            else:
                place = root.joinpath(*safe[:-1])
            place.mkdir(parents=True, exist_ok=True)
            with (place / safe[-1]).open("wb") as out:
                out.write(content.read())
        return ingest_module.ingest(sorted(root.iterdir()), store(), jobs=1)


def _upload(
    hosting: visitor.pages.Hosting,
    who: visitor.pages.Principal,
    files: Sequence[tuple[str, io.BytesIO | Any]],
) -> list[ingest_module.Ingested]:
    """On a server a file becomes an upload like any other, and a run directory one archive."""
    if any(PurePosixPath(name).name == "manifest.json" for name, _ in files):
        with tempfile.TemporaryFile(prefix="hostbound-upload-") as packed:
            with tarfile.open(fileobj=packed, mode="w") as archive:
                for name, content in files:
                    info = tarfile.TarInfo(name.replace("\\", "/").lstrip("/"))
                    info.size = content.seek(0, io.SEEK_END)
                    content.seek(0)
                    archive.addfile(info, content)
            packed.seek(0)
            hashes = [hosting.keep(who, "run-directory.tar", "run-directory.tar", packed)]
    else:
        hashes = [hosting.keep(who, name, None, content) for name, content in files]
    return hosting.results(who, hashes, UPLOAD_PATIENCE_S)


__all__ = [
    "AnalyzerError",
    "Statement",
    "ask",
    "exists",
    "load",
    "picture",
    "profile",
    "runs",
    "sql_key",
    "store",
]
