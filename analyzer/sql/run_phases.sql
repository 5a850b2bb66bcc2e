-- What did a step of each phase cost in each run, and how long did the device wait?
-- Grain: one row per run and phase. Sums over the steps of the phase; a sum with an unknown is unknown. step_elapsed_ns:
-- median step that is no warm-up, if there are such.
SELECT
  steps.run_id, steps.phase,
  count(*) AS steps,
  CASE WHEN count(totals.kernels) = count(*) THEN sum(totals.kernels)::BIGINT END AS kernels,
  sum(totals.launches)::BIGINT AS launches,
  CASE WHEN count(totals.device_active_ns) = count(*) THEN sum(totals.device_active_ns)::BIGINT END
    AS device_active_ns,
  CASE WHEN count(totals.orchestration_ns) = count(*) THEN sum(totals.orchestration_ns)::BIGINT END
    AS orchestration_ns,
  CASE WHEN count(totals.hdbi) = count(*)
    THEN sum(totals.device_active_ns) / (sum(totals.device_active_ns) + sum(totals.orchestration_ns)) END AS hdbi,
  CASE WHEN count(totals.device_idle_ns) = count(*) AND sum(totals.wall_ns) > 0
    THEN sum(totals.device_idle_ns) / sum(totals.wall_ns) END AS idle_share,
  coalesce(median(steps.elapsed_ns) FILTER (NOT steps.is_warm_up), median(steps.elapsed_ns))::BIGINT
    AS step_elapsed_ns
FROM steps
JOIN totals USING (run_id, trace_id, step_id)
GROUP BY steps.run_id, steps.phase
ORDER BY steps.run_id, steps.phase
