"""Every question that the command line and the web app may ask of a store; read-only.

Each function takes a connection (`connect`). Few values come back as records (`records.py`,
`costs.py`), many rows as a polars frame. Times are integer nanoseconds, unknown is None. The SQL is
in `analyzer/sql/`, one file a question, named like its function.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import fields
from pathlib import Path
from typing import Any

import polars as pl

from analyzer.errors import AnalyzerError
from analyzer.queries.costs import AccountTime, Ledger, Step, Totals, ordered
from analyzer.queries.records import (
    Check,
    Coverage,
    Description,
    Family,
    Finding,
    Floor,
    GraphGaps,
    Kernel,
    KernelSequence,
    Latencies,
    Latency,
    ListedRun,
    MatchTier,
    Op,
    Run,
    RunFile,
    ScheduledCall,
    ScheduledEvent,
    StepGroup,
    StepProduct,
    Trace,
)
from analyzer.queries.rows import Parameters, frame, select, select_tuples
from analyzer.store import Connection, Store, open_store
from analyzer.store.sql_text import column_help, named_sql
from analyzer.store.store import READ_PATIENCE_S


def connect(
    db: Store | Path | str, patience_s: float = READ_PATIENCE_S
) -> AbstractContextManager[Connection]:
    """A read-only connection to a store; `with queries.connect("runs.duckdb") as store: ...`.

    Raises:
        AnalyzerError: There is no store, it is damaged, of another version, or stays locked.
    """
    return open_store(db).reading(patience_s)


def runs(connection: Connection) -> pl.DataFrame:
    """All runs, newest first, with the figures by which one chooses."""
    return frame(connection, named_sql("runs"))


def run_phases(connection: Connection) -> pl.DataFrame:
    """What each phase of each run cost, and how long the device waited."""
    return frame(connection, named_sql("run_phases"))


def listed_runs(connection: Connection) -> list[ListedRun]:
    """All runs as records, newest first."""
    return select(connection, ListedRun, named_sql("runs"))


def tables(connection: Connection) -> dict[str, list[str]]:
    """The store's tables and views by name, each with its columns: name, type, what it is.

    A column of a view is what that of the same name in a table is.
    """
    said = column_help()
    own = {table for table, _ in said}
    anywhere = {column: text for (_, column), text in reversed(said.items())}
    found: dict[str, list[str]] = {}
    for table, column, kind in select_tuples(
        connection,
        "SELECT table_name, column_name, data_type FROM information_schema.columns "
        "WHERE table_catalog = current_database() ORDER BY table_name, ordinal_position",
    ):
        text = said.get((table, column), "" if table in own else anywhere.get(column, ""))
        found.setdefault(table, []).append(f"{column}  {kind}{text and f'  -- {text}'}")
    return found


def find_run(connection: Connection, reference: str) -> str:
    """The run id that a reference means: an id, a unique prefix of one, a name, or `latest`.

    Raises:
        AnalyzerError: No run or several match; the message lists them.
    """
    rows: list[tuple[str, str]] = select_tuples(
        connection, "SELECT run_id, name FROM runs ORDER BY rowid DESC"
    )
    if not rows:
        raise AnalyzerError("the store holds no run yet; load one with `analyzer ingest PATH`.")
    if reference == "latest":
        return rows[0][0]
    for found in (
        [row for row in rows if row[0] == reference],
        [row for row in rows if row[1] == reference],
        [row for row in rows if len(reference) >= 3 and row[0].startswith(reference)],
    ):
        if len(found) == 1:
            return found[0][0]
        if found:
            listed = ", ".join(f"{run_id[:12]} ({name})" for run_id, name in found[:6])
            raise AnalyzerError(
                f"{reference!r} means {len(found)} runs: {listed}; give more of the id."
            )
    listed = ", ".join(name for _, name in rows[:8]) + (", ..." if len(rows) > 8 else "")
    raise AnalyzerError(f"there is no run {reference!r} in the store; it has: {listed}.")


def run(connection: Connection, run_id: str) -> Run:
    """A run with its host.

    Raises:
        AnalyzerError: The store has no such run.
    """
    found = select(
        connection,
        Run,
        "SELECT runs.*, hosts.* EXCLUDE (host_id, gpu) FROM runs LEFT JOIN hosts USING (host_id) "
        "WHERE run_id = $run_id",
        {"run_id": run_id},
    )
    if not found:
        raise AnalyzerError(f"there is no run {run_id!r} in the store.")
    return found[0]


def files(connection: Connection, run_id: str) -> list[RunFile]:
    """The files a run was read from."""
    return select(
        connection,
        RunFile,
        "SELECT file, role, sha256, bytes FROM files WHERE run_id = $run_id ORDER BY role, file",
        {"run_id": run_id},
    )


def traces(connection: Connection, run_id: str) -> list[Trace]:
    """The traces of a run: events, rank, window."""
    return select(
        connection,
        Trace,
        "SELECT * EXCLUDE (run_id) FROM traces WHERE run_id = $run_id ORDER BY trace_id",
        {"run_id": run_id},
    )


def step_periods(connection: Connection, run_id: str) -> dict[int, tuple[int, int]]:
    """From each step that another follows to that one: (start to start, end to start) in ns."""
    return {
        step_id: (period_ns, between_ns)
        for step_id, period_ns, between_ns in select_tuples(
            connection,
            "SELECT step_id, period_ns, between_ns FROM steps "
            "WHERE run_id = $run_id AND period_ns IS NOT NULL",
            {"run_id": run_id},
        )
    }


def step_groups(connection: Connection, run_id: str) -> list[StepGroup]:
    """The steps of a run by phase and batch, in order of both."""
    return select(
        connection,
        StepGroup,
        "SELECT * EXCLUDE (run_id, run_name, engine) FROM step_groups WHERE run_id = $run_id "
        "ORDER BY phase, batch NULLS FIRST",
        {"run_id": run_id},
    )


def quality(connection: Connection, run_id: str) -> list[Finding]:
    """What the reader of this run should know: warnings first."""
    return select(
        connection,
        Finding,
        "SELECT trace_id, code, severity, count, place, message FROM trace_quality "
        "WHERE run_id = $run_id ORDER BY severity DESC, trace_id NULLS FIRST, code",
        {"run_id": run_id},
    )


def checks(connection: Connection, run_id: str) -> list[Check]:
    """What each trace of a run can prove, in the order of the checks."""
    return select(
        connection,
        Check,
        "SELECT * EXCLUDE (run_id) FROM checks WHERE run_id = $run_id ORDER BY trace_id, rowid",
        {"run_id": run_id},
    )


def description(connection: Connection, run_id: str) -> Description:
    """What a run is, what it was read from, and what is to be known about it."""
    return Description(
        run(connection, run_id),
        files(connection, run_id),
        traces(connection, run_id),
        quality(connection, run_id),
    )


def totals(connection: Connection, run_id: str) -> Totals:
    """Everything recorded, steps or not."""
    names = ", ".join(field.name for field in fields(Totals))
    return select(
        connection,
        Totals,
        f"SELECT {names} FROM totals "
        "WHERE run_id = $run_id AND trace_id IS NULL AND step_id IS NULL",
        {"run_id": run_id},
    )[0]


def steps(connection: Connection, run_id: str) -> list[Step]:
    """Each step's totals, elapsed time and ledger (its threads together), in order of time."""
    accounts: dict[int, dict[str, AccountTime]] = {}
    for step_id, account, ns, exposed_ns in select_tuples(
        connection,
        "SELECT step_id, account, sum(ns)::BIGINT, sum(exposed_ns)::BIGINT FROM ledger "
        "WHERE run_id = $run_id AND step_id IS NOT NULL GROUP BY step_id, account",
        {"run_id": run_id},
    ):
        accounts.setdefault(step_id, {})[account] = AccountTime(ns, exposed_ns)

    def step(step_id: int, **columns: Any) -> Step:
        return Step(step_id=step_id, ledger=ordered(accounts.get(step_id, {})), **columns)

    return select(connection, step, named_sql("steps"), {"run_id": run_id})


def ledger(connection: Connection, run_id: str) -> Ledger:
    """The whole trace's ledger, its threads together; several traces added up."""
    rows = select_tuples(
        connection,
        "SELECT account, sum(ns)::BIGINT AS ns, "
        "CASE WHEN count(exposed_ns) = count(*) THEN sum(exposed_ns)::BIGINT END AS exposed_ns "
        "FROM ledger WHERE run_id = $run_id AND step_id IS NULL GROUP BY account",
        {"run_id": run_id},
    )
    return ordered({account: AccountTime(ns, exposed_ns) for account, ns, exposed_ns in rows})


def families(connection: Connection, run_id: str) -> dict[str, Family]:
    """Kernel families by name, most device time first: device time, counts, launch cost."""
    columns = [field.name for field in fields(Family) if field.name != "share"]
    rows = select_tuples(
        connection,
        f"SELECT family, {', '.join(columns)} FROM ({named_sql('families')}) "
        "ORDER BY device_ns DESC, family",
        {"run_id": run_id},
    )
    at = 1 + columns.index("device_ns")
    total = sum(row[at] for row in rows)
    return {row[0]: Family(*row[1:], share=row[at] / total if total else None) for row in rows}


def kernels(
    connection: Connection,
    run_id: str,
    *,
    step_ids: Sequence[int] | None = None,
    limit: int = 1_000_000,
) -> pl.DataFrame:
    """Kernel identities with counts, device time and launch cost, longest in sum first."""
    return frame(connection, named_sql("kernels"), _ranked(run_id, step_ids, limit))


def kernel_records(
    connection: Connection,
    run_id: str,
    *,
    step_ids: Sequence[int] | None = None,
    limit: int = 1_000_000,
) -> list[Kernel]:
    """What `kernels` has, as records."""
    return select(connection, Kernel, named_sql("kernels"), _ranked(run_id, step_ids, limit))


def ops(
    connection: Connection,
    run_id: str,
    *,
    step_ids: Sequence[int] | None = None,
    limit: int = 1_000_000,
) -> pl.DataFrame:
    """Operators by what launching their kernels cost the host, most first."""
    return frame(connection, named_sql("ops"), _ranked(run_id, step_ids, limit))


def op_records(
    connection: Connection,
    run_id: str,
    *,
    step_ids: Sequence[int] | None = None,
    limit: int = 1_000_000,
) -> list[Op]:
    """What `ops` has, as records."""
    return select(connection, Op, named_sql("ops"), _ranked(run_id, step_ids, limit))


def op_names(connection: Connection, run_id: str) -> list[str]:
    """The names of all operators of a run, those without launches too."""
    rows = select_tuples(
        connection,
        "SELECT name FROM names WHERE run_id = $run_id AND name_id IN "
        "(SELECT name_id FROM ops WHERE run_id = $run_id AND NOT is_region) ORDER BY name",
        {"run_id": run_id},
    )
    return [name for (name,) in rows]


def _ranked(run_id: str, step_ids: Sequence[int] | None, limit: int) -> Parameters:
    return {"run_id": run_id, "step_ids": list(step_ids) if step_ids else None, "row_limit": limit}


def launches(connection: Connection, run_id: str, *, kernel_id: int | None = None) -> pl.DataFrame:
    """Each launch with its names and decomposition, in order of time; one kernel's only if
    asked.
    """
    return frame(
        connection,
        "SELECT * EXCLUDE (run_id) FROM launch_costs WHERE run_id = $run_id "
        "AND ($kernel_id IS NULL OR kernel_id = $kernel_id) "
        "ORDER BY trace_id, call_start_ns, call_id",
        {"run_id": run_id, "kernel_id": kernel_id},
    )


def schedule(
    connection: Connection, run_id: str, step_id: int
) -> tuple[list[ScheduledCall], list[ScheduledEvent]]:
    """A step's calls on its main thread and its device events, in order; times from its start."""
    parameters = {"run_id": run_id, "step_id": step_id}
    return (
        select(connection, ScheduledCall, named_sql("predict_calls"), parameters),
        select(connection, ScheduledEvent, named_sql("predict_events"), parameters),
    )


def step_products(connection: Connection, run_id: str, step_ids: list[int]) -> list[StepProduct]:
    """Matrix products and attentions of steps, by operator and shapes."""
    parameters = {"run_id": run_id, "step_ids": step_ids}
    return select(connection, StepProduct, named_sql("predict_products"), parameters)


def graph_gaps(connection: Connection, run_id: str) -> GraphGaps:
    """The time between two nodes of a graph replay."""
    return select(connection, GraphGaps, named_sql("predict_gaps"), {"run_id": run_id})[0]


def same_workload(connection: Connection, run_id: str, mode: str) -> list[Run]:
    """Runs of `mode` with the model, sizes, dtype, attention and GPU of this one."""
    same = ("model", "batch_size", "prompt_len", "dtype", "attention", "gpu")
    found = select_tuples(
        connection,
        "SELECT other.run_id FROM runs JOIN runs AS other ON "
        + " AND ".join(f"other.{key} IS NOT DISTINCT FROM runs.{key}" for key in same)
        + " WHERE runs.run_id = $run_id AND other.mode = $mode AND other.run_id <> $run_id "
        "AND runs.model IS NOT NULL ORDER BY other.name, other.run_id",
        {"run_id": run_id, "mode": mode},
    )
    return [run(connection, other) for (other,) in found]


def kernel_sequences(connection: Connection, run_id: str) -> list[KernelSequence]:
    """Each step's kernels and a digest of their order."""
    return select(connection, KernelSequence, named_sql("kernel_sequences"), {"run_id": run_id})


def match_tiers(connection: Connection, run_id: str) -> dict[str, MatchTier] | None:
    """Launches and share of cost by match tier; None without kernel replay."""
    rows = select_tuples(
        connection,
        "SELECT tier, launches, same_configuration, cost_ns, same_configuration_cost_ns "
        f"FROM ({named_sql('match_tiers')}) ORDER BY tier",
        {"run_id": run_id},
    )
    total = sum(cost_ns for _, _, _, cost_ns, _ in rows)
    return {
        tier: MatchTier(
            launches,
            same,
            cost_ns / total if total else None,
            same_cost_ns / total if total else None,
        )
        for tier, launches, same, cost_ns, same_cost_ns in rows
    } or None


def coverage(connection: Connection, run_id: str) -> Coverage:
    """How much of a run is linked and attributed."""
    return select(connection, Coverage, named_sql("coverage"), {"run_id": run_id})[0]


def floors(connection: Connection, run_id: str) -> list[Floor]:
    """The measured launch floors, by launch API and definition; without their samples."""
    return select(
        connection,
        Floor,
        "SELECT launch_api, definition, n, p5_ns, p50_ns, mean_ns, p95_ns FROM floors "
        "WHERE run_id = $run_id ORDER BY definition, launch_api",
        {"run_id": run_id},
    )


_LATENCIES = {
    "ttft": "SELECT ttft_ns AS v FROM latency WHERE run_id = $run_id",
    "tpot": "SELECT tpot_ns AS v FROM latency WHERE run_id = $run_id",
    "itl": "SELECT unnest(itl_ns) AS v FROM latency WHERE run_id = $run_id",
    "prefill_step": "SELECT unnest(wall_ns) AS v FROM step_latency "
    "WHERE run_id = $run_id AND phase = 'prefill'",
    "decode_step": "SELECT unnest(wall_ns) AS v FROM step_latency "
    "WHERE run_id = $run_id AND phase = 'decode'",
}


def step_latency(connection: Connection, run_id: str) -> dict[str, list[int]]:
    """Un-profiled wall times of steps by phase, in the order of recording."""
    sql = "SELECT phase, wall_ns FROM step_latency WHERE run_id = $run_id"
    return dict(select_tuples(connection, sql, {"run_id": run_id}))


def latency(connection: Connection, run_id: str) -> Latencies | None:
    """Un-profiled TTFT, TPOT, ITL and step times; None if nothing was measured."""
    found: Latencies = {}
    for name, source in _LATENCIES.items():
        (one,) = select(
            connection,
            Latency,
            "SELECT count(v) AS n, quantile_disc(v, 0.5) AS p50_ns, "
            f"quantile_disc(v, 0.95) AS p95_ns, quantile_disc(v, 0.99) AS p99_ns, "
            f"round(avg(v))::BIGINT AS mean_ns FROM ({source})",
            {"run_id": run_id},
        )
        if one.n:
            found[name] = one
    return found or None
