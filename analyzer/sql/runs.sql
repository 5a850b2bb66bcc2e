-- Which runs does the store hold, and how host-bound is each?
-- Grain: one row per run, the one stored last first: by its place in the store, not by a clock. "step"
-- figures are sums over the marked steps; without marks the whole trace is one step. Figures that a
-- check does not judge are NULL.
WITH measured AS (
  SELECT
    steps.run_id,
    count(*) AS steps,
    CASE WHEN count(totals.kernels) = count(*) THEN sum(totals.kernels)::BIGINT END AS kernels,
    sum(totals.launches)::BIGINT AS launches,
    CASE WHEN count(totals.device_active_ns) = count(*) THEN sum(totals.device_active_ns)::BIGINT END
      AS device_active_ns,
    CASE WHEN count(totals.orchestration_ns) = count(*) THEN sum(totals.orchestration_ns)::BIGINT END
      AS orchestration_ns,
    CASE WHEN count(totals.device_idle_ns) = count(*) AND sum(totals.wall_ns) > 0
      THEN sum(totals.device_idle_ns) / sum(totals.wall_ns) END AS idle_share,
    median(steps.elapsed_ns)::BIGINT AS elapsed_ns
  FROM steps
  JOIN totals USING (run_id, trace_id, step_id)
  GROUP BY steps.run_id
),
touched AS (
  SELECT run_id, flatten(list(not_judged)) AS figures
  FROM checks
  WHERE verdict = 'touched'
  GROUP BY run_id
),
judged AS (
  SELECT
    run_id, steps, kernels, launches,
    CASE WHEN NOT list_contains(coalesce(figures, []), 'device_time') THEN device_active_ns END
      AS device_active_ns,
    CASE WHEN NOT list_contains(coalesce(figures, []), 'host_cost') THEN orchestration_ns END
      AS orchestration_ns,
    CASE WHEN NOT list_contains(coalesce(figures, []), 'device_idle') THEN idle_share END AS idle_share,
    CASE WHEN NOT list_contains(coalesce(figures, []), 'step_time') THEN elapsed_ns END AS elapsed_ns,
    NOT list_contains(coalesce(figures, []), 'hdbi') AS has_hdbi
  FROM measured
  LEFT JOIN touched USING (run_id)
)
SELECT
  runs.run_id, runs.name, runs.model, runs.mode, runs.attention, runs.dtype, runs.batch_size,
  runs.prompt_len, runs.new_tokens, runs.gpu, hosts.host, runs.source, runs.created_at, runs.ingested_at,
  runs.phases, judged.steps, judged.kernels, judged.launches,
  judged.device_active_ns, judged.orchestration_ns,
  CASE WHEN judged.has_hdbi AND judged.device_active_ns + judged.orchestration_ns > 0
    THEN judged.device_active_ns / (judged.device_active_ns + judged.orchestration_ns) END AS hdbi,
  judged.idle_share, judged.elapsed_ns AS step_elapsed_ns,
  whole.floor_source, whole.launch_floor_ns,
  (SELECT count(*) FROM trace_quality
   WHERE trace_quality.run_id = runs.run_id AND trace_quality.severity = 'warning') AS warnings
FROM runs
LEFT JOIN hosts USING (host_id)
LEFT JOIN judged USING (run_id)
LEFT JOIN totals AS whole
  ON whole.run_id = runs.run_id AND whole.trace_id IS NULL AND whole.step_id IS NULL
ORDER BY runs.rowid DESC
