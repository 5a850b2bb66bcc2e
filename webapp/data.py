"""The questions that the pages ask of the store; an answer is kept until the store changes.

Each is a question of the analyzer without its connection. A key of the cache holds the store's
path, time of change and size, so a load by the command line shows at the next look. Any of them
may raise AnalyzerError: the store is not there, damaged, locked or of another version.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

import polars as pl
import streamlit as st

from analyzer import queries
from analyzer.queries import timeline
from analyzer.queries.records import ListedRun
from analyzer.render.comparison import print_comparison
from analyzer.render.document import Document
from analyzer.render.report import print_report
from analyzer.reports.comparison import compare
from analyzer.reports.prediction import predict_for_report
from analyzer.reports.records import Predictions
from analyzer.reports.report import report as make_report
from analyzer.reports.report import summary as summarise
from analyzer.store import Connection
from webapp import store

_KEEP_S = 3600
_Asked = ParamSpec("_Asked")
_Answer = TypeVar("_Answer")


@st.cache_data(ttl=_KEEP_S, max_entries=200, show_spinner=False)
def _answer(
    path: str,
    stamp: store.Stamp,
    name: str,
    arguments: tuple[Any, ...],
    options: dict[str, Any],
    _question: Callable[..., Any],
) -> Any:
    """Ask the store; the question itself is no part of the key, its name is."""
    with store.connected(path) as connection:
        return _question(connection, *arguments, **options)


def _kept(
    question: Callable[Concatenate[Connection, _Asked], _Answer],
) -> Callable[_Asked, _Answer]:
    """The question over the page's connection; answered from memory if the store is as it was."""

    @wraps(question)
    def ask(*arguments: _Asked.args, **options: _Asked.kwargs) -> _Answer:
        name = f"{question.__module__}.{question.__qualname__}"
        return _answer(*store.version(), name, arguments, options, question)

    return ask


# Of the store
tables = _kept(queries.tables)
_runs = _kept(queries.runs)
_latency_by_run = _kept(timeline.latency_by_run)
_listed_runs = _kept(queries.listed_runs)
run_phases = _kept(queries.run_phases)

# Of one run
summary = _kept(summarise)
totals = _kept(queries.totals)
families = _kept(queries.families)
match_tiers = _kept(queries.match_tiers)
kernels = _kept(queries.kernels)
ops = _kept(queries.ops)
op_places = _kept(timeline.op_places)
rank_steps = _kept(queries.rank_steps)
step_collectives = _kept(queries.step_collectives)
step_groups = _kept(queries.step_groups)
launches_of = _kept(timeline.launches_of)
distribution = _kept(timeline.distribution)

# Of several runs
comparison = _kept(compare)

# Of the timeline of one trace
traces = _kept(queries.traces)
step_times = _kept(timeline.step_times)
threads = _kept(timeline.threads)
slices = _kept(timeline.slices)
device_event = _kept(timeline.device_event)
host_event = _kept(timeline.host_event)


@_kept
def predictions(connection: Connection, run_id: str) -> Predictions | None:
    """What changes of the run would win; None where none can be predicted."""
    return predict_for_report(connection, run_id, queries.steps(connection, run_id))


@dataclass(frozen=True)
class Paper:
    """A report or a comparison, to be written when somebody takes it away: by whoever asks, which
    may be no page.
    """

    path: str  # of the store
    run_ids: tuple[str, ...]  # one: its report; several: compared with the first

    def write(self, form: str) -> bytes:
        """What the command line prints of it, as "html" or "md"."""
        document = Document()
        with store.connected(self.path) as connection:
            if len(self.run_ids) == 1:
                found = make_report(connection, self.run_ids[0])
                title = found.run.name
                print_report(found, document)
            else:
                title = "Comparison"
                print_comparison(compare(connection, self.run_ids), document)
        return (document.html(title) if form == "html" else document.markdown()).encode()


def paper(*run_ids: str) -> Paper:
    """The report of a run, or a comparison of several."""
    return Paper(store.version()[0], run_ids)


def runs() -> pl.DataFrame:
    """All runs; none if there is no store yet."""
    return _runs() if store.exists() else pl.DataFrame()


def listed_runs() -> dict[str, ListedRun]:
    """All runs as records by id, newest first; none if there is no store yet."""
    return {run.run_id: run for run in _listed_runs()} if store.exists() else {}


def runs_with_latency() -> pl.DataFrame:
    """All runs with un-profiled latency, kernels per token and TKLQT."""
    return _runs().join(_latency_by_run(), on="run_id", how="left", maintain_order="left")


@st.cache_resource(ttl=_KEEP_S, max_entries=4, show_spinner=False)
def _stretches(
    path: str, stamp: store.Stamp, run_id: str, trace_id: int
) -> timeline.Stretches | None:
    with store.connected(path) as connection:
        return timeline.stretches(connection, run_id, trace_id)


def profile(
    run_id: str, trace_id: int, start_ns: int, end_ns: int, columns: int
) -> pl.DataFrame | None:
    """Accounts of the main thread along a window; None without such a thread."""
    found = _stretches(*store.version(), run_id, trace_id)
    return None if found is None else found.profile(start_ns, end_ns, columns)
