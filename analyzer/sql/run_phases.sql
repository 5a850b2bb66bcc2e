-- What did a step of each phase cost in each run, and how long did the device wait?
-- Grain: one row per run and phase. Sums over the steps of the phase; a sum with an unknown is unknown, figures that a
-- check does not judge are NULL. step_elapsed_ns: median step that is no warm-up, if there are such.
WITH touched AS (
  SELECT run_id, flatten(list(not_judged)) AS figures
  FROM checks
  WHERE verdict = 'touched'
  GROUP BY run_id
),
measured AS (
  SELECT
    steps.run_id, steps.phase,
    count(*) AS steps,
    CASE WHEN count(totals.kernels) = count(*) THEN sum(totals.kernels)::BIGINT END AS kernels,
    sum(totals.launches)::BIGINT AS launches,
    CASE WHEN count(totals.device_active_ns) = count(*) THEN sum(totals.device_active_ns)::BIGINT END
      AS device_active_ns,
    CASE WHEN count(totals.orchestration_ns) = count(*) THEN sum(totals.orchestration_ns)::BIGINT END
      AS orchestration_ns,
    CASE WHEN count(totals.device_idle_ns) = count(*) AND sum(totals.wall_ns) > 0
      THEN sum(totals.device_idle_ns) / sum(totals.wall_ns) END AS idle_share,
    coalesce(median(steps.elapsed_ns) FILTER (NOT steps.is_warm_up), median(steps.elapsed_ns))::BIGINT
      AS step_elapsed_ns
  FROM steps
  JOIN totals USING (run_id, trace_id, step_id)
  GROUP BY steps.run_id, steps.phase
),
known AS (SELECT measured.*, coalesce(figures, []) AS figures FROM measured LEFT JOIN touched USING (run_id))
SELECT
  run_id, phase, steps, kernels, launches,
  CASE WHEN NOT list_contains(figures, 'device_time') THEN device_active_ns END AS device_active_ns,
  CASE WHEN NOT list_contains(figures, 'host_cost') THEN orchestration_ns END AS orchestration_ns,
  CASE WHEN NOT list_contains(figures, 'hdbi') AND device_active_ns + orchestration_ns > 0
    THEN device_active_ns / (device_active_ns + orchestration_ns) END AS hdbi,
  CASE WHEN NOT list_contains(figures, 'device_idle') THEN idle_share END AS idle_share,
  CASE WHEN NOT list_contains(figures, 'step_time') THEN step_elapsed_ns END AS step_elapsed_ns
FROM known
ORDER BY run_id, phase
