"""Every question that the command line and the web app may ask of a store; read-only.

Each function takes a connection (`connect`). Few values come back
as dicts and lists, many rows as a polars frame. Times are integer nanoseconds, unknown is None. The
SQL is in `analyzer/sql/`, one file a question, named like its function.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import polars as pl

from analyzer.attribution import classification
from analyzer.attribution.totals import hdbi
from analyzer.errors import AnalyzerError
from analyzer.queries.rows import frame, select_rows
from analyzer.store import Connection, Store, open_store
from analyzer.store.sql_text import named_sql
from analyzer.store.store import READ_PATIENCE_S

TOTAL_KEYS = (
    "kernels",
    "memcpys",
    "memsets",
    "launches",
    "graph_launches",
    "launches_without_op",
    "orphan_device_events",
    "launches_without_device_event",
    "negative_gaps",
    "clean_launches",
    "bad_time_events",
    "wall_ns",
    "device_active_ns",
    "device_busy_ns",
    "device_event_sum_ns",
    "orphan_device_ns",
    "active_outside_steps_ns",
    "event_sum_outside_steps_ns",
    "busy_in_window_ns",
    "device_idle_ns",
    "t_py_ns",
    "t_dispatch_ns",
    "t_base_ns",
    "ft_ns",
    "ct_ns",
    "kt_ns",
    "kt_fw_ns",
    "kt_fw_low_ns",
    "kt_fw_high_ns",
    "ct_paper_ns",
    "orchestration_ns",
    "tklqt_ns",
    "hdbi",
    "hdbi_busy",
    "launch_floor_ns",
    "floor_source",
)
# Figures of a step that add up over steps.
ADDED_KEYS = (
    *(
        key
        for key in TOTAL_KEYS
        if key not in ("hdbi", "hdbi_busy", "t_base_ns", "launch_floor_ns", "floor_source")
    ),
    "elapsed_ns",
    "device_tail_ns",
)


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


def tables(connection: Connection) -> dict[str, list[str]]:
    """The store's tables and views by name, each with its columns: name and type."""
    found: dict[str, list[str]] = {}
    for row in select_rows(
        connection,
        "SELECT table_name, column_name, data_type FROM information_schema.columns "
        "WHERE table_catalog = current_database() ORDER BY table_name, ordinal_position",
    ):
        columns = found.setdefault(row["table_name"], [])
        columns.append(f"{row['column_name']}  {row['data_type']}")
    return found


def find_run(connection: Connection, reference: str) -> str:
    """The run id that a reference means: an id, a unique prefix of one, a name, or `latest`.

    Raises:
        AnalyzerError: No run or several match; the message lists them.
    """
    rows = select_rows(
        connection, "SELECT run_id, name FROM runs ORDER BY ingested_at DESC, name, run_id"
    )
    if not rows:
        raise AnalyzerError("the store holds no run yet; load one with `analyzer ingest PATH`.")
    if reference == "latest":
        return rows[0]["run_id"]
    for found in (
        [r for r in rows if r["run_id"] == reference],
        [r for r in rows if r["name"] == reference],
        [r for r in rows if len(reference) >= 3 and r["run_id"].startswith(reference)],
    ):
        if len(found) == 1:
            return found[0]["run_id"]
        if found:
            listed = ", ".join(f"{r['run_id'][:12]} ({r['name']})" for r in found[:6])
            raise AnalyzerError(
                f"{reference!r} means {len(found)} runs: {listed}; give more of the id."
            )
    listed = ", ".join(r["name"] for r in rows[:8]) + (", ..." if len(rows) > 8 else "")
    raise AnalyzerError(f"there is no run {reference!r} in the store; it has: {listed}.")


def run(connection: Connection, run_id: str) -> dict[str, Any]:
    """The run's row with its host's."""
    rows = select_rows(
        connection,
        "SELECT runs.*, hosts.* EXCLUDE (host_id, gpu) FROM runs LEFT JOIN hosts USING (host_id) "
        "WHERE run_id = $run_id",
        {"run_id": run_id},
    )
    if not rows:
        raise AnalyzerError(f"there is no run {run_id!r} in the store.")
    return rows[0]


def files(connection: Connection, run_id: str) -> list[dict[str, Any]]:
    """The files a run was read from."""
    return select_rows(
        connection,
        "SELECT file, role, sha256, bytes FROM files WHERE run_id = $run_id ORDER BY role, file",
        {"run_id": run_id},
    )


def traces(connection: Connection, run_id: str) -> list[dict[str, Any]]:
    """The traces of a run: events, rank, window."""
    return select_rows(
        connection,
        "SELECT * EXCLUDE (run_id) FROM traces WHERE run_id = $run_id ORDER BY trace_id",
        {"run_id": run_id},
    )


def quality(connection: Connection, run_id: str) -> list[dict[str, Any]]:
    """What the reader of this run should know: warnings first."""
    return select_rows(
        connection,
        "SELECT trace_id, code, severity, count, place, message FROM trace_quality "
        "WHERE run_id = $run_id ORDER BY severity DESC, trace_id NULLS FIRST, code",
        {"run_id": run_id},
    )


def totals(connection: Connection, run_id: str) -> dict[str, Any]:
    """Everything recorded, steps or not: the keys of TOTAL_KEYS."""
    return select_rows(
        connection,
        f"SELECT {', '.join(TOTAL_KEYS)} FROM totals "
        "WHERE run_id = $run_id AND trace_id IS NULL AND step_id IS NULL",
        {"run_id": run_id},
    )[0]


def steps(connection: Connection, run_id: str) -> list[dict[str, Any]]:
    """Each step's totals, elapsed time and ledger (main thread), in order of time."""
    found = select_rows(connection, named_sql("steps"), {"run_id": run_id})
    accounts: dict[int, dict[str, dict[str, int]]] = {}
    for row in select_rows(
        connection,
        "SELECT step_id, account, ns, exposed_ns FROM ledger "
        "WHERE run_id = $run_id AND is_main AND step_id IS NOT NULL",
        {"run_id": run_id},
    ):
        accounts.setdefault(row["step_id"], {})[row["account"]] = {
            "ns": row["ns"],
            "exposed_ns": row["exposed_ns"],
        }
    for step in found:
        step["ledger"] = ordered_ledger(accounts.get(step["step_id"], {}))
    return found


def ordered_ledger(accounts: dict[str, dict[str, int]]) -> dict[str, dict[str, int]]:
    """The accounts in their fixed order."""
    return {name: accounts[name] for name in classification.ACCOUNTS if name in accounts}


def ledger(connection: Connection, run_id: str) -> dict[str, dict[str, int]]:
    """The whole trace's ledger on its main thread; several traces added up."""
    rows = select_rows(
        connection,
        "SELECT account, sum(ns)::BIGINT AS ns, sum(exposed_ns)::BIGINT AS exposed_ns FROM ledger "
        "WHERE run_id = $run_id AND is_main AND step_id IS NULL GROUP BY account",
        {"run_id": run_id},
    )
    return ordered_ledger(
        {r["account"]: {"ns": r["ns"], "exposed_ns": r["exposed_ns"]} for r in rows}
    )


def added(parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Totals of several steps added up, with their ledger and HDBI. A sum with an unknown is
    unknown.
    """
    result: dict[str, Any] = {"steps": len(parts)}
    for key in ADDED_KEYS:
        values = [part[key] for part in parts]
        result[key] = None if not values or any(v is None for v in values) else sum(values)
    result["hdbi"] = hdbi(result["device_active_ns"], result["orchestration_ns"])
    result["hdbi_busy"] = hdbi(result["device_busy_ns"], result["orchestration_ns"])
    accounts: dict[str, dict[str, int]] = {}
    for part in parts:
        for account, entry in part["ledger"].items():
            sums = accounts.setdefault(account, {"ns": 0, "exposed_ns": 0})
            sums["ns"] += entry["ns"]
            sums["exposed_ns"] += entry["exposed_ns"]
    result["ledger"] = ordered_ledger(accounts)
    return result


def families(connection: Connection, run_id: str) -> list[dict[str, Any]]:
    """Kernel families: device time, counts, launch cost."""
    found = select_rows(connection, named_sql("families"), {"run_id": run_id})
    total = sum(row["device_ns"] for row in found)
    for row in found:
        row["share"] = row["device_ns"] / total if total else None
    return found


def kernels(
    connection: Connection,
    run_id: str,
    *,
    step_ids: Sequence[int] | None = None,
    limit: int = 1_000_000,
) -> pl.DataFrame:
    """Kernel identities with counts, device time and launch cost, longest in sum first."""
    return _ranked(connection, "kernels", run_id, step_ids, limit)


def ops(
    connection: Connection,
    run_id: str,
    *,
    step_ids: Sequence[int] | None = None,
    limit: int = 1_000_000,
) -> pl.DataFrame:
    """Operators by what launching their kernels cost the host, most first."""
    return _ranked(connection, "ops", run_id, step_ids, limit)


def op_names(connection: Connection, run_id: str) -> list[str]:
    """The names of all operators of a run, those without launches too."""
    rows = select_rows(
        connection,
        "SELECT name FROM names WHERE run_id = $run_id AND name_id IN "
        "(SELECT name_id FROM ops WHERE run_id = $run_id AND NOT is_region) ORDER BY name",
        {"run_id": run_id},
    )
    return [row["name"] for row in rows]


def _ranked(
    connection: Connection, name: str, run_id: str, step_ids: Sequence[int] | None, limit: int
) -> pl.DataFrame:
    steps = list(step_ids) if step_ids else None
    return frame(
        connection, named_sql(name), {"run_id": run_id, "step_ids": steps, "row_limit": limit}
    )


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
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """A step's calls on its main thread and its device events, in order; times from its start."""
    parameters = {"run_id": run_id, "step_id": step_id}
    return (
        select_rows(connection, named_sql("predict_calls"), parameters),
        select_rows(connection, named_sql("predict_events"), parameters),
    )


def graph_gaps(connection: Connection, run_id: str) -> dict[str, Any]:
    """n, p5, mean and p95 of the time between two nodes of a graph replay; None without replays."""
    return select_rows(connection, named_sql("predict_gaps"), {"run_id": run_id})[0]


def same_workload(connection: Connection, run_id: str, mode: str) -> list[dict[str, Any]]:
    """Runs of `mode` with the model, sizes, dtype, attention and GPU of this one."""
    same = ("model", "batch_size", "prompt_len", "dtype", "attention", "gpu")
    return select_rows(
        connection,
        "SELECT other.run_id, other.name, other.manifest FROM runs JOIN runs AS other ON "
        + " AND ".join(f"other.{key} IS NOT DISTINCT FROM runs.{key}" for key in same)
        + " WHERE runs.run_id = $run_id AND other.mode = $mode AND other.run_id <> $run_id "
        "AND runs.model IS NOT NULL ORDER BY other.name, other.run_id",
        {"run_id": run_id, "mode": mode},
    )


def kernel_sequences(connection: Connection, run_id: str) -> list[dict[str, Any]]:
    """Each step's kernels and a digest of their order, None without kernels."""
    return select_rows(connection, named_sql("kernel_sequences"), {"run_id": run_id})


def match_tiers(connection: Connection, run_id: str) -> dict[str, dict[str, Any]] | None:
    """Launches and share of cost by match tier; None without kernel replay.

    `same_configuration...` is what grid, block and shared memory of the replay equal too.
    """
    found = select_rows(connection, named_sql("match_tiers"), {"run_id": run_id})
    total = sum(row["cost_ns"] for row in found)
    return {
        row["tier"]: {
            "launches": row["launches"],
            "same_configuration": row["same_configuration"],
            "cost_share": row["cost_ns"] / total if total else None,
            "same_configuration_cost_share": (
                row["same_configuration_cost_ns"] / total if total else None
            ),
        }
        for row in found
    } or None


def coverage(connection: Connection, run_id: str) -> dict[str, Any]:
    """How much of a run is linked and attributed."""
    return select_rows(connection, named_sql("coverage"), {"run_id": run_id})[0]


def floors(connection: Connection, run_id: str) -> list[dict[str, Any]]:
    """The measured launch floors, by launch API and definition; without their samples."""
    return select_rows(
        connection,
        "SELECT launch_api, definition, n, p5_ns, p50_ns, mean_ns, p95_ns FROM floors "
        "WHERE run_id = $run_id ORDER BY definition, launch_api",
        {"run_id": run_id},
    )


def latency(connection: Connection, run_id: str) -> dict[str, Any] | None:
    """Un-profiled TTFT, TPOT, ITL and step times in ns: n, p50, p95, p99, mean; None if not
    measured.
    """
    sources = {
        "ttft": "SELECT ttft_ns AS v FROM latency WHERE run_id = $run_id",
        "tpot": "SELECT tpot_ns AS v FROM latency WHERE run_id = $run_id",
        "itl": "SELECT unnest(itl_ns) AS v FROM latency WHERE run_id = $run_id",
        "prefill_step": "SELECT unnest(wall_ns) AS v FROM step_latency "
        "WHERE run_id = $run_id AND phase = 'prefill'",
        "decode_step": "SELECT unnest(wall_ns) AS v FROM step_latency "
        "WHERE run_id = $run_id AND phase = 'decode'",
    }
    result: dict[str, Any] = {}
    for name, source in sources.items():
        row = select_rows(
            connection,
            "SELECT count(v) AS n, quantile_disc(v, 0.5) AS p50_ns, "
            f"quantile_disc(v, 0.95) AS p95_ns, quantile_disc(v, 0.99) AS p99_ns, "
            f"round(avg(v))::BIGINT AS mean_ns FROM ({source})",
            {"run_id": run_id},
        )[0]
        if row["n"]:
            result[name] = row
    return result or None
