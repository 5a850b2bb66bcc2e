-- What did each step of run $run_id cost?
-- Grain: one row per step, in order of time. elapsed_ns: from the step's start to the later of its end on
-- the host and the end of its last device event; device_tail_ns is the part after the host's end.
WITH device_end AS (
  SELECT step_id, max(start_ns + dur_ns) AS end_ns
  FROM device_events
  WHERE run_id = $run_id AND step_id IS NOT NULL AND NOT bad_time
  GROUP BY step_id
)
SELECT
  steps.step_id, steps.trace_id, steps.name, steps.phase, steps.step_index AS index, steps.thread_id,
  steps.start_ns, steps.end_ns,
  greatest(steps.end_ns, coalesce(device_end.end_ns, steps.end_ns)) - steps.start_ns AS elapsed_ns,
  greatest(coalesce(device_end.end_ns, steps.end_ns) - steps.end_ns, 0) AS device_tail_ns,
  totals.* EXCLUDE (run_id, trace_id, step_id)
FROM steps
JOIN totals ON totals.run_id = steps.run_id AND totals.step_id = steps.step_id
LEFT JOIN device_end ON device_end.step_id = steps.step_id
WHERE steps.run_id = $run_id
ORDER BY steps.trace_id, steps.start_ns, steps.step_id
