-- Which runs does the store hold, and how host-bound is each?
-- Grain: one row per run, the one stored last first: by its place in the store, not by a clock. "step" figures are sums over the marked steps; without marks the
-- whole trace is one step.
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
    median(steps.elapsed_ns)::BIGINT AS elapsed_ns
  FROM steps
  JOIN totals USING (run_id, trace_id, step_id)
  GROUP BY steps.run_id
)
SELECT
  runs.run_id, runs.name, runs.model, runs.mode, runs.attention, runs.dtype, runs.batch_size,
  runs.prompt_len, runs.new_tokens, runs.gpu, hosts.host, runs.source, runs.created_at, runs.ingested_at,
  runs.phases, measured.steps, measured.kernels, measured.launches,
  measured.device_active_ns, measured.orchestration_ns,
  CASE WHEN measured.device_active_ns + measured.orchestration_ns > 0
    THEN measured.device_active_ns / (measured.device_active_ns + measured.orchestration_ns) END AS hdbi,
  measured.elapsed_ns AS step_elapsed_ns,
  whole.floor_source, whole.launch_floor_ns,
  (SELECT count(*) FROM trace_quality
   WHERE trace_quality.run_id = runs.run_id AND trace_quality.severity = 'warning') AS warnings
FROM runs
LEFT JOIN hosts USING (host_id)
LEFT JOIN measured USING (run_id)
LEFT JOIN totals AS whole
  ON whole.run_id = runs.run_id AND whole.trace_id IS NULL AND whole.step_id IS NULL
ORDER BY runs.rowid DESC
