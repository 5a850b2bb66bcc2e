-- How closely do the nodes of graph replays follow each other in run $run_id?
-- Grain: one row. gap: a node's start less the latest end before it in its replay. NULLs without replays.
-- Above 20 us the node waited for something (another stream's work): such gaps are left out.
WITH follow AS (
  SELECT
    start_ns - max(start_ns + dur_ns) OVER (
      PARTITION BY call_id ORDER BY start_ns, device_event_id
      ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS gap_ns
  FROM device_events
  WHERE run_id = $run_id AND graph_index IS NOT NULL AND NOT bad_time
)
SELECT
  count(gap_ns) AS n, quantile_disc(gap_ns, 0.05) AS p5_ns, round(avg(gap_ns))::BIGINT AS mean_ns,
  quantile_disc(gap_ns, 0.95) AS p95_ns
FROM follow
WHERE gap_ns <= 20000
