"""The questions that the pages ask of the store; an answer is kept until the store changes.

A key of the cache holds the store's path, time of change and size, so a load by the command line
shows at the next look. Every question may raise AnalyzerError: the store is not there, damaged,
locked or of another version.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Concatenate, ParamSpec, TypeVar

import polars as pl
import streamlit as st

from analyzer import queries
from analyzer.queries import timeline
from analyzer.reports import prediction, report
from analyzer.reports.comparison import compare
from analyzer.store.database import Connection
from webapp import store

Record = dict[str, Any]

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


def _ask(
    question: Callable[Concatenate[Connection, _Asked], _Answer],
    *arguments: _Asked.args,
    **options: _Asked.kwargs,
) -> _Answer:
    """The answer to a question of the analyzer, from memory if the store is as it was."""
    name = f"{question.__module__}.{question.__qualname__}"
    return _answer(*store.version(), name, arguments, options, question)


# -- runs


def runs() -> pl.DataFrame:
    """All runs; none if there is no store yet."""
    return _ask(queries.runs) if store.exists() else pl.DataFrame()


def runs_with_latency() -> pl.DataFrame:
    """All runs with un-profiled latency, kernels per token and TKLQT."""
    return _ask(queries.runs).join(
        _ask(timeline.latency_by_run), on="run_id", how="left", maintain_order="left"
    )


def tables() -> dict[str, list[str]]:
    """The columns of each table and view, with their types."""
    return _ask(queries.tables)


# -- one run


def report_of(run_id: str) -> Record:
    """Is the run host-bound, and what is to be known about it? See `reports.report`."""
    return _ask(report.summary, run_id)


def predictions(run_id: str) -> Record | None:
    """What changes of the run would win; None where none can be predicted."""
    return _ask(_predictions, run_id)


def _predictions(connection: Connection, run_id: str) -> Record | None:
    return prediction.for_report(connection, run_id, queries.steps(connection, run_id))


def totals(run_id: str) -> Record:
    """Everything recorded, steps or not."""
    return _ask(queries.totals, run_id)


def families(run_id: str) -> list[Record]:
    """Kernel families: device time, counts, launch cost."""
    return _ask(queries.families, run_id)


def match_tiers(run_id: str) -> dict[str, Record] | None:
    """Launches and share of cost by match tier; None without kernel replay."""
    return _ask(queries.match_tiers, run_id)


def kernels(run_id: str) -> pl.DataFrame:
    """Kernel identities, longest in sum first."""
    return _ask(queries.kernels, run_id)


def ops(run_id: str) -> pl.DataFrame:
    """Operators by what launching their kernels cost the host, most first."""
    return _ask(queries.ops, run_id)


def launches_of(run_id: str, kernel_id: int) -> pl.DataFrame:
    """Every launch of one kernel, in order of time."""
    return _ask(timeline.launches_of, run_id, kernel_id)


def distribution(run_id: str, quantity: str, kernel_id: int | None = None) -> pl.DataFrame:
    """Quantiles of a quantity of a run, or of one of its kernels; see `timeline.distribution`."""
    return _ask(timeline.distribution, run_id, quantity, kernel_id=kernel_id)


# -- several runs


def comparison(run_ids: Sequence[str]) -> Record:
    """Runs against the first of them; see `reports.comparison`."""
    return _ask(compare, tuple(run_ids))


# -- the timeline of one trace


def traces(run_id: str) -> list[Record]:
    """The traces of a run: events, rank, window."""
    return _ask(queries.traces, run_id)


def step_times(run_id: str, trace_id: int) -> list[Record]:
    """When the steps of a trace were, in order."""
    return _ask(timeline.step_times, run_id, trace_id)


def threads(run_id: str) -> dict[int, str]:
    """Name of each thread, else its pid and tid."""
    return _ask(timeline.threads, run_id)


def slices(run_id: str, trace_id: int, start_ns: int, end_ns: int, columns: int) -> pl.DataFrame:
    """What ran in a window, short events of a pixel column as one."""
    return _ask(timeline.slices, run_id, trace_id, start_ns, end_ns, columns)


def device_event(run_id: str, device_event_id: int) -> Record:
    """One kernel, copy or memset with its launch, op and match."""
    return _ask(timeline.device_event, run_id, device_event_id)


def host_event(run_id: str, kind: str, event_id: int) -> Record:
    """One op, region or call: name, thread, times, and what it started."""
    return _ask(timeline.host_event, run_id, kind, event_id)


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
