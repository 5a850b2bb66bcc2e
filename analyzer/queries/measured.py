"""What was measured beside the traces: launch floors, and latency without the profiler."""

from __future__ import annotations

from analyzer.queries.records import Floor, Latencies, Latency
from analyzer.queries.rows import select, select_tuples
from analyzer.store import Connection


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
    """Un-profiled wall times of steps by phase, in order."""
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
