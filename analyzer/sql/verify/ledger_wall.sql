-- Do the accounts of a step's threads add up to its wall time (or to that of the whole trace)?
-- Grain: one row per trace and step where they do not, or where launches have no main ledger.
WITH windows AS (
  SELECT run_id, trace_id, step_id, end_ns - start_ns AS wall_ns FROM steps
  UNION ALL
  SELECT run_id, trace_id, NULL, end_ns - start_ns FROM traces WHERE role = 'trace'
),
sums AS (
  SELECT run_id, trace_id, step_id, bool_or(is_main) AS has_main, sum(ns) AS ns,
    count(*) AS accounts, count(DISTINCT (thread_id, account)) AS distinct_accounts,
    min(ns) AS least_ns
  FROM ledger
  GROUP BY ALL
)
SELECT
  windows.run_id,
  'the accounts of step ' || coalesce(windows.step_id::VARCHAR, '(whole trace)') || ' of trace '
  || windows.trace_id || ' add up to ' || sums.ns || ' ns, its wall time is ' || windows.wall_ns || ' ns' AS message
FROM windows
JOIN sums
  ON sums.run_id = windows.run_id AND sums.trace_id = windows.trace_id
  AND sums.step_id IS NOT DISTINCT FROM windows.step_id
WHERE sums.ns <> windows.wall_ns OR sums.accounts <> sums.distinct_accounts OR sums.least_ns < 0
UNION ALL
SELECT
  totals.run_id,
  'step ' || coalesce(totals.step_id::VARCHAR, '(whole trace)') || ' of trace ' || totals.trace_id
  || ' has ' || totals.launches || ' launches and no ledger of its main thread'
FROM totals
LEFT JOIN sums
  ON sums.run_id = totals.run_id AND sums.trace_id = totals.trace_id
  AND sums.step_id IS NOT DISTINCT FROM totals.step_id AND sums.has_main
WHERE totals.trace_id IS NOT NULL AND totals.launches > 0 AND sums.run_id IS NULL
ORDER BY ALL
