-- Does the exposed time of a step's threads add up to the time in which the device was idle?
-- Grain: one row per trace and step where it does not, or where an account is exposed for longer
-- than it lasts. Without any device event both are unknown.
WITH sums AS (
  SELECT run_id, trace_id, step_id, sum(exposed_ns) AS exposed_ns,
    bool_or(exposed_ns < 0 OR exposed_ns > ns) AS impossible
  FROM ledger
  GROUP BY ALL
)
SELECT
  totals.run_id,
  'step ' || coalesce(totals.step_id::VARCHAR, '(whole trace)') || ' of trace ' || totals.trace_id
  || ': exposed time adds up to ' || coalesce(sums.exposed_ns::VARCHAR, 'an unknown number of') || ' ns, the device was idle for '
  || coalesce(totals.device_idle_ns::VARCHAR, 'an unknown number of') || ' ns' AS message
FROM totals
JOIN sums
  ON sums.run_id = totals.run_id AND sums.trace_id = totals.trace_id
  AND sums.step_id IS NOT DISTINCT FROM totals.step_id
WHERE totals.device_idle_ns IS DISTINCT FROM sums.exposed_ns OR coalesce(sums.impossible, false)
ORDER BY ALL
