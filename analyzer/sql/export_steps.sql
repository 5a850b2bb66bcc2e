-- Which steps has trace $trace_id of run $run_id, and what are their figures?
-- Grain: one row per marked step; a trace that is one step as a whole has none.
-- accounts: the ledger of its threads together, {account: {ns, exposed_ns}} as JSON text.
SELECT
  steps.step_id, steps.name, steps.phase, steps.step_index, steps.thread_id, steps.start_ns,
  steps.end_ns, totals.kernels, totals.launches, totals.orchestration_ns, totals.device_active_ns,
  totals.device_idle_ns, totals.hdbi,
  (
    SELECT to_json(map_from_entries(list((account, {'ns': ns, 'exposed_ns': exposed_ns}) ORDER BY account)))
    FROM (
      SELECT account, sum(ns)::BIGINT AS ns, sum(exposed_ns)::BIGINT AS exposed_ns
      FROM ledger
      WHERE ledger.run_id = steps.run_id AND ledger.step_id = steps.step_id
      GROUP BY account
    )
  ) AS accounts
FROM steps
LEFT JOIN totals
  ON totals.run_id = steps.run_id AND totals.trace_id = steps.trace_id
  AND totals.step_id = steps.step_id
WHERE steps.run_id = $run_id AND steps.trace_id = $trace_id AND steps.phase <> 'trace'
ORDER BY steps.step_id
